"""What a user can mend is one red line and exit code 2; Ctrl-C exits with 130; the rest is a bug with a traceback."""

from __future__ import annotations

import os
import warnings
from typing import Any

import typer
from typer.core import TyperGroup

from zeroshift.cli.console import print_error, print_warning

__all__ = ["ErrorHandlingGroup"]

USER_ERRORS = (ValueError, TypeError, OSError, ImportError, MemoryError, OverflowError)
"""What zeroshift raises, with a message that says the fix, when it is given something it cannot use; and what Python
raises over files and numbers too large for the machine."""


class ErrorHandlingGroup(TyperGroup):
    """A group of commands whose errors and warnings are written for people. `ZEROSHIFT_DEBUG=1` shows tracebacks."""

    def invoke(self, ctx: Any) -> Any:
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            try:
                return super().invoke(ctx)
            except BrokenPipeError:
                raise  # the reader (`| head`) has seen enough; typer ends quietly
            except KeyboardInterrupt:
                print_error("interrupted; no file is left half-written")
                raise typer.Exit(130) from None
            except USER_ERRORS as error:
                if os.environ.get("ZEROSHIFT_DEBUG") == "1" or _is_bug(error):
                    raise
                print_error(_line(error))
                raise typer.Exit(2) from None


def _is_bug(error: BaseException) -> bool:
    """A name of our own that cannot be imported; what others' packages lack, a user can install."""
    return isinstance(error, ImportError) and str(error.name or "").split(".")[0] == "zeroshift"


def _line(error: BaseException) -> str:
    """The message; Python's own about sizes say neither what they are about nor what to do."""
    if isinstance(error, MemoryError):
        what = str(error) or "Python does not say for what"
        return f"not enough memory: {what}. Fix: take fewer samples or classes at a time."
    if isinstance(error, OverflowError):
        return f"a number is too large: {error}. Fix: check the numbers given, those of --set among them."
    return str(error)


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    print_warning(str(message))
