"""Records of any number of folders as one list of flat rows: read, filtered, sorted and grouped.

A row maps names to values. Nested fields have dotted names (`settings.alpha`). Two fields are computed: `job`, the
label of the method or the name of the analysis, and `gain`, the accuracy over zero-shot in percentage points.
"""

from __future__ import annotations

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
from zeroshift.evaluate.keys import canonical
from zeroshift.evaluate.ledger import KIND, is_newer, is_unverified, read_record
from zeroshift.evaluate.metrics import worst_share
from zeroshift.evaluate.streams.spec import LABEL_PARAMETERS
from zeroshift.suggest import did_you_mean

__all__ = [
    "Collection",
    "Condition",
    "check_fields",
    "collect",
    "differing_fields",
    "field_names",
    "flatten",
    "group_rows",
    "job_identity",
    "sort_rows",
    "summarize_group",
]

Row = dict[str, Any]

RUNS = "runs"
"""Folder with records inside the output folder of `zeroshift compare` or `zeroshift experiment`."""

RECORD_NAME = re.compile(rf".+-[0-9a-f]{{{KEY_LETTERS}}}\.json")

OUTCOMES = "outcomes"

HIDDEN = ("detail", OUTCOMES, "kind", "schema", "checksum")
"""Fields without use in a table: curves and matrices, outcomes of single samples, and what all records share."""

LONGEST_LIST = 8
"""Longer lists of numbers are curves and do not become fields, except under `stream` and `parameters`."""

IDENTITY = (
    "digest", "prompt", "contestant", "method", "given", "protocol", "seed", "shots", "stream", "timed", "every",
    "bins", "analysis", "function", "parameters", "encoder", "classes",
)  # fmt: skip
"""Fields that say which job a record is of: see `Trial.describe` and `Analysis.describe`."""

COSMETIC = (*(f"stream.{name}" for name in LABEL_PARAMETERS), "encoder.source")
"""Fields inside these that do not change a result."""


# Reading


@dataclass(frozen=True)
class Collection:
    """All records of some folders."""

    rows: tuple[Row, ...]
    """One row per job, from its newest record; sorted by set, job, seed and key."""
    damaged: tuple[Path, ...]
    """Files that should hold a record and do not, or one that was changed after it was written."""
    newer: tuple[Path, ...]
    """Records of a later zeroshift that this one cannot read."""
    repeated: int
    """Records ignored because another folder has a newer record with the same key."""
    outdated: int
    """Records ignored because other code did the same job later."""
    unverified: int
    """Records of an earlier version, without a checksum, among the rows."""


def collect(folders: Iterable[str | os.PathLike[str]], *, outcomes: bool = False) -> Collection:
    """Read every record in `folders` and in their subfolders called `runs`. Of equally old records the last one wins.
    With `outcomes`, the rows of runs have a field of this name: see `zeroshift.evaluate.outcomes`.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     collect([folder]).rows
    ()
    """
    if isinstance(folders, (str, os.PathLike)):
        raise TypeError(f"folders must be a list of folders; got {folders!r}. Fix: [{os.fspath(folders)!r}].")
    rows: list[tuple[int, Row]] = []
    damaged: list[Path] = []
    newer: list[Path] = []
    unverified: set[int] = set()  # ids of their rows
    for path in dict.fromkeys(path for folder in folders for path in _record_files(Path(folder))):
        try:
            age = path.stat().st_mtime_ns
            record = read_record(path)
        except OSError:
            record = None
        if is_newer(record):
            newer.append(path)
        elif not _is_valid(record, path):
            damaged.append(path)
        else:
            row = flatten(record)
            if outcomes and OUTCOMES in record:
                row[OUTCOMES] = record[OUTCOMES]
            rows.append((age, row))
            if is_unverified(record):
                unverified.add(id(row))
    rows.sort(key=lambda aged: aged[0])  # stable: the last of equally old records wins below
    by_key = {row["key"]: row for _, row in rows}
    by_job = {job_identity(row): row for _, row in rows if by_key[row["key"]] is row}
    found = sorted(by_job.values(), key=_position)
    return Collection(
        rows=tuple(found),
        damaged=tuple(damaged),
        newer=tuple(newer),
        repeated=len(rows) - len(by_key),
        outdated=len(by_key) - len(by_job),
        unverified=sum(id(row) in unverified for row in found),
    )


def flatten(record: Mapping[str, Any]) -> Row:
    """A record as a row.

    >>> flatten({"contestant": "tda", "seed": 0, "settings": {"alpha": 0.9}})
    {'job': 'tda', 'gain': None, 'contestant': 'tda', 'seed': 0, 'settings.alpha': 0.9}
    """
    row = dict(_leaves(record))
    for name in ("accuracy", "zero_shot_accuracy"):
        if name in record and not _is_number(record[name]):
            row[name] = None  # an analysis may call anything its accuracy
    accuracy, baseline = row.get("accuracy"), row.get("zero_shot_accuracy")
    gain = None if accuracy is None or baseline is None else 100 * (accuracy - baseline)
    return {"job": record.get("contestant") or record.get("analysis"), "gain": gain, **row}


def _leaves(fields: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in fields.items():
        if not prefix and name in HIDDEN:
            continue
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{name}.")
        elif not isinstance(value, list) or prefix in ("stream.", "parameters.") or _is_short(value):
            yield f"{prefix}{name}", value


def _is_short(values: list[Any]) -> bool:
    numbers = len(values) <= LONGEST_LIST and all(isinstance(value, (int, float)) for value in values)
    return numbers or all(isinstance(value, str) for value in values)


def _record_files(folder: Path) -> list[Path]:
    if not folder.is_dir():
        what = "is a file, not a folder" if folder.exists() else "does not exist"
        raise FileNotFoundError(f"{folder} {what}. Fix: name a folder that compare or experiment wrote to.")
    places = [place for place in (folder, folder / RUNS) if place.is_dir()]
    return sorted(path for place in places for path in place.iterdir() if RECORD_NAME.fullmatch(path.name))


def _is_valid(record: Any, path: Path) -> bool:
    if not isinstance(record, dict) or record.get("kind") != KIND:
        return False
    named = isinstance(record.get("features"), str) and path.stem.endswith(f"-{record.get('key')}")
    return named and (not _is_number(record.get("accuracy")) or _is_number(record.get("zero_shot_accuracy")))


def job_identity(row: Row) -> str:
    """A text that is equal for records of the same job, whichever code produced them."""
    if not isinstance(row.get("digest"), str) or not row.get("job"):
        return f"key {row.get('key')}"
    return _text({name: row[name] for name in row if name.split(".")[0] in IDENTITY and name not in COSMETIC})


def _position(row: Row) -> tuple[Any, ...]:
    return row["features"], str(row["job"]), row.get("seed") is not None, _sort_key(row.get("seed")), str(row["key"])


# Fields


def field_names(rows: Iterable[Row]) -> list[str]:
    return list(dict.fromkeys(name for row in rows for name in row))


def check_fields(option: str, names: Iterable[str], rows: Sequence[Row]) -> None:
    """Raise for a name that is a field of no row."""
    known = field_names(rows)
    for name in names:
        if name not in known:
            raise ValueError(
                f"{option}: no record has {name!r}. {did_you_mean(name, known)}Fix: one of the {len(known)} fields "
                "that --fields lists."
            )


def differing_fields(rows: Sequence[Row]) -> list[str]:
    """Fields other than set, method and seed that distinguish the jobs of these rows.

    >>> differing_fields([{"prompt": "vanilla", "stream.kind": kind} for kind in ("random", "class_sorted")])
    ['stream.kind']
    """
    nested = [name for name in field_names(rows) if name.startswith(("stream.", "parameters.", "encoder."))]
    names = ("prompt", "shots", "timed", "every", "bins", *nested, "digest")
    return [name for name in names if name not in COSMETIC and _differs(name, rows)]


def _differs(name: str, rows: Sequence[Row]) -> bool:
    """Parameters are compared within one kind of stream or one analysis, digests within one name of a set."""
    scope = {"stream": "stream.kind", "parameters": "analysis", "digest": "features"}.get(name.split(".")[0])
    scope = None if scope == name else scope
    values: dict[str, set[str]] = {}
    for row in rows:
        if name in row or scope is not None:
            values.setdefault(_text(row.get(scope or "")), set()).add(_text(row.get(name)))
    return any(len(different) > 1 for different in values.values())


# Filtering, sorting and grouping


CONDITION = re.compile(r"\s*([^\s=!<>][^=!<>]*?)\s*(!=|>=|<=|==?|>|<)\s*(.*?)\s*", re.DOTALL)

COMPARISONS: dict[str, Callable[[float, float], bool]] = {
    ">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le,
}  # fmt: skip

SHOWN_VALUES = 8


@dataclass(frozen=True)
class Condition:
    """A condition on a field: NAME=VALUE, NAME!=VALUE, or NAME>NUMBER and the like.

    >>> Condition.parse("settings.alpha>0.5").holds({"settings.alpha": 0.9})
    True
    >>> Condition.parse("seed=none").holds({"seed": 0})
    False
    """

    name: str
    sign: str
    value: str

    @classmethod
    def parse(cls, text: str) -> Condition:
        found = CONDITION.fullmatch(text)
        if found is None:
            raise ValueError(
                f"--where takes NAME=VALUE, NAME!=VALUE or NAME>NUMBER, such as --where contestant=tda; got {text!r}. "
                "Fix: put it in quotes where it has > or <."
            )
        name, sign, value = found.groups()
        if sign in COMPARISONS and _as_number(value) is None:
            raise ValueError(f"--where {text}: {sign} compares with a number; got {value!r}. Fix: {name}{sign}0.5.")
        return cls(name, "=" if sign == "==" else sign, value)

    def holds(self, row: Row) -> bool:
        number = _as_number(self.value)
        value: Any = row.get(self.name)
        if self.sign in COMPARISONS:
            return _is_number(value) and number is not None and COMPARISONS[self.sign](float(value), number)
        if _is_number(value) and number is not None:
            equal = math.isclose(float(value), number, rel_tol=1e-9)
        else:
            equal = _typed(value).lower() == self.value.lower()
        return equal == (self.sign == "=")

    def explain_no_match(self, rows: Sequence[Row]) -> str:
        """A sentence with the values the field has in `rows`, none of which meets the condition."""
        values = list(dict.fromkeys(_typed(row.get(self.name)) for row in rows))
        more = f" and {len(values) - SHOWN_VALUES} more" if len(values) > SHOWN_VALUES else ""
        hint = did_you_mean(self.value, values) if self.sign == "=" and _as_number(self.value) is None else ""
        return f"no record has {self}. {hint}{self.name} is {', '.join(values[:SHOWN_VALUES])}{more}."

    def __str__(self) -> str:
        return f"{self.name}{self.sign}{self.value}"


def sort_rows(rows: Iterable[Row], name: str, *, descending: bool = False) -> list[Row]:
    """By a field: numbers before text, rows without a value last."""
    known: list[Row] = []
    unknown: list[Row] = []
    for row in rows:
        (unknown if row.get(name) is None else known).append(row)
    return sorted(known, key=lambda row: _sort_key(row[name]), reverse=descending) + unknown


def group_rows(rows: Iterable[Row], by: Sequence[str]) -> list[list[Row]]:
    """Rows with an accuracy, grouped by the values of `by`, in order of appearance."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        if row.get("accuracy") is not None:
            groups.setdefault(_text([row.get(name) for name in by]), []).append(row)
    return list(groups.values())


def summarize_group(rows: Sequence[Row]) -> Row:
    """Means over rows, with the lowest and highest; `accuracy_worst` is the mean of the worst tenth."""
    accuracies, gains = ([float(row[name]) for row in rows] for name in ("accuracy", "gain"))
    errors = [float(row["calibration_error"]) for row in rows if _is_number(row.get("calibration_error"))]
    return {
        "runs": len(rows),
        "accuracy": float(np.mean(accuracies)),
        "accuracy_low": min(accuracies),
        "accuracy_high": max(accuracies),
        "accuracy_worst": worst_share(accuracies),
        "zero_shot_accuracy": float(np.mean([float(row["zero_shot_accuracy"]) for row in rows])),
        "gain": float(np.mean(gains)),
        "gain_low": min(gains),
        "gain_high": max(gains),
        "calibration_error": float(np.mean(errors)) if errors else None,
    }


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _as_number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _typed(value: Any) -> str:
    """A value as a person types it: none, true, tda, support,prompts."""
    if value is None or isinstance(value, bool):
        return str(value).lower()
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def _text(value: Any) -> str:
    return json.dumps(canonical(value), sort_keys=True)


def _sort_key(value: Any) -> tuple[bool, Any]:
    number = isinstance(value, (int, float))
    return not number, value if number else str(value)
