"""Progress bars, and a clean end when another program or a closing terminal stops the command."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import typer
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

from zeroshift.cli.console import console, print_error

__all__ = ["exit_on_signals", "progress_bar"]

Advance = Callable[[int, str], None]
"""(units done since the last call, what is being done)."""


@contextmanager
def progress_bar(
    what: str, total: int, *, quiet: bool = False, counted: bool = True, unit: str = "samples"
) -> Iterator[Advance]:
    """A bar on stderr for `total` units, removed when the block ends; without `counted` it only shows activity."""
    columns = [TextColumn("{task.description}", markup=False), BarColumn()]
    columns += [MofNCompleteColumn(), _Rate(unit), TimeRemainingColumn()] if counted else [TimeElapsedColumn()]
    screen = console(stderr=True)
    # In a log file a bar would be an empty line.
    with Progress(*columns, console=screen, transient=True, disable=quiet or not screen.is_terminal) as bar:
        task = bar.add_task(what, total=total if counted else None)
        yield lambda units, what: bar.update(task, advance=units, description=what)


class _Rate(ProgressColumn):
    def __init__(self, unit: str) -> None:
        super().__init__()
        self.unit = unit

    def render(self, task: Task) -> Text:
        return Text(f"{task.speed:,.0f} {self.unit}/s" if task.speed else "", style="dim")


SIGNALS = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))

SIGNAL_EXIT = 128
"""A shell's exit code of a command that a signal ended is this plus the signal's number."""


class _StoppedError(KeyboardInterrupt):
    """Raised by a signal."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


@contextmanager
def exit_on_signals() -> Iterator[None]:
    """Inside the block, SIGTERM and SIGHUP raise KeyboardInterrupt, and the command exits with their exit code.

    A signal that is ignored, as under `nohup`, stays ignored. In a thread other than the main one, where Python handles
    no signals, the block changes nothing.
    """
    before: dict[int, Any] = {}

    def stop(number: int, frame: FrameType | None) -> None:
        for one in before:  # worker processes are being stopped: a second signal must not interrupt that
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
        raise typer.Exit(SIGNAL_EXIT + stopped.number) from None
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
