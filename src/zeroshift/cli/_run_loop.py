"""The loop of `compare` and `experiment`: run the jobs that are not recorded yet, and show progress as a bar, or in a
log file or a pipe as one line per run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from typing import Any

import typer

from zeroshift.cli.console import console, print_warning
from zeroshift.cli.progress import progress_bar
from zeroshift.evaluate import Job, JobOutcome, Ledger
from zeroshift.evaluate.job import AnyJob
from zeroshift.report.formatting import counted, percent, visible

__all__ = ["run_recorded", "unique_names"]


def run_recorded(
    runs: Generator[JobOutcome[AnyJob], None, None],
    jobs: Sequence[AnyJob],
    ledger: Ledger,
    *,
    what: str,
    quiet: bool,
    sizes: Mapping[str, int] | None = None,
) -> list[JobOutcome[AnyJob]]:
    """The outcomes of `runs`, which runs `jobs` and records them in `ledger`. The bar counts runs, or with `sizes`, the
    number of samples by the name of the set, samples."""
    outcomes: list[JobOutcome[AnyJob]] = []
    names = unique_names(jobs)
    log = _RunLog(len(jobs), names, quiet=quiet)
    total = len(jobs) if sizes is None else sum(sizes[job.features] for job in jobs)
    unit = "runs" if sizes is None else "samples"
    try:
        # Closed as soon as something goes wrong, so that no worker process is left running.
        with progress_bar(what, total, quiet=quiet, unit=unit) as advance, closing(runs):
            for outcome in runs:
                outcomes.append(outcome)
                log.add(outcome)
                done = f"{len(outcomes)} of {len(jobs)} runs" if sizes is not None else what
                size = 1 if sizes is None else sizes[outcome.job.features]
                advance(size, f"{done}: {names[outcome.job.key]}")
    except KeyboardInterrupt:
        recorded = sum(outcome.record is not None for outcome in outcomes)
        of = counted(len(jobs), "run")
        resume = f"{recorded} of {of} are recorded in {ledger.folder}; the same command resumes"
        print_warning(resume if recorded else f"none of {of} is recorded yet")
        raise
    log.end()
    for path in ledger.damaged:
        print_warning(f"{path} contained no readable record, or one that was changed; its run was repeated")
    return outcomes


def unique_names(jobs: Sequence[Job]) -> dict[str, str]:
    """A name for each job, by key; jobs that would have the same name get their prompt mode or, failing that, key."""
    by_key = {job.key: job for job in jobs}
    names = {key: str(job) for key, job in by_key.items()}
    for field in ("prompt", "key"):
        count = Counter(names.values())
        names = {
            key: f"{name}, {field} {getattr(by_key[key], field, '')}" if count[name] > 1 else name
            for key, name in names.items()
        }
    return names


class _RunLog:
    """Where no bar can be drawn: how many runs were read from records, then one line per finished run."""

    def __init__(self, total: int, names: Mapping[str, str], *, quiet: bool) -> None:
        self._total = total
        self._names = names
        self._silent = quiet or console(stderr=True).is_terminal
        self._read = self._done = 0

    def add(self, outcome: JobOutcome[Any]) -> None:
        if outcome.recorded:
            self._read += 1
            return
        if self._done == 0:
            self._print_read()
        self._done += 1
        name = self._names[outcome.job.key]
        self._print(f"run {self._read + self._done} of {self._total}: {name}{_result(outcome)}")

    def end(self) -> None:
        if self._done == 0:
            self._print_read()

    def _print_read(self) -> None:
        if self._read:
            self._print(f"{self._read} of {counted(self._total, 'run')} read from records")

    def _print(self, line: str) -> None:
        if not self._silent:
            typer.echo(visible(line), err=True)


def _result(outcome: JobOutcome[Any]) -> str:
    if outcome.record is None:
        return ", failed"
    accuracy = outcome.record.get("accuracy")
    return f", {percent(accuracy)}%" if isinstance(accuracy, float) else ""
