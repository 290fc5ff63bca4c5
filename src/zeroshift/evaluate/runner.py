"""The loop that does what is not recorded yet: a generator of outcomes, in any number of processes, that can be stopped
at any moment and goes on where it was."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from typing import Any, Generic

from zeroshift.evaluate.job import AnyJob, Job, run_job
from zeroshift.evaluate.keys import digest
from zeroshift.evaluate.ledger import Ledger, UnrecordableError, as_answer_to
from zeroshift.evaluate.trial import NUMBERS, Trial
from zeroshift.features import FeatureSet
from zeroshift.parameters import Number
from zeroshift.workers import Workers

__all__ = ["Answer", "Outcome", "run_all", "run_jobs"]


# Runs in other processes, each answer as soon as it is there; a process that dies takes only its own run with it.


Answer = tuple[AnyJob, dict[str, Any] | None, str | None]
"""A piece of work, and what it found or else why it failed."""

DOING = "runs a method"


@dataclass
class _Runner:
    """What each process holds: where the sets come from, and the last one it loaded."""

    loaders: Mapping[str, Callable[[], FeatureSet]]
    _kept: tuple[str, FeatureSet] | None = field(default=None, repr=False)

    def __call__(self, job: Job) -> dict[str, Any] | str:
        # A method that fails is an answer too: the others go on.
        try:
            return run_job(job, self._loaded(job))
        except Exception as error:
            return f"{type(error).__name__}: {error}"

    def _loaded(self, job: Job) -> FeatureSet:
        if self._kept is None or self._kept[0] != job.digest:
            self._kept = None  # before the next is loaded, so that there are never two
            if job.digest not in self.loaders:
                raise ValueError(
                    f"loaders has no way to get {job.features} (digest {job.digest}). "
                    "Fix: loaders={entry.digest: entry.load}."
                )
            features = self.loaders[job.digest]()
            if digest(features) != job.digest:
                raise ValueError(f"{job.features} has changed since this began. Fix: start again.")
            self._kept = (job.digest, features)
        return self._kept[1]


def run_all(
    work: Sequence[AnyJob], loaders: Mapping[str, Callable[[], FeatureSet]], *, processes: int
) -> Generator[Answer[AnyJob], None, None]:
    """Do `work` in so many processes, answers in the order they come; 0 does it here, one after the other."""
    if not processes:
        runner = _Runner(loaders)
        for job in work:
            yield _answer(job, runner(job))
        return
    crew = _Crew(_Runner(loaders))
    pool = ThreadPoolExecutor(processes, thread_name_prefix="zeroshift-run")
    try:
        waiting: dict[Future[Answer[AnyJob]], None] = {pool.submit(crew.run, job): None for job in work}
        for done in as_completed(waiting):
            yield done.result()
    finally:
        # In this order: what waits never begins, what runs is stopped, and then there is nothing to wait for.
        pool.shutdown(wait=False, cancel_futures=True)
        crew.stop()
        pool.shutdown(wait=True)
        crew.stop()  # a process that was about to start when the others were stopped


class _Crew:
    """A process for each thread that asks for one."""

    def __init__(self, runner: _Runner) -> None:
        self._runner = runner
        self._own = threading.local()
        self._lock = threading.Lock()
        self._all = ExitStack()
        self._stopped = False

    def run(self, job: AnyJob) -> Answer[AnyJob]:
        try:
            (found,) = self._workers().map([job])
        except OSError as error:  # the process is gone; the next run gets another
            self._own.workers = None
            said = str(error).split(" Fix:")[0]
            return job, None, f"{said} Fix: fewer runs at once (--jobs), or a machine with more memory."
        except Exception as error:
            return job, None, f"{type(error).__name__}: {error}"
        return _answer(job, found)

    def stop(self) -> None:
        with self._lock:
            self._stopped = True
            self._all.close()

    def _workers(self) -> Workers[Job, dict[str, Any] | str]:
        if getattr(self._own, "workers", None) is None:
            with self._lock:
                if self._stopped:
                    raise RuntimeError("stopped")
                self._own.workers = self._all.enter_context(Workers(self._runner, 1, doing=DOING))
        workers: Workers[Job, dict[str, Any] | str] = self._own.workers
        return workers


def _answer(job: AnyJob, found: dict[str, Any] | str) -> Answer[AnyJob]:
    return (job, None, found) if isinstance(found, str) else (job, found, None)


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
