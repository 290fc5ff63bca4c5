"""Helpers that read the findings of an experiment."""

from __future__ import annotations

from zeroshift.experiments import Chapter
from zeroshift.experiments._shared.findings import Remark, Table


def found(chapter: Chapter, name: str):
    """The finding of that name."""
    return next(finding for finding in chapter.findings if getattr(finding, "name", None) == name)


def column(table: Table, title: str) -> dict[str, object]:
    """The cells of the column whose title starts so, by the label of the row."""
    (place,) = [i for i, col in enumerate(table.columns) if col.title.startswith(title)]
    return {str(row.cells[0]): row.cells[place] for row in table.rows}


def remarks(chapter: Chapter, kind: str | None = None) -> list[str]:
    return [f.text for f in chapter.findings if isinstance(f, Remark) and kind in (None, f.kind)]
