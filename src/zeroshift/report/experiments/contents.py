"""What the page of experiments says, as plain values for its template."""

from __future__ import annotations

import statistics
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from zeroshift import __version__
from zeroshift.experiments import Chapter, Suite
from zeroshift.experiments.parts.findings import Column, Remark, Table, Value
from zeroshift.report.experiments.grid import Grid, grid, harmless, written
from zeroshift.report.experiments.naming import named_findings
from zeroshift.report.experiments.page_figures import page_figure, prose
from zeroshift.report.experiments.sets import sets_table
from zeroshift.report.words import counted

__all__ = ["contents"]

WARNING = 110
"""Letters of a warning that are shown before the first chapter."""

NARROW = 14
"""Letters of labels that are short enough to stand on one line, even on a phone."""

UNITS = {"percent": "%", "points": "points"}
"""Units that stand in a column's title; others stand with each number."""


def contents(
    chapters: Sequence[Chapter],
    suite: Suite,
    *,
    command: str,
    machine: str = "",
    versions: Mapping[str, str] | None = None,
    zero_shot: Mapping[str, float] | None = None,
) -> dict[str, Any]:
    figures = {name: page_figure(name, finding) for name, _, finding in named_findings(chapters)}
    shown = [{"number": number, **_chapter(chapter, figures)} for number, chapter in enumerate(chapters, start=1)]
    return {
        "version": __version__,
        "title": f"{counted(len(chapters), 'question')} put to {counted(len(suite), 'set')} of features",
        "beside": _beside(chapters, suite),
        "tiles": _tiles(chapters, suite, sum(figure is not None for figure in figures.values())),
        "warnings": [
            {"chapter": one["title"], "name": one["name"], "text": _start(block["text"])}
            for one in shown
            for block in one["blocks"]
            if block["kind"] == "remark" and block["remark"] == "warning"
        ],
        "sets": _table("sets", _sets(suite, zero_shot or {})),
        "hints": [f"{member.name}: {harmless(hint)}" for member in suite.members for hint in member.entry.hints],
        "chapters": shown,
        "command": harmless(command),
        "machine": harmless(machine),
        "versions": dict(versions or {"zeroshift": __version__}),
    }


def _start(text: str) -> str:
    """As much of a warning as shows what it is about; all of it stands in its chapter."""
    return textwrap.shorten(text, WARNING, placeholder=" …")


def _tiles(chapters: Sequence[Chapter], suite: Suite, n_figures: int) -> list[dict[str, str]]:
    runs = len({job.key for chapter in chapters for job in chapter.jobs})
    samples = sum(member.entry.n_samples for member in suite.members)
    counts = ((len(suite), "set", samples, "sample"), (runs, "run", n_figures, "figure"))
    return [
        {"number": f"{many:,}", "what": what if many == 1 else f"{what}s", "also": counted(others, other)}
        for many, what, others, other in counts
        if many
    ]


def _beside(chapters: Sequence[Chapter], suite: Suite) -> str:
    """Ours against the paper's, as far as that can be said at all."""
    apart = []
    for table in (finding for chapter in chapters for finding in chapter.findings if isinstance(finding, Table)):
        for place, column in enumerate(table.columns):
            scale = {"percent": 100.0, "points": 1.0}.get(column.unit)
            cells = [row.cells[place] for row in table.rows if not table.reference]
            if scale is not None:
                apart += [scale * (c.value - c.paper) for c in cells if isinstance(c, Value) and c.paper is not None]
    papers = sum(member.papers for member in suite.members)
    if apart:
        middle = statistics.median(abs(gap) for gap in apart)
        above = sum(gap > 0 for gap in apart)
        own = f"{counted(papers, 'set is', 'sets are')} the paper's own data. " if papers else ""
        one = len(apart) == 1
        return (
            f"{own}{counted(len(apart), 'number')} of ours {'stands' if one else 'stand'} beside what the paper "
            f"printed for this data: half of them within {written(middle, 'number')} points of it, {above} above it."
        )
    if papers:
        return (
            f"{counted(papers, 'set is', 'sets are')} the paper's own data, but nothing here was measured as the paper "
            "did: none of our numbers stands beside one of its own."
        )
    return (
        "No set here is the paper's own data seen by its own encoder. So no number of ours stands beside one of the "
        "paper's: where it has a table on the same question, compare the pattern."
    )


def _sets(suite: Suite, zero_shot: Mapping[str, float]) -> Table:
    """With the accuracy the sets begin from, where it is known."""
    table = sets_table(suite)
    if not zero_shot:
        return table
    known = [zero_shot.get(member.name) for member in suite.members]
    rows = [
        replace(row, cells=(*row.cells, None if accuracy is None else Value(accuracy)))
        for row, accuracy in zip(table.rows, known, strict=True)
    ]
    return replace(table, columns=(*table.columns, Column("zero-shot accuracy")), rows=tuple(rows))


def _chapter(chapter: Chapter, figures: Mapping[str, dict[str, Any] | None]) -> dict[str, Any]:
    experiment = chapter.experiment
    return {
        "name": experiment.name,
        "title": harmless(experiment.title),
        "question": prose(experiment.question),
        "where": harmless(experiment.where),
        "blocks": list(_blocks(chapter, figures)),
        "failed": [harmless(failed) for failed in chapter.failed],
        "seconds": written(chapter.seconds, "seconds") if chapter.seconds else "",
    }


def _blocks(chapter: Chapter, figures: Mapping[str, dict[str, Any] | None]) -> Iterator[dict[str, Any]]:
    """Findings in their order; figures that follow each other together, to stand side by side where there is room."""
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
            yield {"kind": "table", **_table(f"{chapter.experiment.name}-{finding.name}", finding)}
    if row:
        yield {"kind": "figures", "figures": row}


def _table(name: str, table: Table) -> dict[str, Any]:
    made: Grid = grid(table)
    return {
        "id": name,
        "title": harmless(table.title),
        "grid": made,
        "units": [UNITS.get(column.unit, "") for column in made.columns],
        "notes": [prose(note) for note in table.notes],
        "reference": table.reference,
        "narrow": all(len(row.cells[0].text) <= NARROW for row in made.rows if row.cells),
    }
