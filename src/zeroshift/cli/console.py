"""Output: results go to stdout; progress, warnings and errors go to stderr, so that results can be piped."""

from __future__ import annotations

import json
import os
from functools import cache
from typing import TYPE_CHECKING, Any

import typer

from zeroshift.report.formatting import visible

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["console", "print_error", "print_json", "print_warning"]


def console(*, stderr: bool = False) -> Console:
    """A console that prints names as they are: rich would read brackets as markup, a terminal control characters. What
    is piped is as wide as it needs to be, unless the variable COLUMNS says otherwise."""
    made = _console_class()(stderr=stderr, markup=False, highlight=False, emoji=False)
    if not made.is_terminal and "COLUMNS" not in os.environ:
        made.width = UNLIMITED
    return made


UNLIMITED = 100_000
"""Columns; wider than any table."""


@cache
def _console_class() -> type[Console]:
    from rich.console import Console

    class PlainConsole(Console):
        def print(self, *objects: Any, **options: Any) -> None:
            super().print(*(visible(one, keep="\n") if isinstance(one, str) else one for one in objects), **options)

    return PlainConsole


def print_json(value: Any) -> None:
    typer.echo(json.dumps(value, indent=2, allow_nan=False, default=_to_json))


def _to_json(value: Any) -> Any:
    """NumPy scalars and arrays (defaults of a plug-in may be some) as JSON types, without importing NumPy."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"a {type(value).__name__} cannot be printed as JSON; got {value!r}. Fix: leave out --json.")


def print_error(message: str) -> None:
    _print_line("error: ", "bold red", message)


def print_warning(message: str) -> None:
    _print_line("warning: ", "bold yellow", message)


def _print_line(prefix: str, style: str, message: str) -> None:
    from rich.text import Text

    # One line, however long, so that it can be searched and copied as a whole.
    console(stderr=True).print(Text.assemble((prefix, style), visible(message)), soft_wrap=True)
