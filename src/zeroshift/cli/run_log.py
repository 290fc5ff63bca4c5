"""A line a run where no bar can be drawn: in a log file, in a pipe."""

from __future__ import annotations

from typing import Any

import typer

from zeroshift.cli.console import console, harmless
from zeroshift.evaluate import Outcome
from zeroshift.report.words import counted, percent

__all__ = ["RunLog"]


class RunLog:
    """How many runs are read from records, then one line for each that is done."""

    def __init__(self, total: int, *, quiet: bool) -> None:
        self._total = total
        self._silent = quiet or console(stderr=True).is_terminal
        self._read = self._done = 0

    def add(self, outcome: Outcome[Any]) -> None:
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


def _found(outcome: Outcome[Any]) -> str:
    if outcome.record is None:
        return ", failed"
    accuracy = outcome.record.get("accuracy")
    return f", {percent(accuracy)}%" if isinstance(accuracy, float) else ""
