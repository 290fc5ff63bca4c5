"""What experiments found, for the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from zeroshift.experiments import Chapter
from zeroshift.experiments._shared.findings import Remark, Table
from zeroshift.report.experiments.tables import Grid, GridCell, GridColumn, GridRow, grid, harmless

__all__ = ["print_chapters"]

EDGES, GAP = 2, 3
"""Columns of the terminal a table takes at its sides, and between two of its own."""

LONGEST_WORD = 24
"""Words longer than this, as only names are, may be broken over two lines."""

SAID = {"note": ("", ""), "data": ("Data: ", "cyan"), "warning": ("Warning: ", "yellow")}
"""How a remark of each kind begins, and its colour."""


def print_chapters(console: Console, chapters: Sequence[Chapter], *, width: int, paper: bool = False) -> None:
    """Every chapter, no wider than `width`; the paper's own tables only with `paper`.

    Where a table is too wide, the spreads of its numbers are left out; then its columns stand in several tables one
    below another; then each row is told field by field. No number is ever cut.
    """
    for chapter in chapters:
        _heading(console, chapter, width)
        pictures = []
        for finding in chapter.findings:
            if isinstance(finding, Remark):
                begin, colour = SAID[finding.kind]
                _say(console, Text.assemble((begin, f"bold {colour}"), (harmless(finding.text), colour)), width)
            elif not isinstance(finding, Table):
                pictures.append(harmless(finding.title))
            elif paper or not finding.reference:
                _print_table(console, finding, width)
        if pictures:
            _say(console, Text.assemble(("Pictures in the report: ", "dim"), "; ".join(pictures), "."), width)
        for failed in chapter.failed:
            _say(console, Text.assemble(("Failed: ", "bold red"), (harmless(failed), "red")), width)


def _heading(console: Console, chapter: Chapter, width: int) -> None:
    experiment = chapter.experiment
    where = f" ({harmless(experiment.where)} of the paper)" if experiment.where else ""
    console.print(Text.assemble((harmless(experiment.title), "bold"), (where, "dim")), width=width)
    _say(console, Text(harmless(experiment.question), style="italic"), width)


def _say(console: Console, text: Text, width: int) -> None:
    console.print(text, width=width)
    console.print()


def _print_table(console: Console, table: Table, width: int) -> None:
    made = grid(table)
    console.print(Text(harmless(table.title), style="bold"), width=width)
    spreads = _least(made, spreads=True) <= width
    parts = [made] if spreads else _parts(made, width)
    for part in parts:
        console.print(_rich(part, width, spreads=spreads), width=width)
    if not parts:
        for row in made.rows:
            _stacked(console, made.columns, row, width)
        console.print()
    elif made.spreads and not spreads:
        _say(console, Text("How far the numbers reach: in a wider terminal.", style="dim"), width)
    notes = " ".join([*made.details, *map(harmless, table.notes)])
    if notes:
        _say(console, Text(notes, style="dim"), width)


def _parts(made: Grid, width: int) -> list[Grid]:
    """The columns over as few tables as fit, each with the labels; none where not even one column fits beside them.

    What the paper printed stays beside the column it belongs to.
    """
    parts: list[list[int]] = []
    for place, column in enumerate(made.columns):
        if place == 0 or column.paper:
            continue
        paper = place + 1 < len(made.columns) and made.columns[place + 1].paper
        pair = [place, place + 1] if paper else [place]
        if parts and _least(_chosen(made, [*parts[-1], *pair]), spreads=False) <= width:
            parts[-1] += pair
        else:
            parts.append([0, *pair])
    grids = [_chosen(made, places) for places in parts]
    return grids if all(_least(part, spreads=False) <= width for part in grids) else []


def _chosen(made: Grid, places: Sequence[int]) -> Grid:
    rows = (replace(row, cells=tuple(row.cells[place] for place in places)) for row in made.rows)
    return Grid(tuple(made.columns[place] for place in places), tuple(rows))


def _rich(made: Grid, width: int, *, spreads: bool) -> RichTable:
    table = RichTable(box=SIMPLE_HEAD, pad_edge=False, header_style="dim")
    for place, share in enumerate(_shares(made, width, spreads=spreads)):
        column = made.columns[place]
        table.add_column(Text(column.title), justify="right" if column.right else "left", width=share, overflow="fold")
    for row in made.rows:
        if row.begins:
            table.add_section()
            if row.group:
                table.add_row(Text(row.group, style="dim italic"))
        cells = [_field(cell, column, spreads=spreads) for cell, column in zip(row.cells, made.columns, strict=True)]
        table.add_row(*cells, style="bold" if row.strong else "")
    return table


def _field(cell: GridCell, column: GridColumn, *, spreads: bool) -> Text:
    colour = {"+": "green", "-": "red"}.get(cell.text[:1], "") if column.unit == "points" and cell.number else ""
    style = f"{'bold ' if cell.best else ''}{'dim ' if column.paper else ''}{colour}".strip()
    spread = f" ({cell.spread})" if cell.spread and spreads else ""
    return Text.assemble((cell.text, style), (spread, "dim"))


def _stacked(console: Console, columns: Sequence[GridColumn], row: GridRow, width: int) -> None:
    """A row of a table that is too wide, told one field a line."""
    if row.begins:
        console.print(Text(row.group, style="dim italic"), width=width)
    console.print(Text(str(row.cells[0]), style="bold"), width=width)
    for cell, column in zip(row.cells[1:], columns[1:], strict=True):
        if cell.text:
            title = Text(f"  {column.title} ", style="dim")
            console.print(title + _field(cell, column, spreads=True), width=width)


def _least(made: Grid, *, spreads: bool) -> int:
    """How narrow a table can be without a number broken."""
    return EDGES - GAP + sum(least + GAP for least, _ in _limits(made, spreads=spreads))


def _limits(made: Grid, *, spreads: bool) -> list[tuple[int, int]]:
    """The least and the greatest sensible width of each column."""
    limits = []
    for place, column in enumerate(made.columns):
        cells = [row.cells[place] for row in made.rows]
        texts = [str(cell) if spreads else cell.text for cell in cells]
        numbers = [text for text, cell in zip(texts, cells, strict=True) if cell.number]
        words = [text for text, cell in zip(texts, cells, strict=True) if not cell.number]
        words += [column.title] + ([row.group for row in made.rows] if place == 0 else [])
        broken = max(min(LONGEST_WORD, cell_len(word)) for text in words for word in text.split() or [""])
        widest = max(map(cell_len, [*numbers, ""]))
        # A group's name stands in the first column and must not widen it: it may be long, and wraps.
        longest = max(map(cell_len, [*texts, column.title]))
        limits.append((max(broken, widest), max(broken, longest)))
    return limits


def _shares(made: Grid, width: int, *, spreads: bool) -> list[int]:
    """How wide each column is: what it needs, and of what is left the more the longer its cells are."""
    limits = _limits(made, spreads=spreads)
    wished = [most - least for least, most in limits]
    spare = width - _least(made, spreads=spreads)
    if spare >= sum(wished):
        return [most for _, most in limits]
    return [least + spare * wish // sum(wished) for (least, _), wish in zip(limits, wished, strict=True)]
