"""What a user can mend is one red line and exit code 2; Ctrl-C exits with 130; the rest is a bug with a traceback."""

from __future__ import annotations

import os
import warnings
from typing import Any

import typer
from typer.core import TyperGroup

from zeroshift.cli.console import print_error, print_warning

__all__ = ["ErrorHandlingGroup"]

USER_ERRORS = (ValueError, TypeError, OSError, ImportError)
"""What zeroshift raises, with a message that says the fix, when it is given something it cannot use."""


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
                if os.environ.get("ZEROSHIFT_DEBUG") == "1":
                    raise
                print_error(str(error))
                raise typer.Exit(2) from None


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    print_warning(str(message))
