"""Errors a user can fix are one red line and exit code 2; Ctrl-C exits with 130; anything else is a bug and shows a
traceback."""

from __future__ import annotations

import os
import warnings
from typing import Any

import typer
from typer.core import TyperGroup

from zeroshift.cli.console import print_error, print_warning

__all__ = ["ErrorHandlingGroup"]

USER_ERRORS = (ValueError, TypeError, OSError, ImportError, MemoryError, OverflowError)
"""What zeroshift raises, with a message that names the fix, for input it cannot use; and what Python raises about files
and about numbers too large for the machine."""


class ErrorHandlingGroup(TyperGroup):
    """A group of commands whose errors and warnings are written for people. `ZEROSHIFT_DEBUG=1` shows tracebacks."""

    def invoke(self, ctx: Any) -> Any:
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            try:
                return super().invoke(ctx)
            except BrokenPipeError:
                raise  # the reader (`| head`) closed the pipe; typer exits quietly
            except KeyboardInterrupt:
                print_error("interrupted; no file is left half-written")
                raise typer.Exit(130) from None
            except USER_ERRORS as error:
                if os.environ.get("ZEROSHIFT_DEBUG") == "1" or _is_bug(error):
                    raise
                print_error(_message(error))
                raise typer.Exit(2) from None


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
    return str(error)


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    print_warning(str(message))
