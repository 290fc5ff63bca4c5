"""What the files of findings are called."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from zeroshift.experiments import Chapter
from zeroshift.experiments._shared.findings import Cell, Column, Finding, Remark, Table, Unit, Value

__all__ = [
    "Grid",
    "GridCell",
    "GridColumn",
    "GridRow",
    "folder_for",
    "full_name",
    "grid",
    "harmless",
    "named_findings",
    "written",
]

WORD = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")


def full_name(chapter: Chapter, finding: Finding) -> str:
    """The name of a finding among those of all experiments: "bank-size-sweep"."""
    return f"{chapter.experiment.name}-{getattr(finding, 'name', 'remark')}"


def named_findings(chapters: Sequence[Chapter]) -> Iterator[tuple[str, Chapter, Finding]]:
    """(full name, chapter, finding) of all that have one: no remarks. No two are called the same."""
    taken: set[str] = set()
    for chapter in chapters:
        for finding in chapter.findings:
            if isinstance(finding, Remark):
                continue
            name = full_name(chapter, finding)
            if not WORD.fullmatch(name):
                raise ValueError(
                    f"a finding is called {name!r}, by which no file can be named. "
                    "Fix: lower-case letters, digits and single hyphens only."
                )
            if name in taken:
                raise ValueError(f"two findings are called {name!r}. Fix: give one of them another name.")
            taken.add(name)
            yield name, chapter, finding


def folder_for(path: str | os.PathLike[str]) -> Path:
    """The folder, made where it does not exist."""
    folder = Path(path)
    if folder.exists() and not folder.is_dir():
        raise NotADirectoryError(f"{path} is a file; a folder is needed, for one file a table. Fix: name another.")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


# A table as strings: the one place where a finding's numbers are written, so that every format says the same.


DECIMALS, PAPER_DECIMALS = 1, 2
"""Of percentages and points; as many as the paper prints where its numbers stand beside ours."""

SIGNIFICANT = 3
PAPER = "paper"


@dataclass(frozen=True)
class GridCell:
    """What stands in one field; `text` is empty where there is nothing."""

    text: str = ""
    spread: str = ""
    """How far the runs reach, to be written small beside `text`: "77.9 to 79.0"."""
    best: bool = False
    number: bool = False
    """Whether it is a number, to be lined up on the right, or words."""

    def __str__(self) -> str:
        return f"{self.text} ({self.spread})" if self.spread else self.text


@dataclass(frozen=True)
class GridColumn:
    title: str
    detail: str = ""
    unit: Unit = "text"
    paper: bool = False
    """Whether it holds what the paper printed for the column before it."""

    @property
    def right(self) -> bool:
        """Whether it is lined up on the right."""
        return self.unit != "text"


@dataclass(frozen=True)
class GridRow:
    cells: tuple[GridCell, ...]
    group: str = ""
    strong: bool = False
    begins: bool = False
    """Whether a group begins here: its name, or a rule where it has none, goes before the row."""


@dataclass(frozen=True)
class Grid:
    columns: tuple[GridColumn, ...]
    rows: tuple[GridRow, ...]

    @property
    def spreads(self) -> bool:
        """Whether any field has a spread."""
        return any(cell.spread for row in self.rows for cell in row.cells)

    @property
    def details(self) -> list[str]:
        """What belongs under the titles of columns, as sentences for formats that have no room there."""
        return [f"{column.title} ({column.detail})." for column in self.columns if column.detail]


def grid(table: Table) -> Grid:
    """All fields as they are written; after each column that has numbers of the paper, a column of these.

    >>> from zeroshift.experiments._shared.findings import Row
    >>> columns = (Column("method", "text"), Column("accuracy"))
    >>> made = grid(Table("t", "T", columns, (Row(("zero-shot", Value(0.785, 0.779, 0.79))),)))
    >>> [str(cell) for cell in made.rows[0].cells]
    ['zero-shot', '78.5 (77.9 to 79.0)']
    >>> made = grid(Table("t", "T", columns, (Row(("zero-shot", Value(0.785, paper=0.6873))),)))
    >>> [column.title for column in made.columns], [str(cell) for cell in made.rows[0].cells]
    (['method', 'accuracy', 'paper'], ['zero-shot', '78.50', '68.73'])
    """
    for row in table.rows:
        if len(row.cells) != len(table.columns):
            raise ValueError(
                f"table {table.name!r}: the row {row.cells[:1]} has {len(row.cells)} cells; the table has "
                f"{len(table.columns)} columns. Fix: a cell for each column, None where there is nothing."
            )
    columns: list[GridColumn] = []
    lines: list[list[GridCell]] = [[] for _ in table.rows]
    for place, column in enumerate(table.columns):
        cells = [row.cells[place] for row in table.rows]
        papers = [cell.paper if isinstance(cell, Value) else None for cell in cells]
        beside = any(paper is not None for paper in papers)
        decimals = PAPER_DECIMALS if beside or table.reference else DECIMALS
        columns.append(GridColumn(harmless(column.title), harmless(column.detail), column.unit))
        columns += [GridColumn(PAPER, "", column.unit, paper=True)] if beside else []
        for line, cell, paper in zip(lines, cells, papers, strict=True):
            line.append(_cell(cell, column, decimals))
            if beside:
                line.append(GridCell() if paper is None else _number(paper, column.unit, decimals))
    groups = [harmless(row.group) for row in table.rows]
    return Grid(
        tuple(columns),
        tuple(
            GridRow(tuple(line), group, row.strong, group != before)
            for row, line, group, before in zip(table.rows, lines, groups, ["", *groups], strict=False)
        ),
    )


def _cell(cell: Cell, column: Column, decimals: int) -> GridCell:
    if cell is None:
        return GridCell()
    if isinstance(cell, str):
        return GridCell(harmless(cell))
    low, high = (None if end is None else written(end, column.unit, decimals) for end in (cell.low, cell.high))
    spread = f"{low} to {high}" if low and high else f"from {low}" if low else f"up to {high}" if high else ""
    return GridCell(written(cell.value, column.unit, decimals), spread, cell.best, number=True)


def _number(value: float, unit: Unit, decimals: int) -> GridCell:
    return GridCell(written(value, unit, decimals), number=True)


def written(value: float, unit: Unit = "number", decimals: int = DECIMALS) -> str:
    """A number in its unit. One that rounds to nothing has no sign; points that do not always have one.

    >>> written(0.7853, "percent"), written(4.96, "points"), written(-0.31, "points"), written(-0.01, "points")
    ('78.5', '+5.0', '-0.3', '0.0')
    >>> written(1234.0, "count"), written(0.01234), written(1234.5), written(0.00001234), written(float("nan"))
    ('1,234', '0.0123', '1,234', '1.23e-5', 'n/a')
    >>> written(0.0000123, "seconds"), written(0.0123, "seconds"), written(75.0, "seconds"), written(5400.0, "seconds")
    ('12.3 µs', '12.3 ms', '75.0 s', '1.5 h')
    >>> written(3_450_000, "bytes"), written(123_456_789, "bytes"), written(12_345, "bytes")
    ('3.5 MB', '123 MB', '0.012 MB')
    """
    if math.isnan(value):
        return "n/a"
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    value = float(value) or 0.0  # a zero below zero is a zero
    if unit == "percent":
        return _fixed(100 * value, decimals)
    if unit == "points":
        fixed = _fixed(value, decimals)
        return f"+{fixed}" if value > 0 and fixed.strip("0.") else fixed
    if unit == "count":
        return _fixed(value, 0 if float(value).is_integer() else 1)
    if unit == "seconds":
        return _seconds(value)
    if unit == "bytes":
        return f"{_megabytes(value / 1e6 or 0.0)} MB"
    return _significant(value)


def _fixed(value: float, decimals: int) -> str:
    text = f"{value:,.{decimals}f}"
    return text.lstrip("-") if not text.strip("-0.") else text


def _significant(value: float) -> str:
    if value and not 1e-4 <= abs(value) < 1e9:
        return re.sub(r"e([+-])0*", lambda e: "e-" if e[1] == "-" else "e", f"{value:.{SIGNIFICANT}g}")
    if abs(value) >= 10 ** (SIGNIFICANT - 1):
        return _fixed(value, 0)
    return f"{value:.{SIGNIFICANT}g}"


def _seconds(value: float) -> str:
    size = abs(value)
    if size >= 3600:
        return f"{value / 3600:,.1f} h"
    if size >= 120:
        return f"{value / 60:.1f} min"
    if size >= 1:
        return f"{value:.1f} s"
    if size >= 1e-3:
        return f"{_significant(1e3 * value)} ms"
    return f"{_significant(1e6 * value)} µs" if value else "0 s"


def _megabytes(value: float) -> str:
    if abs(value) >= 10:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 0.1 or not value else f"{value:.2g}"


UNSAFE = re.compile(
    "[\x00-\x08\x0e-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff\ufffe\uffff\ud800-\udfff]"
)
"""Control characters, marks that turn the direction of writing, and halves of characters no file can hold."""


def harmless(text: str) -> str:
    """Words on one line, without what moves a terminal's cursor or turns the direction of what follows.

    >>> harmless("a\\x1b[31m red\\ncat")
    'a\N{REPLACEMENT CHARACTER}[31m red cat'
    """
    return UNSAFE.sub("\N{REPLACEMENT CHARACTER}", re.sub(r"\s+", " ", text)).strip()
