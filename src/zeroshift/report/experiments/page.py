"""What experiments found, as one HTML file with everything inside it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from zeroshift.experiments import Chapter, Suite
from zeroshift.files import atomic_path
from zeroshift.report.experiments.contents import contents
from zeroshift.report.html import template_environment

__all__ = ["render_page", "write_page"]


def render_page(
    chapters: Sequence[Chapter],
    suite: Suite,
    *,
    command: str,
    machine: str = "",
    versions: Mapping[str, str] | None = None,
    zero_shot: Mapping[str, float] | None = None,
) -> str:
    """The page as text; the same bytes for the same chapters.

    `command` is what a reader types to get the same page; `machine` says where it ran, `versions` with what.
    `zero_shot` holds the accuracy each set begins from, by the set's name, where it is known.
    """
    environment = template_environment()
    environment.filters["minus"] = lambda text: text.replace("-", "\N{MINUS SIGN}")
    said = contents(chapters, suite, command=command, machine=machine, versions=versions, zero_shot=zero_shot)
    return environment.get_template("experiments.html.j2").render(said)


def write_page(
    path: str | os.PathLike[str],
    chapters: Sequence[Chapter],
    suite: Suite,
    *,
    command: str,
    machine: str = "",
    versions: Mapping[str, str] | None = None,
    zero_shot: Mapping[str, float] | None = None,
) -> None:
    """`render_page` to a file, whole or not at all."""
    text = render_page(chapters, suite, command=command, machine=machine, versions=versions, zero_shot=zero_shot)
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="\n")
