"""Many cases into one JSON file, which is rewritten after each case: an interrupted run resumes from it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from zeroshift.arrays import Backend
from zeroshift.benchmarks.case import BenchCase, measure_case
from zeroshift.benchmarks.machine import describe_environment
from zeroshift.benchmarks.problems import BenchProblem
from zeroshift.benchmarks.tables import growth
from zeroshift.files import FileFormatError, atomic_path
from zeroshift.parsers import read_json

__all__ = ["Progress", "is_measured", "read_cases", "run_cases"]

CaseRecords = dict[str, Any]
Progress = Callable[[BenchCase, str, bool], None]
"""(case, what is being done, whether the case is done)."""


def run_cases(
    cases: Sequence[BenchCase],
    *,
    out: Path | None = None,
    again: bool = False,
    problems: Mapping[str, BenchProblem] | None = None,
    progress: Progress = lambda case, what, done: None,
) -> dict[str, Any]:
    """Measure `cases`; those that `out` has with the same settings are read from there unless `again`.

    `problems` has the real features of cases whose source is not synthetic. Returns the records of these cases; the
    file keeps its other records.
    """
    held = read_cases(out) if out is not None else {}
    for case in cases:
        if again or not is_measured(held, case):
            problem = (problems or {}).get(case.source)
            notify = _notifier(progress, case)
            record = measure_case(case, problem, notify)
            array_backend = Backend.named(case.backend.library, case.backend.device)
            held[case.key] = {**record, "surroundings": describe_environment(array_backend)}
            if out is not None:
                _write(out, held)
        progress(case, "done", True)
    chosen = {case.key: held[case.key] for case in cases}
    return {"cells": chosen, "growth": growth(chosen)}


def is_measured(held: CaseRecords, case: BenchCase) -> bool:
    return case.key in held and held[case.key]["settings"] == case.record()


def read_cases(path: Path) -> CaseRecords:
    """The records of a file that an earlier run wrote; empty if there is no file."""
    if not path.exists():
        return {}
    try:
        records = read_json(path)["cells"]
        if not all(isinstance(record["settings"], dict) for record in records.values()):
            raise TypeError
    except (FileFormatError, KeyError, TypeError, AttributeError) as error:
        raise FileFormatError(
            f"{path} is not a file of `zeroshift bench`. Fix: write to another file, or remove this one."
        ) from error
    return dict(records)


def _notifier(progress: Progress, case: BenchCase) -> Callable[[str], None]:
    return lambda what: progress(case, what, False)


def _write(path: Path, records: CaseRecords) -> None:
    with atomic_path(path) as temporary:
        content = {"cells": records, "growth": growth(records)}
        temporary.write_text(json.dumps(content, indent=1, sort_keys=True, allow_nan=False) + "\n")
