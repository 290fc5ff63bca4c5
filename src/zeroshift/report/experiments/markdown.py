"""Findings of experiments as one Markdown document."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from urllib.parse import quote

from zeroshift._version import __version__
from zeroshift.experiments import Chapter, Suite
from zeroshift.experiments._shared.findings import Finding, Remark, Table
from zeroshift.files import atomic_path, check_writable
from zeroshift.report.experiments.alt_text import alt_text
from zeroshift.report.experiments.headlines import chapter_heading, finding_title
from zeroshift.report.experiments.tables import finding_name, formatted_table, sets_table
from zeroshift.report.formatting import format_number, one_line
from zeroshift.report.tables import MARKDOWN_SPECIAL, escape_markdown

__all__ = ["MARK", "chapters_markdown", "check_markdown", "write_markdown"]

MARK = "<!-- experiments of zeroshift: replaced each time -->"
"""First line of every document; a file without it is not replaced."""

Figures = Mapping[str, str | os.PathLike[str]]

REMARK_STARTS = {"note": "", "data": "**Data.** ", "warning": "**Warning.** "}
"""How a remark of each kind starts."""


def chapters_markdown(
    chapters: Sequence[Chapter], suite: Suite, *, command: str, figures: Figures | None = None
) -> str:
    """The document. `command` is what a reader types to get the same one.

    `figures` maps "EXPERIMENT-NAME" ("bank-size-sweep") to the path of a figure relative to the document; figures
    without a path are described in words.
    """
    parts = [MARK, "# Experiments", f"Made by zeroshift {__version__}:", _fenced(one_line(command))]
    parts += ["## Contents", "\n".join(_contents(chapters)), "## The sets", *_table(sets_table(suite))]
    for chapter in chapters:
        parts += _chapter(chapter, figures or {})
    return "\n\n".join(parts) + "\n"


def _contents(chapters: Sequence[Chapter]) -> Iterator[str]:
    yield "- [The sets](#the-sets)"
    for chapter in chapters:
        experiment = chapter.experiment
        where = f" ({escape_markdown(experiment.where)})" if experiment.where else ""
        yield f"- [{escape_markdown(experiment.title)}](#{experiment.name}){where}"


def _chapter(chapter: Chapter, figures: Figures) -> Iterator[str]:
    experiment = chapter.experiment
    # Renderers make different anchors from a title; the experiment's name is always the same.
    yield f'<a id="{experiment.name}"></a>'
    yield f"## {escape_markdown(chapter_heading(chapter))}"
    where = f" {escape_markdown(experiment.where)} of the paper." if experiment.where else ""
    yield f"*{escape_markdown(experiment.question)}*{where}"
    for finding in chapter.findings:
        if isinstance(finding, Remark):
            text = _paragraph(finding.text)
            yield f"> {REMARK_STARTS[finding.kind]}{text}" if REMARK_STARTS[finding.kind] else text
        elif isinstance(finding, Table):
            yield from _titled_table(finding)
        else:
            yield from _figure(finding, figures.get(finding_name(chapter, finding)))
    if chapter.failed:
        yield "**Failed.**"
        yield "\n".join(f"- {_paragraph(failed)}" for failed in chapter.failed)
    if chapter.seconds:
        yield f"Its runs took {format_number(chapter.seconds, 'seconds')} together."


def _titled_table(table: Table) -> Iterator[str]:
    if table.reference:
        yield f"<details><summary>{escape(one_line(table.title))}</summary>"
        yield from _table(table)
        yield "</details>"
    else:
        yield f"**{escape_markdown(finding_title(table))}**"
        yield from _table(table)


def _table(table: Table) -> Iterator[str]:
    formatted = formatted_table(table)
    yield formatted.markdown()
    notes = [_paragraph(text) for text in (*formatted.details, *table.notes)]
    if notes:
        yield " ".join(notes)


def _figure(finding: Finding, path: str | os.PathLike[str] | None) -> Iterator[str]:
    text = escape_markdown(alt_text(finding))
    if path is None:
        yield f"*Figure.* {text}"
    else:
        yield f"![{text}]({quote(Path(path).as_posix(), safe='/.')})"
    caption = getattr(finding, "caption", "")
    if caption:
        yield f"*{escape_markdown(caption)}*"


def _paragraph(text: str) -> str:
    """Text at the start of a block, where a number or a dash would start a list."""
    parts = [part if is_code else MARKDOWN_SPECIAL.sub(r"\\\g<0>", part) for part, is_code in _spans(one_line(text))]
    return re.sub(r"^(\d+)([.)])|^([-+=])", lambda m: f"{m[1] or ''}\\{m[2] or m[3]}", "".join(parts))


def _spans(text: str) -> Iterator[tuple[str, bool]]:
    """The text in pieces, and which of them are commands between backticks, which stay as they are."""
    for place, piece in enumerate(re.split(r"(`zeroshift [\w .,:=+/-]+`)", text)):
        yield piece, place % 2 == 1


def _fenced(text: str) -> str:
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", text)), default=0))
    return f"{fence}text\n{text}\n{fence}"


def check_markdown(path: str | os.PathLike[str]) -> None:
    """Refuse a file that cannot be written, or that exists and was not written by `write_markdown`."""
    target = Path(path)
    if target.is_dir():
        raise IsADirectoryError(f"{path} is a folder; the name of a file is needed. Fix: {target / 'experiments.md'}.")
    if not target.parent.is_dir():
        raise FileNotFoundError(f"the folder {target.parent} does not exist. Fix: create it, or write elsewhere.")
    check_writable(target)
    if os.path.exists(target) and not _is_own_document(target):
        raise FileExistsError(
            f"{path} exists and was not written by `zeroshift experiment` (its first line is not {MARK}). "
            "Fix: name another file, or remove this one."
        )


def _is_own_document(path: Path) -> bool:
    with open(path, encoding="utf-8", errors="replace") as handle:
        return handle.readline().rstrip("\r\n") == MARK


def write_markdown(
    path: str | os.PathLike[str],
    chapters: Sequence[Chapter],
    suite: Suite,
    *,
    command: str,
    figures: Figures | None = None,
) -> None:
    """Write `chapters_markdown` to a file, completely or not at all."""
    check_markdown(path)
    text = chapters_markdown(chapters, suite, command=command, figures=figures)
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="\n")
