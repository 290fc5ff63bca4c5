"""Means that the paper prints and that are not the means of the numbers it prints beside them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from zeroshift.experiments.parts.findings import Table, Value
from zeroshift.experiments.parts.paper import PaperTable, paper_table
from zeroshift.experiments.parts.tasks import PAPER_COLUMNS

__all__ = ["MEANS_DIFFER_BY", "mean_notes", "noted"]

MEANS_DIFFER_BY = 0.02
"""Percentage points that rounding explains, of numbers printed with two digits."""

REPEATED = {"method": "ADAPT", "protocol": "transductive"}
"""The row of Table 3 whose mean the paper repeats in other tables."""


def mean_notes(table: PaperTable) -> tuple[str, ...]:
    """A sentence for each row of a main table whose printed mean is another.

    >>> mean_notes(paper_table("corruption_vitb16"))
    ('The mean printed for ADAPT (transductive), 30.29, is not that of its 15 printed numbers, which is 30.43.',)
    """
    columns = [column for column in table.columns if not column.endswith("Avg.")]
    return tuple(
        f"The mean printed for {row.method} ({row.protocol}), {printed:.2f}, is not that of its {len(columns)} printed "
        f"numbers, which is {mean:.2f}."
        for row in table.rows
        if (printed := row.number("Avg.")) is not None
        and None not in (numbers := [row.number(column) for column in columns])
        and abs(printed - (mean := float(np.mean([n for n in numbers if n is not None])))) > MEANS_DIFFER_BY
    )


def noted(table: Table) -> Table:
    """The same table, with a note where the mean of Table 3 that is not one stands in it, as ours or as the paper's."""
    printed = paper_table("corruption_vitb16")
    number = printed.number_at("Avg.", **REPEATED)
    if number is None or not any(math.isclose(n, number / 100, abs_tol=1e-9) for n in _printed(table)):
        return table
    (said,) = (note for note in mean_notes(printed) if f"{number:.2f}" in note)
    return replace(table, notes=(*table.notes, f"{printed.title}: {said[0].lower()}{said[1:]}"))


def _printed(table: Table) -> Iterator[float]:
    """The paper's numbers in a table, but for those of a single set: one of them happens to be the same."""
    for row in table.rows:
        for column, cell in zip(table.columns, row.cells, strict=True):
            if isinstance(cell, Value) and column.title not in PAPER_COLUMNS.values():
                number = cell.value if table.reference else cell.paper
                if number is not None:
                    yield number
