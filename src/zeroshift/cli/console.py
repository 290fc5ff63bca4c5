"""Where things are printed: answers to stdout; progress, warnings and errors to stderr, so that output can be piped."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["console", "print_error", "print_json", "print_warning"]


def console(*, stderr: bool = False) -> Console:
    """A console that prints text as it is: paths and class names may hold brackets that rich would take for markup."""
    from rich.console import Console

    return Console(stderr=stderr, markup=False, highlight=False, emoji=False)


def print_json(value: Any) -> None:
    typer.echo(json.dumps(value, indent=2, allow_nan=False, default=_plain))


def _plain(value: Any) -> Any:
    """NumPy scalars and arrays (a plug-in may have them as defaults) as what JSON knows, without importing NumPy."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"a {type(value).__name__} cannot be printed as JSON; got {value!r}. Fix: leave out --json.")


def print_error(message: str) -> None:
    _print_line("error: ", "bold red", message)


def print_warning(message: str) -> None:
    _print_line("warning: ", "bold yellow", message)


def _print_line(word: str, style: str, message: str) -> None:
    from rich.text import Text

    # One line, however long, so that it can be searched and copied whole.
    console(stderr=True).print(Text.assemble((word, style), harmless(message)), soft_wrap=True)


def harmless(text: str) -> str:
    """Text without characters that steer a terminal: the names of files may hold them."""
    return "".join(
        " " if ch == "\n" else ch if ch.isprintable() or ch == "\t" else "\N{REPLACEMENT CHARACTER}" for ch in text
    )
