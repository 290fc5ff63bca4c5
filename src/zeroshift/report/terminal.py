"""A table in the width of a terminal: numbers are never cut, and what is hidden is named.

Where a table is too wide, these are tried in turn:

1. ranges are left out;
2. columns with a `drop_order` are hidden, and named below the table;
3. where no column may be hidden, the columns are spread over several tables;
4. every row is printed as a list, one line per column.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import RenderableType
from rich.table import Table as RichTable
from rich.text import Text

from zeroshift.report.tables import ReportCell, ReportColumn, ReportTable

__all__ = ["terminal_parts"]

EDGES, GAP = 2, 2
"""Characters at the two sides of a table, and between two columns."""

LONGEST_WORD = 20
"""Longer words may be broken over two lines, unless their column `is_whole`."""


class _Widths(NamedTuple):
    """Characters that a column, or a table, takes."""

    least: int
    """Narrower, a number or a word would be broken."""
    preferred: int
    """Narrower, columns are hidden."""
    most: int
    """Wider tables would only have more spaces."""


def terminal_parts(table: ReportTable, width: int) -> Iterator[RenderableType]:
    """Title, table or tables, and notes, all of them at most `width` characters wide."""
    if table.title:
        yield Text(table.title, style="bold")
    parts = _fit(table, width)
    yield from (_rich_table(part, width) for part in parts)
    if not parts:
        yield from _as_list(table)
    shown = [column.key for column in (parts or [table])[0].columns]
    notes = []
    hidden = [column.title for column in table.columns if column.key not in shown] if len(parts) == 1 else []
    if hidden:
        notes.append(f"No room for {', '.join(hidden)}: widen the terminal.")
    if parts and table.has_ranges and not parts[0].has_ranges:
        notes.append("Ranges are shown in a wider terminal.")
    if table.legend is not None:
        notes.append(table.legend(shown))
    if text := " ".join(filter(None, [*notes, *table.details, *table.notes])):
        yield Text(text, style="dim")


def _fit(table: ReportTable, width: int) -> list[ReportTable]:
    """The table as it fits: whole, without some columns, or in parts; empty where not even these fit."""
    if _table_widths(table).preferred <= width:
        return [table]
    plain = _without_ranges(table)
    orders = sorted({column.drop_order for column in plain.columns} - {0})
    for n_hidden in range(len(orders) + 1):
        hidden = orders[:n_hidden]
        kept = plain.select([k for k, column in enumerate(plain.columns) if column.drop_order not in hidden])
        widths = _table_widths(kept)
        if (widths.least if n_hidden == len(orders) else widths.preferred) <= width:
            return [kept]
    return [] if orders else _spread_columns(plain, width)


def _without_ranges(table: ReportTable) -> ReportTable:
    rows = (replace(row, cells=tuple(replace(cell, range_text="") for cell in row.cells)) for row in table.rows)
    return replace(table, rows=tuple(rows))


def _spread_columns(table: ReportTable, width: int) -> list[ReportTable]:
    """As few tables as possible, the first columns repeated in each; empty where one column is too wide by itself.

    Published numbers stay next to the column they belong to.
    """
    repeated = list(range(table.n_repeated))
    parts: list[list[int]] = []
    for place in range(table.n_repeated, len(table.columns)):
        if table.columns[place].is_reference:
            continue
        has_reference = place + 1 < len(table.columns) and table.columns[place + 1].is_reference
        added = [place, place + 1] if has_reference else [place]
        if parts and _table_widths(table.select([*parts[-1], *added])).least <= width:
            parts[-1] += added
        else:
            parts.append([*repeated, *added])
    tables = [table.select(places) for places in parts]
    return tables if all(_table_widths(part).least <= width for part in tables) else []


def _table_widths(table: ReportTable) -> _Widths:
    columns = _column_widths(table)
    return _Widths(*(EDGES - GAP + sum(width + GAP for width in widths) for widths in zip(*columns, strict=True)))


def _column_widths(table: ReportTable) -> list[_Widths]:
    found = []
    for place, column in enumerate(table.columns):
        cells = [row.cells[place] for row in table.rows]
        title = column.title if table.has_header else ""
        longest = max(cell_len(text) for text in (title, *map(str, cells)))
        if column.is_whole:
            found.append(_Widths(longest, longest, longest))
            continue
        wrapped = [title, *(str(cell) for cell in cells if not cell.is_number)]
        # The name of a group is in the first column. It wraps, and does not make the column wider.
        wrapped += [row.group for row in table.rows] if place == 0 else []
        words = (min(LONGEST_WORD, cell_len(word)) for text in wrapped for word in text.split())
        least = max([*words, *(cell_len(str(cell)) for cell in cells if cell.is_number)], default=0)
        preferred = max(least, min(column.preferred_width, longest))
        found.append(_Widths(least, preferred, max(least, longest)))
    return found


def _shared_widths(table: ReportTable, width: int) -> list[int]:
    """The width of each column: what it needs, and an equal share of the rest; short columns are served first."""
    columns = _column_widths(table)
    widths = [column.least for column in columns]
    spare = max(0, width - _table_widths(table).least)
    by_need = sorted(range(len(columns)), key=lambda k: columns[k].most - columns[k].least)
    for n_served, k in enumerate(by_need):
        added = min(columns[k].most - columns[k].least, spare // (len(columns) - n_served))
        widths[k] += added
        spare -= added
    return widths


def _rich_table(table: ReportTable, width: int) -> RichTable:
    rich = RichTable(
        box=SIMPLE_HEAD if table.has_header else None,
        show_header=table.has_header,
        pad_edge=False,
        header_style="dim",
        padding=(0, GAP - 1 if table.has_header else GAP, 0, 0),
    )
    for column, share in zip(table.columns, _shared_widths(table, width), strict=True):
        justify = "right" if column.is_right else "left"
        rich.add_column(Text(column.title), justify=justify, width=share, overflow="fold")  # type: ignore[arg-type]
    for row in table.rows:
        if row.starts_group:
            rich.add_section()
            if row.group:
                rich.add_row(Text(row.group, style="dim italic"))
        cells = [_cell_text(cell, column) for cell, column in zip(row.cells, table.columns, strict=True)]
        rich.add_row(*cells, style="bold" if row.is_strong else row.style)
    return rich


def _as_list(table: ReportTable) -> Iterator[Text]:
    for row in table.rows:
        if row.starts_group and row.group:
            yield Text(row.group, style="dim italic")
        for cell, column in zip(row.cells, table.columns, strict=True):
            if str(cell):
                yield Text(f"{column.title}: ", style="dim") + _cell_text(cell, column)
        yield Text("")


def _cell_text(cell: ReportCell, column: ReportColumn) -> Text:
    styles = [cell.style or column.style, "bold" if cell.is_best else "", "dim" if column.is_reference else ""]
    styles += [_sign_colour(cell.text)] if column.is_signed else []
    return Text.assemble(
        (cell.text, " ".join(filter(None, styles))),
        (f" ({cell.change})" if cell.change else "", _sign_colour(cell.change)),
        (f" ({cell.range_text})" if cell.range_text else "", "dim"),
    )


def _sign_colour(text: str) -> str:
    return {"+": "green", "-": "red"}.get(text[:1], "")
