"""Run the jobs that have no record yet, in any number of processes. An interrupted call resumes where it stopped."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass, field
from typing import Any, Generic

from zeroshift.distributed import Executor, use_executor
from zeroshift.evaluate.job import AnyJob, Job
from zeroshift.evaluate.keys import features_digest
from zeroshift.evaluate.ledger import Ledger, UnrecordableError, relabel_record
from zeroshift.evaluate.trial import REQUIRED_NUMBERS, Trial
from zeroshift.features import FeatureSet
from zeroshift.parameters import Number
from zeroshift.workers import WorkerDiedError, Workers

__all__ = ["JobOutcome", "execute_jobs", "run_jobs"]

PROCESSES = "jobs"
"""Field of every record: number of processes that worked at the same time."""

Loaders = Mapping[str, Callable[[], FeatureSet]]
"""Functions that load a feature set, by its digest."""


@dataclass(frozen=True)
class JobOutcome(Generic[AnyJob]):
    """A job that is finished."""

    job: AnyJob
    record: dict[str, Any] | None
    """See `Trial.run` and `Analysis.run`; None where it failed."""
    error: str | None
    """Why it failed."""
    recorded: bool
    """Whether the record was already there."""


def run_jobs(
    jobs: Sequence[AnyJob],
    loaders: Loaders,
    ledger: Ledger,
    *,
    processes: int = 0,
    again: bool = False,
    notes: Mapping[str, Any] | None = None,
    on: str | Executor | None = None,
) -> Generator[JobOutcome[AnyJob], None, None]:
    """Run the jobs that `ledger` has no record of (with `again`, all of them) and record each when it is done.

    Yields one outcome per job: first those read from the ledger, then the others as they finish. Jobs with the same key
    run once. `processes` is the number of worker processes; 0 runs in this process. `on` replaces it: `local:N`, `ray`,
    `ray://host:port`, or an executor, which also start a job again whose process died. Jobs that are `timed` run last,
    one at a time, because concurrent work would distort their times. `notes` are JSON values by name that every new
    record keeps. Stopping early, by a signal too, loses only unfinished jobs. A job that fails is not recorded, and
    runs again next time.
    """
    if not isinstance(ledger, Ledger):
        raise TypeError(f"ledger must be a Ledger; got {type(ledger).__name__}. Fix: Ledger('runs').")
    processes = int(Number(0, integer=True).check("processes", processes))
    _check_notes(notes or {}, jobs)
    ledger.remove_abandoned()
    missing: dict[str, list[AnyJob]] = {}
    for job in jobs:
        record = None if again or job.key in missing else ledger.read(job)
        if record is None:
            missing.setdefault(job.key, []).append(job)
        else:
            yield JobOutcome(job, record, None, recorded=True)
    unique = [same_key[0] for same_key in missing.values()]
    untimed, timed = [job for job in unique if not job.timed], [job for job in unique if job.timed]
    with nullcontext() if on is None or not unique else use_executor(on) as executor:
        for work, most in ((untimed, processes), (timed, 1)):
            if not work:
                continue
            if executor is None:
                at_once = min(most, processes)
                results = execute_jobs(work, loaders, processes=at_once)
            else:
                at_once = executor.workers if work is untimed else 1
                results = distribute_jobs(work, loaders, executor, at_once=at_once)
            with closing(results):
                for job, result, error in results:
                    record = None
                    if result is not None:
                        try:
                            record = ledger.write(job, result, {**(notes or {}), PROCESSES: at_once})
                        except UnrecordableError as refusal:
                            error = str(refusal)
                    for same in missing[job.key]:
                        own = None if record is None else relabel_record(same, record)
                        yield JobOutcome(same, own, error, recorded=False)


def execute_jobs(
    work: Sequence[AnyJob], loaders: Loaders, *, processes: int
) -> Generator[tuple[AnyJob, dict[str, Any] | None, str | None], None, None]:
    """Yield every job with its result, or None and the reason why it failed, as they finish."""
    workers: Workers[AnyJob, dict[str, Any]] = Workers(_JobRunner(loaders), processes, doing="runs a method")
    with workers:
        for job, future in workers.as_completed(work):
            error = future.exception()
            if error is None:
                yield job, future.result(), None
            elif isinstance(error, WorkerDiedError):
                reason = str(error).split(" Fix:")[0]
                yield job, None, f"{reason} Fix: fewer runs at a time (--jobs), or a machine with more memory."
            else:
                yield job, None, f"{type(error).__name__}: {error}"


def distribute_jobs(
    work: Sequence[AnyJob], loaders: Loaders, executor: Executor, *, at_once: int
) -> Generator[tuple[AnyJob, dict[str, Any] | None, str | None], None, None]:
    """As `execute_jobs`, on an executor."""
    # The time of a job says nothing about that of others, so a long one is not started twice.
    runs = executor.as_completed(_Attempt(_JobRunner(loaders)), work, at_once=at_once)
    with closing(runs):
        for index, answer, lost in runs:
            result, error = answer if lost is None else (None, str(lost).split(" Fix:")[0] + ".")
            yield work[index], result, error


@dataclass
class _Attempt:
    """A job's result, or the reason why it failed, as a value: a job that fails must not end the others."""

    run: _JobRunner

    def __call__(self, job: Job) -> tuple[dict[str, Any] | None, str | None]:
        try:
            return self.run(job), None
        except Exception as error:
            return None, f"{type(error).__name__}: {error}"


@dataclass
class _JobRunner:
    """Runs jobs in one process and keeps the feature set that it loaded last."""

    loaders: Loaders
    _loaded: tuple[str, FeatureSet] | None = field(default=None, repr=False)

    def __call__(self, job: Job) -> dict[str, Any]:
        return job.run(self._load(job))

    def _load(self, job: Job) -> FeatureSet:
        if self._loaded is None or self._loaded[0] != job.digest:
            self._loaded = None  # free the memory before the next set is loaded
            if job.digest not in self.loaders:
                raise ValueError(
                    f"loaders has no function for {job.features} (digest {job.digest}). "
                    "Fix: loaders={dataset.digest: dataset.load}."
                )
            features = self.loaders[job.digest]()
            if features_digest(features) != job.digest:
                raise ValueError(f"{job.features} has changed since this call began. Fix: start again.")
            self._loaded = (job.digest, features)
        return self._loaded[1]


def _check_notes(notes: Mapping[str, Any], jobs: Sequence[AnyJob]) -> None:
    """Check before anything runs; the ledger would refuse each record and its work would be lost."""
    required = REQUIRED_NUMBERS if any(isinstance(job, Trial) for job in jobs) else ()
    reserved = {PROCESSES}.union(*(job.describe() for job in jobs), required)
    for name, value in notes.items():
        if not isinstance(name, str):
            raise TypeError(f"notes must have text as keys; got {name!r}. Fix: notes={{'machine': 'mine'}}.")
        if name in reserved:
            raise ValueError(f"notes must not hold {name!r}, a field of every record. Fix: use another name.")
        try:
            json.dumps(value, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise type(error)(
                f"notes must hold JSON values (numbers, text, lists and mappings of them); got {value!r} for {name!r}. "
                "Fix: convert it with str(...) or .tolist()."
            ) from None
