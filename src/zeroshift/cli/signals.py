"""Being told to stop by another program, or by a terminal that closes: work ends as it does on Ctrl-C."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import typer

from zeroshift.cli.console import print_error

__all__ = ["ending_on_signals"]

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
