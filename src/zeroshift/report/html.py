"""The report: one HTML file with everything inside it, to be opened, mailed or archived as it is."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from zeroshift.evaluate import Comparison
from zeroshift.files import atomic_path
from zeroshift.report.palette import METHOD_COLOURS
from zeroshift.report.words import method_label

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

__all__ = ["GENERATOR", "is_report", "render", "write_report"]

GENERATOR = '<meta name="generator" content="zeroshift'
"""How a report of ours is told from someone else's file."""


def render(comparisons: Sequence[Comparison], *, command: str, hint_note: str = "") -> str:
    """The page as text; the same bytes for the same comparisons.

    `command` is what a reader types to get the same page; `hint_note` is said after each hint a set gives about itself.
    """
    # Needed for the page alone, and slower to import than the rest of zeroshift.
    from zeroshift.report.page import page

    environment = template_environment()
    environment.filters["label"] = method_label
    environment.filters["swatch"] = lambda name: name.replace("_", "-") if name in METHOD_COLOURS else "other"
    environment.filters["prose"] = _prose
    environment.filters["minus"] = lambda text: text.replace("-", "\N{MINUS SIGN}")
    return environment.get_template("report.html.j2").render(page(comparisons, command=command, hint_note=hint_note))


def template_environment() -> Environment:
    """Templates of this room: everything escaped, and what is not defined is an error."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    return Environment(
        loader=PackageLoader("zeroshift.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


def _prose(text: str) -> Markup:
    """Docstring prose as HTML: `code` in backticks becomes an element."""
    from markupsafe import Markup, escape

    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text))))


def write_report(
    path: str | os.PathLike[str], comparisons: Sequence[Comparison], *, command: str, hint_note: str = ""
) -> None:
    """`render` to a file, whole or not at all."""
    text = render(comparisons, command=command, hint_note=hint_note)
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="\n")


def is_report(path: str | os.PathLike[str]) -> bool:
    """Whether the file is one that `write_report` made, and may hence be replaced by a newer one."""
    with open(Path(path), encoding="utf-8", errors="replace") as handle:
        return GENERATOR in handle.read(2000)
