"""The loop that does what is not recorded yet: a generator of outcomes, in any number of processes, that can be stopped
at any moment and goes on where it was."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Generic

from zeroshift.evaluate.crew import run_all
from zeroshift.evaluate.job import AnyJob
from zeroshift.evaluate.ledger import Ledger, UnrecordableError, as_answer_to
from zeroshift.evaluate.trial import NUMBERS, Trial
from zeroshift.features import FeatureSet
from zeroshift.parameters import Number

__all__ = ["Outcome", "run_jobs"]

PROCESSES = "jobs"
"""In every record: how many processes worked at once."""


@dataclass(frozen=True)
class Outcome(Generic[AnyJob]):
    """One piece of work is over."""

    job: AnyJob
    record: dict[str, Any] | None
    """See `Trial.do` and `Analysis.do`; None where it failed."""
    error: str | None
    """Why it failed."""
    recorded: bool
    """Whether it was done before, and is only read."""


def run_jobs(
    jobs: Sequence[AnyJob],
    loaders: Mapping[str, Callable[[], FeatureSet]],
    ledger: Ledger,
    *,
    processes: int = 0,
    again: bool = False,
    notes: Mapping[str, Any] | None = None,
) -> Generator[Outcome[AnyJob], None, None]:
    """Do the jobs that `ledger` has no record of (all of them with `again`), recording each as it is done.

    Outcomes come as they are there: first those read from the ledger, then the others; one for every job, though jobs
    with the same key are done once. The work goes to so many `processes`, or with 0 to this one; jobs that are `timed`
    come last, one at a time, because several at once disturb each other's times. `loaders` gets a set by its digest.
    `notes`, JSON values by names of their own, are kept with every new record. Stopping half way, by a signal too,
    loses only what is being worked on; a job that fails is not recorded, and is tried again next time.
    """
    if not isinstance(ledger, Ledger):
        raise TypeError(f"ledger must be a Ledger; got {type(ledger).__name__}. Fix: Ledger('runs').")
    processes = int(Number(0, integer=True).check("processes", processes))
    _check_notes(notes or {}, jobs)
    ledger.tidy()
    missing: dict[str, list[AnyJob]] = {}
    for job in jobs:
        record = None if again or job.key in missing else ledger.read(job)
        if record is None:
            missing.setdefault(job.key, []).append(job)
        else:
            yield Outcome(job, record, None, recorded=True)
    first = [same[0] for same in missing.values()]
    quick, timed = [job for job in first if not job.timed], [job for job in first if job.timed]
    for work, crew in ((quick, processes), (timed, min(1, processes))):
        if not work:
            continue
        with closing(run_all(work, loaders, processes=crew)) as answers:
            for job, found, error in answers:
                record = None
                if found is not None:
                    try:
                        record = ledger.write(job, found, {**(notes or {}), PROCESSES: crew})
                    except UnrecordableError as refusal:  # its own fault: the others go on
                        error = str(refusal)
                for same in missing[job.key]:
                    named = None if record is None else as_answer_to(same, record)
                    yield Outcome(same, named, error, recorded=False)


def _check_notes(notes: Mapping[str, Any], jobs: Sequence[AnyJob]) -> None:
    """Before anything is worked out: with each record they would be refused, and the work lost."""
    taken = {PROCESSES}.union(*(job.what() for job in jobs), NUMBERS if any(map(_is_trial, jobs)) else ())
    for name, value in notes.items():
        if not isinstance(name, str):
            raise TypeError(f"notes must go by names; got {name!r}. Fix: a mapping such as {{'machine': 'mine'}}.")
        if name in taken:
            raise ValueError(f"notes must not hold {name!r}, which every record has. Fix: another name for it.")
        try:
            json.dumps(value, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise type(error)(
                f"notes must hold numbers, words, and lists and mappings of them, as JSON does; got {value!r} for "
                f"{name!r}. Fix: str(...) or .tolist() of it."
            ) from None


def _is_trial(job: object) -> bool:
    return isinstance(job, Trial)
