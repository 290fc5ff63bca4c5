"""The loop of `zeroshift compare`: runs that are not recorded yet, and a bar, or in a log file a line a run."""

from __future__ import annotations

from contextlib import closing

from zeroshift.benchmarks.machine import machine
from zeroshift.cli.console import print_warning
from zeroshift.cli.progress import progress_bar
from zeroshift.cli.run_log import RunLog, told_apart
from zeroshift.cli.signals import ending_on_signals
from zeroshift.evaluate import Ledger, Plan, Standings, contest, gather

__all__ = ["run_plan"]


def run_plan(planned: Plan, ledger: Ledger, *, jobs: int, again: bool, quiet: bool) -> Standings:
    """Do what is missing and sum up."""
    outcomes = []
    sizes = {entry.name: entry.n_samples for entry in planned.entries}
    log = RunLog(len(planned.trials), quiet=quiet, names=told_apart(planned.trials))
    total = sum(sizes[trial.features] for trial in planned.trials)
    with ending_on_signals(), progress_bar("comparing", total, quiet=quiet) as advance:
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
