"""Runs in other processes, each answer as soon as it is there; a process that dies takes only its own run with it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from zeroshift.evaluate.digest import digest
from zeroshift.evaluate.job import AnyJob, Job, run_job
from zeroshift.features import FeatureSet
from zeroshift.workers import Workers

__all__ = ["Answer", "run_all"]

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
