"""The loop of `zeroshift compare`: runs that are not recorded yet, and a bar, or in a log file a line a run."""

from __future__ import annotations

from contextlib import closing

import typer

from zeroshift.benchmarks.machine import machine
from zeroshift.cli.console import console, harmless, print_warning
from zeroshift.cli.progress import progress_bar
from zeroshift.evaluate import Ledger, Outcome, Plan, Standings, Trial, contest, gather
from zeroshift.report.words import counted, percent

__all__ = ["run_plan"]


def run_plan(planned: Plan, ledger: Ledger, *, jobs: int, again: bool, quiet: bool) -> Standings:
    """Do what is missing and sum up."""
    outcomes = []
    sizes = {entry.name: entry.n_samples for entry in planned.entries}
    log = _Log(len(planned.trials), silent=quiet or console(stderr=True).is_terminal)
    total = sum(sizes[trial.features] for trial in planned.trials)
    with progress_bar("comparing", total, quiet=quiet) as advance:
        runs = contest(planned, ledger, jobs=jobs, again=again, notes={"machine": machine()})
        # Closed at once when something goes wrong, so that no process is left running.
        with closing(runs):
            for outcome in runs:
                outcomes.append(outcome)
                log.add(outcome)
                done = f"{len(outcomes)} of {len(planned.trials)} runs"
                advance(sizes[outcome.job.features], f"{done}: {outcome.job.contestant.label}")
    log.end()
    for path in ledger.damaged:
        print_warning(f"{path} held no record that can be read; its run was done again")
    return gather(planned, outcomes)


class _Log:
    """Lines where no bar can be drawn: how many runs are read, then one for each that is done."""

    def __init__(self, total: int, *, silent: bool) -> None:
        self._total, self._silent = total, silent
        self._read = self._done = 0

    def add(self, outcome: Outcome[Trial]) -> None:
        if outcome.recorded:
            self._read += 1
            return
        if self._done == 0:
            self._say_read()
        self._done += 1
        found = "failed" if outcome.record is None else f"{percent(outcome.record['accuracy'])}%"
        self._say(f"run {self._read + self._done} of {self._total}: {outcome.job}, {found}")

    def end(self) -> None:
        if self._done == 0:
            self._say_read()

    def _say_read(self) -> None:
        if self._read:
            self._say(f"{self._read} of {counted(self._total, 'run')} read from records")

    def _say(self, line: str) -> None:
        if not self._silent:
            typer.echo(harmless(line), err=True)
