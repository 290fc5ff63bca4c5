"""Fields of records by their names, with dots into nested ones: what there are, and what each holds."""

from __future__ import annotations

import difflib
import json
import math
import operator
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from zeroshift.evaluate.job import KEY_LETTERS
from zeroshift.evaluate.keys import one_form
from zeroshift.evaluate.ledger import KIND, is_newer, read_record
from zeroshift.evaluate.metrics import worst_share
from zeroshift.evaluate.streams.spec import UNIMPORTANT
from zeroshift.evaluate.summary import Spread
from zeroshift.suggest import did_you_mean

__all__ = [
    "Collection",
    "Condition",
    "Group",
    "check_fields",
    "collect",
    "field_names",
    "group",
    "identity",
    "number_of",
    "offer",
    "ordered",
    "told_apart",
    "value_of",
]

HIDDEN = ("detail", "kind", "schema")
"""Fields no table shows: curves and matrices, and what every record has the same."""

TOLD_APART = ("stream.", "parameters.")
"""Where lists of numbers are fields too: they tell runs apart."""

SHORT = 8
"""How long a list of numbers may be and still be a field: counts are, curves are not."""

RESULTS_FIELDS_SHOWN = 12
"""Fields named where none of them was meant, the nearest first."""

NEAR = 0.6
"""How alike two names must be, from 0 to 1, before one is offered for the other."""

ACCURACIES = ("accuracy", "zero_shot_accuracy")

COMPUTED = ("job", "gain")
"""Fields that no record holds, worked out from it: its contestant or else its analysis, and the gain in points."""


def value_of(record: Mapping[str, Any], name: str) -> Any:
    """A field by its name, with dots into nested ones; None where the record has none.

    Names may have dots of their own: the longest that is there counts. An accuracy that is no number counts as none.

    >>> record = {"accuracy": 0.75, "zero_shot_accuracy": 0.5, "settings": {"alpha": 0.9}, "contestant": "tda"}
    >>> value_of(record, "settings.alpha"), value_of(record, "gain"), value_of(record, "job"), value_of(record, "seed")
    (0.9, 25.0, 'tda', None)
    """
    if name == "gain":
        found, baseline = number_of(record, "accuracy"), number_of(record, "zero_shot_accuracy")
        return None if found is None or baseline is None else 100 * (found - baseline)
    if name in ACCURACIES:
        return number_of(record, name)
    if name == "job":
        return record.get("contestant") or record.get("analysis")
    return _inside(record, name.split("."))


def number_of(record: Mapping[str, Any], name: str) -> float | None:
    """What a field of the record's own holds, where it is a number."""
    value = record.get(name)
    number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    return value if number else None


def field_names(records: Iterable[Mapping[str, Any]]) -> list[str]:
    """Every field that holds a number, a word, or a few of them in some record.

    >>> field_names([{"accuracy": 0.5, "settings": {"alpha": 0.9}, "detail": {"curve": []}}])
    ['job', 'gain', 'accuracy', 'settings.alpha']
    """
    return list(dict.fromkeys([*COMPUTED, *(name for record in records for name in _leaves(record) if name)]))


def check_fields(option: str, names: Iterable[str], records: Sequence[Mapping[str, Any]]) -> None:
    """Refuse a field that no record has."""
    known = field_names(records)
    for name in names:
        if name not in known:
            nearest = difflib.get_close_matches(name.lower(), known, n=RESULTS_FIELDS_SHOWN, cutoff=0)
            listed = ", ".join(nearest)
            more = f"; all {len(known)} with --fields" if len(known) > len(nearest) else ""
            raise ValueError(f"{option}: no record has {name!r}. {offer(name, known)}Fix: one of {listed}{more}.")


def offer(given: str, known: Iterable[str]) -> str:
    """A question after the name that was meant, where one is near enough to be it; else nothing.

    >>> offer("acuracy", ["accuracy", "seed"]), offer("colour", ["accuracy", "seed"])
    ("Did you mean 'accuracy'? ", '')
    """
    names = list(known)
    near = difflib.get_close_matches(given.lower(), names, n=1, cutoff=NEAR)
    return did_you_mean(given, near or [name for name in names if given and name.startswith(given)])


def _inside(value: Any, parts: Sequence[str]) -> Any:
    """The value at the end of a way of names, each of one part or of several joined by dots."""
    if not parts or not isinstance(value, Mapping):
        return None if parts else value
    for length in range(len(parts), 0, -1):
        name = ".".join(parts[:length])
        if name in value and (found := _inside(value[name], parts[length:])) is not None:
            return found
    return None


def _leaves(record: Mapping[str, Any], before: str = "") -> Iterator[str]:
    for name, value in record.items():
        if before or name not in HIDDEN:
            if isinstance(value, Mapping):
                yield from _leaves(value, f"{before}{name}.")
            elif not isinstance(value, list) or _told(value) or before in TOLD_APART:
                yield f"{before}{name}"


def _told(values: list[Any]) -> bool:
    """Whether a list can stand in a table: words, or a few numbers."""
    words = all(isinstance(one, str) for one in values)
    return words or (len(values) <= SHORT and all(isinstance(one, (int, float)) for one in values))


# Which work a record is of: what tells two runs apart, whatever code did them and whenever.


IDENTITY = (
    "digest", "prompt", "contestant", "method", "given", "protocol", "seed", "shots", "stream", "timed", "every",
    "analysis", "function", "parameters", "encoder", "classes",
)  # fmt: skip
"""What a run or an analysis says of itself: see `Trial.what` and `Analysis.what`. Like the key, not the set's name."""

PLAIN = ("prompt", "shots", "timed", "every")
NESTED = {"stream": "kind", "parameters": None, "encoder": None}
"""Fields with fields of their own, and the one of these that says which others there are."""


def identity(record: Mapping[str, Any]) -> str:
    """The same text for the same work; records that do not say what they are of are each of their own."""
    if not isinstance(record.get("digest"), str) or not (record.get("contestant") or record.get("analysis")):
        return f"key {record.get('key')}"
    what = {name: record.get(name) for name in IDENTITY}
    if isinstance(what["stream"], Mapping):
        what["stream"] = {name: value for name, value in what["stream"].items() if name not in UNIMPORTANT}
    if isinstance(what["encoder"], Mapping):
        what["encoder"] = {name: value for name, value in what["encoder"].items() if name != "source"}
    return json.dumps(one_form(what), sort_keys=True)


def told_apart(records: Sequence[Mapping[str, Any]]) -> list[str]:
    """Fields, beside set, contestant and seed, in which work differs among records that have them; in order.

    >>> runs = [{"prompt": "vanilla", "stream": {"kind": kind}} for kind in ("random", "class_sorted")]
    >>> told_apart(runs)
    ['stream.kind']
    """
    found = [name for name in PLAIN if _differ(record[name] for record in records if name in record)]
    for name, chooser in NESTED.items():
        inside = [(record, record[name]) for record in records if isinstance(record.get(name), Mapping)]
        if chooser is not None and _differ(value.get(chooser) for _, value in inside):
            found.append(f"{name}.{chooser}")
        # Two kinds of stream need not both have a concentration; of one kind a field that only one has does differ.
        apart: dict[str, list[Mapping[str, Any]]] = {}
        for record, value in inside:
            apart.setdefault(_text([record.get("analysis"), chooser and value.get(chooser)]), []).append(value)
        for field in dict.fromkeys(_fields(value for _, value in inside)):
            if field not in (chooser, *UNIMPORTANT) and any(_differ(v.get(field) for v in of) for of in apart.values()):
                found.append(f"{name}.{field}")
    sets: dict[str, list[Any]] = {}
    for record in records:
        sets.setdefault(_text(record.get("features")), []).append(record.get("digest"))
    return [*found, *(["digest"] if any(map(_differ, sets.values())) else [])]


def _fields(values: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    for value in values:
        yield from value


def _differ(values: Iterable[Any]) -> bool:
    return len(set(map(_text, values))) > 1


def _text(value: Any) -> str:
    return json.dumps(one_form(value), sort_keys=True)


# Records of any number of folders as one: read, each run once; looked into by the names of their fields; grouped.


Record = dict[str, Any]

RUNS = "runs"
"""The folder, in that of `zeroshift compare` or `zeroshift experiment`, where records lie."""

RECORD_NAME = re.compile(rf".+-[0-9a-f]{{{KEY_LETTERS}}}\.json")
"""What the file of a record is called; others are none of ours."""


@dataclass(frozen=True)
class Collection:
    """What lies in some folders."""

    records: tuple[Record, ...]
    """Each run once, the newest of several records, of other code too; by set, contestant or analysis, seed and key."""
    damaged: tuple[Path, ...]
    """Files that should hold a record and do not."""
    newer: tuple[Path, ...]
    """Records of a later zeroshift, which this one cannot read."""
    repeated: int
    """Records left out because another folder has a newer one of the same run."""
    outdated: int
    """Records left out because other code did the same work later."""


def collect(folders: Iterable[str | os.PathLike[str]]) -> Collection:
    """Every record in `folders`, or in their sub-folders called runs. Of equally old records the later folder's counts.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     collect([folder]).records
    ()
    """
    if isinstance(folders, (str, os.PathLike)):
        raise TypeError(f"folders must be a list of folders; got {folders!r}. Fix: [{os.fspath(folders)!r}].")
    newest: dict[str, tuple[int, Record]] = {}
    damaged: list[Path] = []
    newer: list[Path] = []
    repeated = 0
    for path in dict.fromkeys(path for folder in folders for path in _files(Path(folder))):
        try:
            age = path.stat().st_mtime_ns
            record = read_record(path)
        except OSError:
            record = None
        if is_newer(record):
            newer.append(path)
        elif not _sound(record, path):
            damaged.append(path)
        else:
            before = newest.get(record["key"])
            repeated += before is not None
            if before is None or age >= before[0]:
                newest[record["key"]] = (age, record)
    of_work: dict[str, tuple[int, Record]] = {}
    for age, record in newest.values():
        what = identity(record)
        if what not in of_work or age >= of_work[what][0]:
            of_work[what] = (age, record)
    records = sorted((record for _, record in of_work.values()), key=_place)
    return Collection(tuple(records), tuple(damaged), tuple(newer), repeated, len(newest) - len(of_work))


def ordered(records: Iterable[Record], name: str, *, descending: bool = False) -> list[Record]:
    """By a field: numbers before words, records without it last."""
    known: list[Record] = []
    unknown: list[Record] = []
    for record in records:
        (unknown if value_of(record, name) is None else known).append(record)
    return sorted(known, key=lambda record: _rank(value_of(record, name)), reverse=descending) + unknown


@dataclass(frozen=True)
class Group:
    """Runs that agree in some fields."""

    of: tuple[Any, ...]
    """The values of these fields."""
    runs: int
    accuracy: Spread
    worst: float
    """Mean accuracy of the worst tenth of the runs."""
    zero_shot: float
    """Mean over the same runs."""
    gain: Spread
    calibration_error: float | None


def group(records: Iterable[Mapping[str, Any]], by: Sequence[str]) -> list[Group]:
    """Runs with an accuracy, put together by the values of `by`, in the order they come; each run counts the same."""
    heaps: dict[str, list[Mapping[str, Any]]] = {}
    for record in records:
        if number_of(record, "accuracy") is not None:
            heaps.setdefault(json.dumps([value_of(record, name) for name in by]), []).append(record)
    groups = []
    for heap in heaps.values():
        accuracies = [float(record["accuracy"]) for record in heap]
        errors = [float(e) for record in heap if (e := number_of(record, "calibration_error")) is not None]
        groups.append(
            Group(
                of=tuple(value_of(heap[0], name) for name in by),
                runs=len(heap),
                accuracy=Spread.of(accuracies),
                worst=worst_share(accuracies),
                zero_shot=float(np.mean([float(record["zero_shot_accuracy"]) for record in heap])),
                gain=Spread.of([float(value_of(record, "gain")) for record in heap]),
                calibration_error=float(np.mean(errors)) if errors else None,
            )
        )
    return groups


def _files(folder: Path) -> list[Path]:
    if not folder.is_dir():
        what = "is a file; records lie in folders" if folder.exists() else "is not there"
        raise FileNotFoundError(f"{folder} {what}. Fix: name a folder that compare or experiment wrote to.")
    places = [place for place in (folder, folder / RUNS) if place.is_dir()]
    return sorted(path for place in places for path in place.iterdir() if RECORD_NAME.fullmatch(path.name))


def _sound(record: Any, path: Path) -> bool:
    if not isinstance(record, dict) or record.get("kind") != KIND:
        return False
    named = isinstance(record.get("features"), str) and path.stem.endswith(f"-{record.get('key')}")
    # A run without its baseline could not be read rightly; an analysis may call anything its accuracy.
    return named and (number_of(record, "accuracy") is None or number_of(record, "zero_shot_accuracy") is not None)


def _place(record: Record) -> tuple[Any, ...]:
    seed = record.get("seed")
    return record["features"], str(value_of(record, "job")), seed is not None, _rank(seed), str(record["key"])


def _rank(value: Any) -> tuple[bool, Any]:
    number = isinstance(value, (int, float))
    return not number, value if number else str(value)


# Conditions on the fields of records, as a person types them: NAME=VALUE, NAME!=VALUE, NAME>0.5.


FORM = re.compile(r"\s*([^\s=!<>][^=!<>]*?)\s*(!=|>=|<=|==|=|>|<)\s*(.*?)\s*", re.DOTALL)

ORDERS: dict[str, Callable[[float, float], bool]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}

FRACTIONS = ("accuracy", "calibration_error")
"""How the names of fields end that hold fractions of one."""

SHOWN = 8
"""Values named where none of them was meant."""


@dataclass(frozen=True)
class Condition:
    """`name sign value`.

    >>> Condition.parse("settings.alpha>0.5").holds({"settings": {"alpha": 0.9}})
    True
    >>> Condition.parse("seed=none").holds({"seed": 0})
    False
    """

    name: str
    sign: str
    value: str

    @classmethod
    def parse(cls, text: str) -> Condition:
        found = FORM.fullmatch(text)
        if found is None:
            raise ValueError(
                f"--where takes NAME=VALUE, NAME!=VALUE or NAME>NUMBER, such as --where contestant=tda; got {text!r}. "
                "Fix: put it in quotes where it has > or <."
            )
        name, sign, value = found.groups()
        condition = cls(name, "=" if sign == "==" else sign, value)
        if condition.sign in ORDERS:
            number = _number(value)
            if number is None:
                raise ValueError(f"--where {text}: {sign} compares with a number; got {value!r}. Fix: {name}{sign}0.5.")
            if name.endswith(FRACTIONS) and abs(number) > 1:
                raise ValueError(
                    f"--where {text}: {name} is a fraction of one; got {value}. Fix: {name}{sign}{number / 100:g}."
                )
        return condition

    def holds(self, record: Mapping[str, Any]) -> bool:
        value = value_of(record, self.name)
        if self.sign in ORDERS:
            number = isinstance(value, (int, float)) and not isinstance(value, bool)
            return number and ORDERS[self.sign](float(value), float(self.value))
        return self._equals(value) == (self.sign == "=")

    def check(self, records: Sequence[Mapping[str, Any]]) -> None:
        """Refuse a field that no record has, and to put words in the order of numbers."""
        check_fields(f"--where {self}", [self.name], records)
        values = [value for record in records if (value := value_of(record, self.name)) is not None]
        if self.sign in ORDERS and not any(isinstance(v, (int, float)) and not isinstance(v, bool) for v in values):
            some = _written(values[0]) if values else "none"
            raise ValueError(
                f"--where {self}: {self.sign} compares numbers, and {self.name} holds none; it is {some} in the first "
                f"record. Fix: {self.name}={some}, or {self.name}!={some}."
            )

    def why_none(self, records: Sequence[Mapping[str, Any]], after: Sequence[Condition] = ()) -> str:
        """What the field holds instead, in a sentence; for a condition that holds for none of the records that are left
        `after` others."""
        values = [value_of(record, self.name) for record in records]
        known = list(dict.fromkeys(_written(value) for value in values))
        near = offer(self.value, known) if self.sign == "=" and _number(self.value) is None else ""
        more = f" and {len(known) - SHOWN} more" if len(known) > SHOWN else ""
        there = f"{self.name} is {', '.join(known[:SHOWN])}{more}"
        if not after:
            return f"no record has {self}. {near}{there}."
        before = " and ".join(map(str, after))
        return f"none of the records with {before} has {self}. {near}There {there}."

    def _equals(self, value: Any) -> bool:
        number = _number(self.value)
        if isinstance(value, (int, float)) and not isinstance(value, bool) and number is not None:
            return math.isclose(float(value), number, rel_tol=1e-9)
        return _written(value).lower() == self.value.lower()

    def __str__(self) -> str:
        return f"{self.name}{self.sign}{self.value}"


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _written(value: Any) -> str:
    """As it is typed: none, true, tda, support,prompts."""
    if value is None or isinstance(value, bool):
        return str(value).lower()
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)
