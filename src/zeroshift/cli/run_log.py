"""A line a run where no bar can be drawn: in a log file, in a pipe."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import typer

from zeroshift.cli.console import console, harmless
from zeroshift.evaluate import Job, Outcome
from zeroshift.report.words import counted, percent

__all__ = ["RunLog", "told_apart"]


class RunLog:
    """How many runs are read from records, then one line for each that is done."""

    def __init__(self, total: int, *, quiet: bool, names: Mapping[str, str] | None = None) -> None:
        self._total = total
        self._names = names or {}
        self._silent = quiet or console(stderr=True).is_terminal
        self._read = self._done = 0

    def add(self, outcome: Outcome[Any]) -> None:
        if outcome.recorded:
            self._read += 1
            return
        if self._done == 0:
            self._say_read()
        self._done += 1
        self._say(f"run {self._read + self._done} of {self._total}: {self._name(outcome)}{_found(outcome)}")

    def end(self) -> None:
        if self._done == 0:
            self._say_read()

    def _name(self, outcome: Outcome[Any]) -> str:
        return self._names.get(outcome.job.key, str(outcome.job))

    def _say_read(self) -> None:
        if self._read:
            self._say(f"{self._read} of {counted(self._total, 'run')} read from records")

    def _say(self, line: str) -> None:
        if not self._silent:
            typer.echo(harmless(line), err=True)


def told_apart(jobs: Sequence[Job]) -> dict[str, str]:
    """What each job is called, by key: with its prompt mode, or else its key, where another is called the same."""
    by_key = {job.key: job for job in jobs}
    names = {key: str(job) for key, job in by_key.items()}
    for more in ("prompt", "key"):
        count = Counter(names.values())
        names = {
            key: f"{name}, {more} {getattr(by_key[key], more, '')}" if count[name] > 1 else name
            for key, name in names.items()
        }
    return names


def _found(outcome: Outcome[Any]) -> str:
    if outcome.record is None:
        return ", failed"
    accuracy = outcome.record.get("accuracy")
    return f", {percent(accuracy)}%" if isinstance(accuracy, float) else ""
