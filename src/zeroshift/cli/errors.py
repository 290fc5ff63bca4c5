"""How a command ends: errors a user can fix are one red line and exit code 2; Ctrl-C and signals exit with their code;
anything else is a bug and shows a traceback."""

from __future__ import annotations

import os
import signal
import threading
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import Any

import typer

from zeroshift.cli._help import HelpGroup
from zeroshift.cli._output_paths import release_claims
from zeroshift.cli.console import print_error, print_warning

__all__ = ["ErrorHandlingGroup"]

USER_ERRORS = (ValueError, TypeError, OSError, ImportError, MemoryError, OverflowError)
"""What zeroshift raises, with a message that names the fix, for input it cannot use; and what Python raises about files
and about numbers too large for the machine."""


class ErrorHandlingGroup(HelpGroup):
    """A group of commands whose errors and warnings are written for people. `ZEROSHIFT_DEBUG=1` shows tracebacks."""

    def invoke(self, ctx: Any) -> Any:
        try:
            with _signals_raise(), ExitStack() as at_end, warnings.catch_warnings():
                at_end.callback(release_claims)
                warnings.showwarning = _show_warning
                return super().invoke(ctx)
        except BrokenPipeError:
            raise  # the reader (`| head`) closed the pipe; typer exits quietly
        except KeyboardInterrupt as interrupt:
            release_claims()  # the signal may have arrived just before the other call
            stopped = interrupt.number if isinstance(interrupt, _StoppedError) else signal.SIGINT
            how = "interrupted" if stopped == signal.SIGINT else f"stopped by {signal.Signals(stopped).name}"
            print_error(f"{how}; no file is left half-written")
            raise typer.Exit(SIGNAL_EXIT + stopped) from None
        except USER_ERRORS as error:
            if os.environ.get("ZEROSHIFT_DEBUG") == "1" or _is_bug(error):
                raise
            print_error(_message(error))
            raise typer.Exit(2) from None


STOP_SIGNALS = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))
"""What another program, or a terminal that closes, sends to end a command."""

SIGNAL_EXIT = 128
"""A shell's exit code of a command that a signal ended is this plus the signal's number."""


class _StoppedError(KeyboardInterrupt):
    """Raised by a signal."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


@contextmanager
def _signals_raise() -> Iterator[None]:
    """Inside the block, SIGTERM and SIGHUP raise, so that temporary files are deleted and worker processes end.

    A signal that is ignored, as under `nohup`, stays ignored. In a thread other than the main one, where Python handles
    no signals, the block changes nothing.
    """
    before: dict[int, Any] = {}

    def stop(number: int, frame: FrameType | None) -> None:
        for one in before:  # the command is cleaning up: a second signal must not interrupt that
            signal.signal(one, signal.SIG_IGN)
        raise _StoppedError(number)

    if threading.current_thread() is threading.main_thread():
        before = {one: signal.getsignal(one) for one in STOP_SIGNALS if signal.getsignal(one) is signal.SIG_DFL}
    try:
        for one in before:
            signal.signal(one, stop)
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


def _is_bug(error: BaseException) -> bool:
    """Whether a module of zeroshift itself cannot be imported; a missing third-party package can be installed."""
    return isinstance(error, ImportError) and str(error.name or "").split(".")[0] == "zeroshift"


def _message(error: BaseException) -> str:
    """The error's message; Python's own messages about sizes name neither the cause nor the fix, so they get both."""
    if isinstance(error, MemoryError):
        what = str(error) or "Python does not say for what"
        return f"not enough memory: {what}. Fix: use fewer samples or classes at a time."
    if isinstance(error, OverflowError):
        return f"a number is too large: {error}. Fix: check the numbers given, including those of --set."
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{error.filename}: {error.strerror}. Fix: check the path and its permissions."
    return str(error)


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    print_warning(str(message))
