"""Output: results go to stdout; progress, warnings and errors go to stderr, so that results can be piped."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["console", "print_error", "print_json", "print_warning", "strip_control"]


def console(*, stderr: bool = False) -> Console:
    """A console that prints text as it is: paths and class names may contain brackets, which rich reads as markup."""
    from rich.console import Console

    return Console(stderr=stderr, markup=False, highlight=False, emoji=False)


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
    console(stderr=True).print(Text.assemble((prefix, style), strip_control(message)), soft_wrap=True)


def strip_control(text: str) -> str:
    """Text without terminal control characters: file names may contain them."""
    return "".join(
        " " if ch == "\n" else ch if ch.isprintable() or ch == "\t" else "\N{REPLACEMENT CHARACTER}" for ch in text
    )
