"""What experiments found, as one Markdown document."""

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
from zeroshift.files import atomic_path
from zeroshift.report.experiments.alt_text import spoken
from zeroshift.report.experiments.page import sets_table
from zeroshift.report.experiments.tables import GridCell, GridRow, full_name, grid, harmless, written

__all__ = ["MARK", "chapters_markdown", "check_markdown", "write_markdown"]

MARK = "<!-- experiments of zeroshift: written anew each time -->"
"""First line of every document, by which one of ours is told from someone else's file."""

Figures = Mapping[str, str | os.PathLike[str]]

SAID = {"note": "", "data": "**Data.** ", "warning": "**Warning.** "}
"""How a remark of each kind begins."""


def chapters_markdown(
    chapters: Sequence[Chapter], suite: Suite, *, command: str, figures: Figures | None = None
) -> str:
    """The document. `command` is what a reader types to get the same.

    `figures` has the path of each picture, as seen from the document, by "EXPERIMENT-NAME" ("bank-size-sweep"); a
    figure that has none is told in words.
    """
    parts = [MARK, "# Experiments", f"Made by zeroshift {__version__}:", _fenced(harmless(command))]
    parts += ["## Contents", "\n".join(_contents(chapters)), "## The sets", *_table(sets_table(suite))]
    for chapter in chapters:
        parts += _chapter(chapter, figures or {})
    return "\n\n".join(parts) + "\n"


def _contents(chapters: Sequence[Chapter]) -> Iterator[str]:
    yield "- [The sets](#the-sets)"
    for chapter in chapters:
        experiment = chapter.experiment
        where = f" ({_plain(experiment.where)})" if experiment.where else ""
        yield f"- [{_plain(experiment.title)}](#{experiment.name}){where}"


def _chapter(chapter: Chapter, figures: Figures) -> Iterator[str]:
    experiment = chapter.experiment
    # A title's own anchor differs from one renderer to the next; an experiment's name does not.
    yield f'<a id="{experiment.name}"></a>'
    yield f"## {_plain(experiment.title)}"
    where = f" {_plain(experiment.where)} of the paper." if experiment.where else ""
    yield f"*{_plain(experiment.question)}*{where}"
    for finding in chapter.findings:
        if isinstance(finding, Remark):
            text = _paragraph(finding.text)
            yield f"> {SAID[finding.kind]}{text}" if SAID[finding.kind] else text
        elif isinstance(finding, Table):
            yield from _titled(finding)
        else:
            yield from _figure(finding, figures.get(full_name(chapter, finding)))
    if chapter.failed:
        yield "**Failed.**"
        yield "\n".join(f"- {_paragraph(failed)}" for failed in chapter.failed)
    if chapter.seconds:
        yield f"Its runs took {written(chapter.seconds, 'seconds')} together."


def _titled(table: Table) -> Iterator[str]:
    if table.reference:
        yield f"<details><summary>{escape(harmless(table.title))}</summary>"
        yield from _table(table)
        yield "</details>"
    else:
        yield f"**{_plain(table.title)}**"
        yield from _table(table)


def _table(table: Table) -> Iterator[str]:
    made = grid(table)
    lines = [
        _line(_plain(column.title) for column in made.columns),
        _line("---:" if column.right else ":---" for column in made.columns),
    ]
    for row in made.rows:
        if row.begins and row.group:
            lines.append(_line([f"*{_plain(row.group)}*", *("" for _ in row.cells[1:])]))
        lines.append(_line(_fields(row)))
    yield "\n".join(lines)
    notes = [_paragraph(text) for text in (*made.details, *table.notes)]
    if notes:
        yield " ".join(notes)


def _fields(row: GridRow) -> Iterator[str]:
    label, *others = row.cells
    yield _field(label, strong=row.strong)
    for cell in others:
        yield _field(cell)


def _field(cell: GridCell, *, strong: bool = False) -> str:
    text = _plain(cell.text)
    text = f"**{text}**" if text and (cell.best or strong) else text
    return f"{text} ({cell.spread})" if cell.spread else text


def _line(cells: Sequence[str] | Iterator[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _figure(finding: Finding, path: str | os.PathLike[str] | None) -> Iterator[str]:
    said = _plain(spoken(finding))
    if path is None:
        yield f"*Figure.* {said}"
    else:
        yield f"![{said}]({quote(Path(path).as_posix(), safe='/.')})"
    caption = getattr(finding, "caption", "")
    if caption:
        yield f"*{_plain(caption)}*"


SPECIAL = re.compile(r"([\\`*_<>|\[\]{}#~$&!])")


def _plain(text: str) -> str:
    """Text as its letters: names may hold what Markdown, or HTML within it, would take for something else."""
    return SPECIAL.sub(r"\\\1", harmless(text))


def _paragraph(text: str) -> str:
    """Text that begins a block, where a number or a dash would begin a list."""
    parts = [part if code else SPECIAL.sub(r"\\\1", part) for part, code in _spans(harmless(text))]
    return re.sub(r"^(\d+)([.)])|^([-+=])", lambda m: f"{m[1] or ''}\\{m[2] or m[3]}", "".join(parts))


def _spans(text: str) -> Iterator[tuple[str, bool]]:
    """The text in pieces, and which of them are our commands between backticks: those stay as they are."""
    for place, piece in enumerate(re.split(r"(`zeroshift [\w .,:=+/-]+`)", text)):
        yield piece, place % 2 == 1


def _fenced(text: str) -> str:
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", text)), default=0))
    return f"{fence}text\n{text}\n{fence}"


def check_markdown(path: str | os.PathLike[str]) -> None:
    """Refuse a file that could not be written, or that exists and is not a document of ours."""
    target = Path(path)
    if target.is_dir():
        raise IsADirectoryError(f"{path} is a folder; the name of a file is needed. Fix: {target / 'experiments.md'}.")
    if not target.parent.is_dir():
        raise FileNotFoundError(f"the folder {target.parent} does not exist. Fix: create it, or write elsewhere.")
    if target.exists() and not _ours(target):
        raise FileExistsError(
            f"{path} exists and was not written by `zeroshift experiment` (its first line is not {MARK}). "
            "Fix: name another file, or remove this one."
        )


def _ours(path: Path) -> bool:
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
    """Write the document, whole or not at all; see `chapters_markdown`."""
    check_markdown(path)
    text = chapters_markdown(chapters, suite, command=command, figures=figures)
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="\n")
