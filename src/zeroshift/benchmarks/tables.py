"""The results as tables for the terminal and for a Markdown page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from zeroshift.benchmarks.growth import AXIS_NAMES, furthest
from zeroshift.benchmarks.words import COLUMNS, duration, rows, title

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["LEGEND", "bench_tables", "growth_markdown", "growth_table", "markdown"]

LEGEND = (
    "sample: mean time of one, ~ where interpolated between sampled steps; p50, p99: of calls with one sample (the "
    "floor's: three products with K vectors); faster: times, than direct; floors: times the bare product N K d in "
    "float64, measured in the same run; MB: peak memory beyond input and output; error: largest difference of a "
    "probability or (relative) of a score to the definition's, on sampled rows. mixture: the anchored mixture, another "
    "method, one sample a call; mixture call: the stream in one call (error: to one by one); mixture set: transductive."
)

GROWTH_COLUMNS = ("engine", "over", "time of a sample")

LEAST_WIDTHS = {"engine": len("transductive"), "error": len("1e-10!")}

SHOWN = 6
"""Points of a curve in a table."""


def bench_tables(cells: Mapping[str, Any]) -> list[Table]:
    """A table for each cell, its floor first."""
    from rich.text import Text

    tables = []
    for cell in cells.values():
        table = _table(COLUMNS, left=1)
        table.title, table.title_justify = Text(title(cell), style="bold"), "left"
        for row in rows(cell):
            table.add_row(*row)
        tables.append(table)
    return tables


def growth_table(growth: Mapping[str, Any]) -> Table:
    """How the time of a sample grows with samples seen, K, d and N."""
    table = _table(GROWTH_COLUMNS, left=len(GROWTH_COLUMNS))
    for row in _growth_rows(growth):
        table.add_row(*row)
    return table


def markdown(cells: Mapping[str, Any]) -> str:
    lines = []
    for cell in cells.values():
        lines += [("" if place else title(cell), *row) for place, row in enumerate(rows(cell))]
    return _markdown(("features", *COLUMNS), lines)


def growth_markdown(growth: Mapping[str, Any]) -> str:
    return _markdown(GROWTH_COLUMNS, _growth_rows(growth))


def _growth_rows(growth: Mapping[str, Any]) -> list[tuple[str, ...]]:
    found: list[tuple[str, ...]] = []
    longest = furthest(growth["seen"])
    if longest is not None:
        for engine, curve in longest["engines"].items():
            found.append((engine, f"samples seen, {longest['title']}", _steps(_thinned(curve))))
    for axis, name in AXIS_NAMES.items():
        for line in growth[axis]:
            for engine, curve in line["engines"].items():
                found.append((engine, f"{name}, {line['title']}", _steps(curve)))
    return found


def _thinned(curve: list[list[float]]) -> list[list[float]]:
    if len(curve) <= SHOWN:
        return curve
    return [curve[round(i * (len(curve) - 1) / (SHOWN - 1))] for i in range(SHOWN)]


def _steps(curve: list[list[float]]) -> str:
    return ", ".join(f"{int(at)}: {duration(seconds)}" for at, seconds in curve)


def _table(columns: Sequence[str], left: int) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, pad_edge=False, header_style="dim", padding=(0, 1, 0, 0))
    for place, column in enumerate(columns):
        # rich shrinks even columns that do not wrap where the terminal is narrow; a least width it keeps.
        width = LEAST_WIDTHS.get(column)
        table.add_column(column, justify="left" if place < left else "right", overflow="fold", min_width=width)
    return table


def _markdown(columns: Sequence[str], lines: Sequence[tuple[str, ...]]) -> str:
    head = [f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}"]
    return "\n".join([*head, *(f"| {' | '.join(line)} |" for line in lines)])
