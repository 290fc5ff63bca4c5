"""Records of any number of folders as one: read, each run once; looked into by the names of their fields; grouped."""

from __future__ import annotations

import difflib
import json
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from zeroshift.evaluate.gather import Spread
from zeroshift.evaluate.job import KEY_LETTERS
from zeroshift.evaluate.ledger import KIND, is_newer, read_record
from zeroshift.evaluate.results_identity import identity
from zeroshift.evaluate.tallies import worst_share
from zeroshift.suggest import did_you_mean

__all__ = [
    "Collection",
    "Group",
    "check_fields",
    "collect",
    "field_names",
    "group",
    "number_of",
    "offer",
    "ordered",
    "value_of",
]

Record = dict[str, Any]

RUNS = "runs"
"""The folder, in that of `zeroshift compare` or `zeroshift experiment`, where records lie."""

RECORD_NAME = re.compile(rf".+-[0-9a-f]{{{KEY_LETTERS}}}\.json")
"""What the file of a record is called; others are none of ours."""

HIDDEN = ("detail", "kind", "schema")
"""Fields no table shows: curves and matrices, and what every record has the same."""

TOLD_APART = ("stream.", "parameters.")
"""Where lists of numbers are fields too: they tell runs apart."""

SHORT = 8
"""How long a list of numbers may be and still be a field: counts are, curves are not."""

SHOWN = 12
"""Fields named where none of them was meant, the nearest first."""

NEAR = 0.6
"""How alike two names must be, from 0 to 1, before one is offered for the other."""

ACCURACIES = ("accuracy", "zero_shot_accuracy")

COMPUTED = ("job", "gain")
"""Fields that no record holds, worked out from it: its contestant or else its analysis, and the gain in points."""


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
            nearest = difflib.get_close_matches(name.lower(), known, n=SHOWN, cutoff=0)
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


def _rank(value: Any) -> tuple[bool, Any]:
    number = isinstance(value, (int, float))
    return not number, value if number else str(value)
