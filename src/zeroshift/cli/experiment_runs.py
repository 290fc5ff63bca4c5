"""The loop of `zeroshift experiment`: work that is not recorded yet, with a bar or in a log a line a run; findings."""

from __future__ import annotations

import os
from contextlib import closing

from zeroshift.benchmarks.machine import machine
from zeroshift.cli.console import print_warning
from zeroshift.cli.progress import progress_bar
from zeroshift.cli.run_log import RunLog, told_apart
from zeroshift.evaluate import Job, Ledger, Outcome
from zeroshift.experiments import Investigation
from zeroshift.parameters import Number
from zeroshift.report.words import counted

__all__ = ["RUNS", "processes", "run_investigation"]

RUNS = "runs"
"""Folder of the records."""

MOST_PROCESSES = 4
"""Unless told otherwise: each holds a set in memory."""


def processes(jobs: int | None) -> int:
    """As many as were asked for, or as there are cores."""
    if jobs is None:
        return min(MOST_PROCESSES, os.cpu_count() or 1)
    return int(Number(1, integer=True).check("--jobs", jobs))


def run_investigation(
    investigation: Investigation, ledger: Ledger, *, jobs: int, again: bool, quiet: bool
) -> list[Outcome[Job]]:
    """Do what is missing."""
    outcomes: list[Outcome[Job]] = []
    total = len(investigation.jobs)
    names = told_apart(investigation.jobs)
    log = RunLog(total, quiet=quiet, names=names)
    try:
        with progress_bar("experiments", total, quiet=quiet, unit="runs") as advance:
            runs = investigation.run(ledger, processes=jobs, again=again, notes={"machine": machine()})
            # Closed at once when something goes wrong, so that no process is left running.
            with closing(runs):
                for outcome in runs:
                    outcomes.append(outcome)
                    log.add(outcome)
                    advance(1, names[outcome.job.key])
    except KeyboardInterrupt:
        kept = sum(outcome.record is not None for outcome in outcomes)
        where = f"{kept} of {counted(total, 'run')} are recorded in {ledger.folder}; the same command goes on"
        print_warning(where if kept else f"none of {counted(total, 'run')} is recorded yet")
        raise
    log.end()
    for path in ledger.damaged:
        print_warning(f"{path} held no record that can be read; its run was done again")
    return outcomes
