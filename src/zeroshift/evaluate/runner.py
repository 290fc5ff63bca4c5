"""The loop that does what is not recorded yet: a generator of outcomes, in any number of processes, that can be stopped
at any moment and goes on where it was."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Generic

from zeroshift.evaluate.crew import run_all
from zeroshift.evaluate.job import AnyJob
from zeroshift.evaluate.ledger import Ledger, UnrecordableError
from zeroshift.features import FeatureSet
from zeroshift.parameters import Number

__all__ = ["Outcome", "run_jobs"]


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
    `notes` are kept with every new record. Stopping half way, by a signal too, loses only what is being worked on; a
    job that fails is not recorded, and is tried again next time.
    """
    processes = int(Number(0, integer=True).check("jobs", processes))
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
                        record = ledger.write(job, {**found, "jobs": crew, **(notes or {})})
                    except UnrecordableError as refusal:  # its own fault: the others go on
                        error = str(refusal)
                for same in missing[job.key]:
                    named = None if record is None else {**record, "features": same.features}
                    yield Outcome(same, named, error, recorded=False)
