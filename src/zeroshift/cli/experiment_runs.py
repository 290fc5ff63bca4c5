"""The loop of `zeroshift experiment`: work that is not recorded yet, with a bar or in a log a line a run; findings."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace

import typer

from zeroshift.benchmarks.machine import machine
from zeroshift.cli.console import console, harmless, print_warning
from zeroshift.cli.progress import progress_bar
from zeroshift.evaluate import Job, Ledger, Outcome
from zeroshift.experiments import Chapter, Experiment, Investigation, Options, Suite
from zeroshift.experiments.parts.findings import Remark
from zeroshift.parameters import Number
from zeroshift.report.words import counted, percent

__all__ = ["RUNS", "chapters_of", "plan_of", "processes", "run_investigation"]

RUNS = "runs"
"""Folder of the records."""

MOST_PROCESSES = 4
"""Unless told otherwise: each holds a set in memory."""


def processes(jobs: int | None) -> int:
    """As many as were asked for, or as there are cores."""
    if jobs is None:
        return min(MOST_PROCESSES, os.cpu_count() or 1)
    return int(Number(1, integer=True).check("--jobs", jobs))


def plan_of(chosen: Sequence[Experiment], suite: Suite, options: Options) -> tuple[Investigation, list[str]]:
    """What is to be done, and which experiments could not say what they need: the others are done all the same."""
    parts: list[Investigation] = []
    failed: list[str] = []
    for experiment in chosen:
        try:
            parts.append(Investigation.of([experiment], suite, options))
        except Exception as error:
            failed.append(f"{experiment.name} could not be planned: {type(error).__name__}: {error}")
    whole = Investigation(
        tuple(experiment for part in parts for experiment in part.experiments),
        suite,
        options,
        tuple(known for part in parts for known in part.seen),
        tuple(jobs for part in parts for jobs in part.planned),
    )
    return whole, failed


def run_investigation(
    investigation: Investigation, ledger: Ledger, *, jobs: int, again: bool, quiet: bool
) -> list[Outcome[Job]]:
    """Do what is missing."""
    outcomes: list[Outcome[Job]] = []
    total = len(investigation.jobs)
    log = _Log(total, silent=quiet or console(stderr=True).is_terminal)
    try:
        with progress_bar("experiments", total, quiet=quiet, unit="runs") as advance:
            runs = investigation.run(ledger, processes=jobs, again=again, notes={"machine": machine()})
            # Closed at once when something goes wrong, so that no process is left running.
            with closing(runs):
                for outcome in runs:
                    outcomes.append(outcome)
                    log.add(outcome)
                    advance(1, str(outcome.job))
    except KeyboardInterrupt:
        kept = sum(outcome.record is not None for outcome in outcomes)
        print_warning(f"{kept} of {counted(total, 'run')} are recorded in {ledger.folder}; the same command goes on")
        raise
    log.end()
    for path in ledger.damaged:
        print_warning(f"{path} held no record that can be read; its run was done again")
    return outcomes


def chapters_of(investigation: Investigation, outcomes: Sequence[Outcome[Job]]) -> tuple[list[Chapter], list[str]]:
    """What the experiments found, and everything that failed: a run, or an experiment that cannot sum its runs up."""
    failed = [f"{outcome.job}: {outcome.error}" for outcome in outcomes if outcome.error is not None]
    chapters: list[Chapter] = []
    parts = zip(investigation.experiments, investigation.seen, investigation.planned, strict=True)
    for experiment, known, jobs in parts:
        alone = replace(investigation, experiments=(experiment,), seen=(known,), planned=(jobs,))
        try:
            chapters += alone.chapters(outcomes)
        except Exception as error:
            why = f"{experiment.name} could not be summed up: {type(error).__name__}: {error}"
            failed.append(why)
            chapters.append(Chapter(experiment, (Remark(f"{why}.", kind="warning"),), jobs, (why,)))
    return chapters, failed


class _Log:
    """Lines where no bar can be drawn: how many runs are read, then one for each that is done."""

    def __init__(self, total: int, *, silent: bool) -> None:
        self._total, self._silent = total, silent
        self._read = self._done = 0

    def add(self, outcome: Outcome[Job]) -> None:
        if outcome.recorded:
            self._read += 1
            return
        if self._done == 0:
            self._say_read()
        self._done += 1
        self._say(f"run {self._read + self._done} of {self._total}: {outcome.job}{_found(outcome)}")

    def end(self) -> None:
        if self._done == 0:
            self._say_read()

    def _say_read(self) -> None:
        if self._read:
            self._say(f"{self._read} of {counted(self._total, 'run')} read from records")

    def _say(self, line: str) -> None:
        if not self._silent:
            typer.echo(harmless(line), err=True)


def _found(outcome: Outcome[Job]) -> str:
    if outcome.record is None:
        return ", failed"
    accuracy = outcome.record.get("accuracy")
    return f", {percent(accuracy)}%" if isinstance(accuracy, float) else ""
