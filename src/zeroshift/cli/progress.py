"""Being told to stop by another program, or by a terminal that closes: work ends as it does on Ctrl-C."""

from __future__ import annotations

import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

import typer

from zeroshift.cli.console import console, harmless, print_error
from zeroshift.evaluate import Job, JobOutcome
from zeroshift.report.formatting import counted, percent

__all__ = ["RunLog", "ending_on_signals", "progress_bar", "told_apart"]

SIGNALS = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))

EXIT = 128
"""What a shell adds to the number of the signal that ended a command."""


class _StoppedError(KeyboardInterrupt):
    """By a signal."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


@contextmanager
def ending_on_signals() -> Iterator[None]:
    """Inside the block these signals are a KeyboardInterrupt, and the command then ends with their exit code. One that
    is ignored, as `nohup` wants it, stays so; so do all in a thread, where Python has none."""
    before: dict[int, Any] = {}

    def stop(number: int, frame: FrameType | None) -> None:
        for one in before:  # processes are being stopped: once is enough
            signal.signal(one, signal.SIG_IGN)
        raise _StoppedError(number)

    if threading.current_thread() is threading.main_thread():
        before = {one: signal.getsignal(one) for one in SIGNALS if signal.getsignal(one) is signal.SIG_DFL}
        for one in before:
            signal.signal(one, stop)
    try:
        yield
    except _StoppedError as stopped:
        print_error(f"stopped by {signal.Signals(stopped.number).name}; no file is left half-written")
        raise typer.Exit(EXIT + stopped.number) from None
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


# A progress bar on stderr: samples done, rate and time left.


Advance = Callable[[int, str], None]
"""(samples done since the last call, what is being done)."""


@contextmanager
def progress_bar(
    what: str, total: int, *, quiet: bool = False, counted: bool = True, unit: str = "samples"
) -> Iterator[Advance]:
    """A bar for `total` samples, gone when the block ends; where they cannot be counted it moves to and fro."""
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        ProgressColumn,
        Task,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )
    from rich.text import Text

    class Rate(ProgressColumn):
        def render(self, task: Task) -> Text:
            return Text(f"{task.speed:,.0f} {unit}/s" if task.speed else "", style="dim")

    columns = [TextColumn("{task.description}", markup=False), BarColumn()]
    columns += [MofNCompleteColumn(), Rate(), TimeRemainingColumn()] if counted else [TimeElapsedColumn()]
    screen = console(stderr=True)
    # In a log file a bar is but an empty line.
    with Progress(*columns, console=screen, transient=True, disable=quiet or not screen.is_terminal) as bar:
        task = bar.add_task(what, total=total if counted else None)
        yield lambda samples, what: bar.update(task, advance=samples, description=what)


# A line a run where no bar can be drawn: in a log file, in a pipe.


class RunLog:
    """How many runs are read from records, then one line for each that is done."""

    def __init__(self, total: int, *, quiet: bool, names: Mapping[str, str] | None = None) -> None:
        self._total = total
        self._names = names or {}
        self._silent = quiet or console(stderr=True).is_terminal
        self._read = self._done = 0

    def add(self, outcome: JobOutcome[Any]) -> None:
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

    def _name(self, outcome: JobOutcome[Any]) -> str:
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


def _found(outcome: JobOutcome[Any]) -> str:
    if outcome.record is None:
        return ", failed"
    accuracy = outcome.record.get("accuracy")
    return f", {percent(accuracy)}%" if isinstance(accuracy, float) else ""
