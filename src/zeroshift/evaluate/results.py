"""Records of any number of folders as one: read, each run once; looked into by the names of their fields; grouped."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from zeroshift.evaluate.gather import Spread
from zeroshift.evaluate.job import KEY_LETTERS
from zeroshift.evaluate.ledger import KIND, is_newer, read_record
from zeroshift.evaluate.results_fields import check_fields, field_names, number_of, offer, value_of
from zeroshift.evaluate.results_identity import identity
from zeroshift.evaluate.tallies import worst_share

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
