"""The page of `zeroshift experiment`: all findings in one HTML file."""

from __future__ import annotations

import os
import statistics
import textwrap
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from zeroshift import __version__
from zeroshift.experiments import Chapter, Suite
from zeroshift.experiments._shared.findings import Column, Finding, Regions, Remark, Table, Value
from zeroshift.report.experiments.alt_text import alt_text
from zeroshift.report.experiments.figures import panel_figure, panels_of
from zeroshift.report.experiments.headlines import chapter_title, finding_title, page_title
from zeroshift.report.experiments.panels import LegendKey, Panel
from zeroshift.report.experiments.tables import formatted_table, named_findings, sets_table
from zeroshift.report.formatting import counted, format_number, one_line, prose
from zeroshift.report.page import drawing, render_template, write_text
from zeroshift.report.style import PAGE_COLOURS

__all__ = ["page_context", "page_figure", "render_page", "write_page"]


MIN_PIXELS_PER_POINT, MAX_PIXELS_PER_POINT = 1.14, 1.6
"""How large a figure is shown: below, small letters cannot be read; above, they look too large."""

POINTS_PER_INCH = 72

WARNING_LETTERS = 240
"""Letters of a warning that are shown before the first chapter."""

NARROW_LETTERS = 14
"""Labels up to this length are kept on one line, even on a phone."""

TITLE_UNITS = {"percent": "%", "points": "points"}
"""Units that are shown in a column's title; others follow each number."""

SHAPES = {
    "o": "M5 1a4 4 0 1 0 .01 0z", "s": "M1.5 1.5h7v7h-7z", "^": "M5 1l4.3 7.6H.7z", "D": "M5 .6L9.4 5 5 9.4.6 5z",
    "v": "M5 9l4.3-7.6H.7z", "P": "M3.5.8h3v2.7h2.7v3H6.5v2.7h-3V6.5H.8v-3h2.7z",
    "X": "M2.6.6L5 3 7.4.6l2 2L7 5l2.4 2.4-2 2L5 7 2.6 9.4l-2-2L3 5 .6 2.6z",
    "*": "M5 .3l1.2 3.4h3.6L6.9 5.9 8 9.4 5 7.2 2 9.4l1.1-3.5L.2 3.7h3.6z",
    "<": "M1 5l7.6-4.3v8.6z", ">": "M9 5L1.4.7v8.6z",
}  # fmt: skip
"""Outlines of markers in a square of ten, for the legend next to a figure."""


def write_page(path: str | os.PathLike[str], chapters: Sequence[Chapter], suite: Suite, **details: Any) -> None:
    """Write `render_page` to a file, completely or not at all."""
    write_text(path, render_page(chapters, suite, **details))


def render_page(chapters: Sequence[Chapter], suite: Suite, **details: Any) -> str:
    """The page as text; the same bytes for the same chapters. For `details` see `page_context`."""
    return render_template("experiments.html.j2", page_context(chapters, suite, **details))


def page_context(
    chapters: Sequence[Chapter],
    suite: Suite,
    *,
    command: str,
    machine: str = "",
    versions: Mapping[str, str] | None = None,
    zero_shot: Mapping[str, float] | None = None,
) -> dict[str, Any]:
    """Strings and numbers for the template.

    `command` is what a reader types to get the same page; `machine` and `versions` say where it was made and with what.
    `zero_shot` has the zero-shot accuracy of sets by name, where it is known.
    """
    figures = {name: page_figure(name, finding) for name, finding in named_findings(chapters)}
    shown = [
        {"number": number, **_chapter_context(chapter, figures)} for number, chapter in enumerate(chapters, start=1)
    ]
    return {
        "title": prose(page_title(chapters, len(suite))),
        "paper_note": _paper_note(chapters, suite),
        "tiles": _tiles(chapters, suite, sum(figure is not None for figure in figures.values())),
        "warnings": [*_set_warnings(suite), *_warnings(shown)],
        "sets_title": _sets_title(suite),
        "sets": _table_context("sets", _sets_with_accuracy(suite, zero_shot or {})),
        "hints": [warning["text"] for warning in _set_warnings(suite)],
        "chapters": shown,
        "command": one_line(command),
        "machine": one_line(machine),
        "versions": dict(versions or {"zeroshift": __version__}),
    }


def _sets_title(suite: Suite) -> str:
    """How much data there is, and how much of it is the paper's own."""
    samples = sum(member.dataset.n_samples for member in suite.members)
    papers = sum(member.from_paper for member in suite.members)
    of = "none" if not papers else "all" if papers == len(suite) else str(papers)
    return f"{counted(len(suite), 'set')}, {counted(samples, 'sample')}: {of} of them the paper's data"


def _set_warnings(suite: Suite) -> list[dict[str, str]]:
    return [
        {"chapter": "The sets", "name": "sets", "text": f"{member.name}: {one_line(hint)}."}
        for member in suite.members
        for hint in member.dataset.hints
    ]


def _warnings(chapters: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, str]]:
    """Every warning that the chapters show; the chapter has all of its text."""
    for chapter in chapters:
        where = {"chapter": chapter["short_title"], "name": chapter["name"]}
        for block in chapter["blocks"]:
            if block["kind"] == "remark" and block["remark"] == "warning":
                yield {
                    **where,
                    "text": textwrap.shorten(block["text"], WARNING_LETTERS, placeholder=" …", break_on_hyphens=False),
                }
        if chapter["failed"]:
            yield {**where, "text": f"{counted(len(chapter['failed']), 'run')} failed."}


def _tiles(chapters: Sequence[Chapter], suite: Suite, n_figures: int) -> list[dict[str, str]]:
    runs = len({job.key for chapter in chapters for job in chapter.jobs})
    samples = sum(member.dataset.n_samples for member in suite.members)
    counts = ((len(suite), "set", samples, "sample"), (runs, "run", n_figures, "figure"))
    return [
        {"number": f"{many:,}", "what": what if many == 1 else f"{what}s", "also": counted(others, other)}
        for many, what, others, other in counts
        if many
    ]


def _paper_note(chapters: Sequence[Chapter], suite: Suite) -> str:
    """How our numbers compare with published ones, where they are about the same data."""
    differences = []
    for table in (finding for chapter in chapters for finding in chapter.findings if isinstance(finding, Table)):
        for place, column in enumerate(table.columns):
            scale = {"percent": 100.0, "points": 1.0}.get(column.unit)
            cells = [row.cells[place] for row in table.rows if not table.reference]
            if scale is not None:
                differences += [
                    scale * (c.value - c.paper) for c in cells if isinstance(c, Value) and c.paper is not None
                ]
    papers = sum(member.from_paper for member in suite.members)
    if differences:
        middle = statistics.median(abs(gap) for gap in differences)
        above = sum(gap > 0 for gap in differences)
        own = f"{counted(papers, 'set is', 'sets are')} the paper's own data. " if papers else ""
        one = len(differences) == 1
        return (
            f"{own}{counted(len(differences), 'number')} of ours {'stands' if one else 'stand'} next to what the paper "
            f"printed for this data: half of them within {format_number(middle)} points of it, {above} above it."
        )
    if papers:
        return (
            f"{counted(papers, 'set is', 'sets are')} the paper's own data, but nothing here was measured as the paper "
            "did: none of our numbers can be compared with one of its own."
        )
    return (
        "No set here is the paper's own data with its own encoder. So no number of ours can be compared with one of "
        "the paper's: where it has a table on the same question, compare the pattern."
    )


def _sets_with_accuracy(suite: Suite, zero_shot: Mapping[str, float]) -> Table:
    """The sets, with their zero-shot accuracy where it is known."""
    table = sets_table(suite)
    if not zero_shot:
        return table
    known = [zero_shot.get(member.name) for member in suite.members]
    rows = [
        replace(row, cells=(*row.cells, None if accuracy is None else Value(accuracy)))
        for row, accuracy in zip(table.rows, known, strict=True)
    ]
    return replace(table, columns=(*table.columns, Column("zero-shot accuracy")), rows=tuple(rows))


def _chapter_context(chapter: Chapter, figures: Mapping[str, dict[str, Any] | None]) -> dict[str, Any]:
    experiment = chapter.experiment
    return {
        "name": experiment.name,
        "title": prose(chapter_title(chapter)),
        "short_title": one_line(experiment.title),
        "question": prose(experiment.question),
        "where": one_line(experiment.where),
        "blocks": list(_blocks(chapter, figures)),
        "failed": [one_line(failed) for failed in chapter.failed],
        "seconds": format_number(chapter.seconds, "seconds") if chapter.seconds else "",
    }


def _blocks(chapter: Chapter, figures: Mapping[str, dict[str, Any] | None]) -> Iterator[dict[str, Any]]:
    """Findings in their order; consecutive figures in one block, which shows them next to each other."""
    row: list[dict[str, Any]] = []
    for finding in chapter.findings:
        figure = None
        if not isinstance(finding, (Remark, Table)):
            figure = figures[f"{chapter.experiment.name}-{finding.name}"]
        if figure is not None:
            row.append(figure)
            continue
        if row:
            yield {"kind": "figures", "figures": row}
            row = []
        if isinstance(finding, Remark):
            yield {"kind": "remark", "remark": finding.kind, "text": prose(finding.text)}
        elif isinstance(finding, Table):
            yield {"kind": "table", **_table_context(f"{chapter.experiment.name}-{finding.name}", finding)}
    if row:
        yield {"kind": "figures", "figures": row}


def _table_context(name: str, table: Table) -> dict[str, Any]:
    formatted = formatted_table(table).filled
    return {
        "id": name,
        "title": prose(formatted.title),
        "table": formatted,
        "units": [TITLE_UNITS.get(column.unit, "") for column in formatted.columns],
        "notes": [prose(note) for note in table.notes],
        "reference": table.reference,
        "narrow": all(len(row.cells[0].text) <= NARROW_LETTERS for row in formatted.rows if row.cells),
    }


def page_figure(name: str, finding: Finding) -> dict[str, Any] | None:
    """What the template shows of a figure; None for tables and remarks. `name` is unique in the page."""
    figure = panels_of(finding)
    if figure is None:
        return None
    title, text = prose(finding_title(finding)), alt_text(finding)
    panels = []
    for place, panel in enumerate(figure.panels):
        panel_text = f"{title}: {panel.title}" if len(figure.panels) > 1 else text
        panels.append({"title": panel.title, **_panel_drawing(panel, f"{name}-{place}", panel_text)})
    return {
        "id": name,
        "title": title,
        "caption": prose(getattr(finding, "caption", "")),
        "text": text,
        "panels": panels,
        "keys": [_legend_key(key) for key in figure.keys],
        "scale": figure.scale and _panel_drawing(figure.scale, f"{name}-scale", f"Scale of colours: {title}"),
        "haloed": isinstance(finding, Regions),
    }


def _legend_key(key: LegendKey) -> dict[str, str]:
    shape = "" if key.mark in ("line", "dashed", "box") and not key.shape else key.shape
    colour = PAGE_COLOURS.get(key.colour, key.colour)
    return {"label": key.label, "colour": colour, "mark": key.mark, "path": SHAPES.get(shape, "")}


def _panel_drawing(panel: Panel, name: str, text: str) -> dict[str, Any]:
    with warnings.catch_warnings():
        # A letter that matplotlib's own font lacks; the fonts of the browser may have it.
        warnings.filterwarnings("ignore", message="Glyph")
        drawn = drawing(panel_figure(panel), name=name, text=text)
    points = POINTS_PER_INCH * panel.width
    return {**drawn, "least": round(MIN_PIXELS_PER_POINT * points), "most": round(MAX_PIXELS_PER_POINT * points)}
