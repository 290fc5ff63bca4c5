"""The best numbers of a table, marked as papers do in bold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from zeroshift.experiments.parts.findings import Cell, Row, Value

__all__ = ["ROUNDING", "with_best"]

ROUNDING = 1e-9
"""Means that differ by less are the same."""


def with_best(rows: Sequence[Row], *, by_group: bool = False) -> tuple[Row, ...]:
    """Mark the greatest number of each column, of the whole table or of each group; a tie marks both.

    Where there is only one number nothing is compared, and nothing marked.

    >>> rows = [Row(("a", Value(0.5)), "online"), Row(("b", Value(0.7)), "online"), Row(("c", Value(0.6)), "other")]
    >>> [row.cells[1].best for row in with_best(rows)]
    [False, True, False]
    >>> [row.cells[1].best for row in with_best(rows, by_group=True)]
    [False, True, False]
    """
    compared: dict[tuple[str, int], list[float]] = {}
    for row in rows:
        for place, cell in enumerate(row.cells):
            if isinstance(cell, Value):
                compared.setdefault((row.group if by_group else "", place), []).append(cell.value)

    def marked(cell: Cell, key: tuple[str, int]) -> Cell:
        if not isinstance(cell, Value):
            return cell
        return replace(cell, best=len(compared[key]) > 1 and cell.value >= max(compared[key]) - ROUNDING)

    return tuple(
        replace(row, cells=tuple(marked(cell, (row.group if by_group else "", i)) for i, cell in enumerate(row.cells)))
        for row in rows
    )
