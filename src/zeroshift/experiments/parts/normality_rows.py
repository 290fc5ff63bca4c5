"""Normality tests of many classes summed up: sets pooled, and a row for each test and dimension."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from zeroshift.experiments.parts.findings import Cell, Row, Value
from zeroshift.experiments.parts.normality_tests import DIMENSIONS, TESTS
from zeroshift.experiments.parts.paper import PaperRow, paper_table

__all__ = ["Part", "counts_of", "pooled", "rows_of"]

PAPERS_VIEW = "coordinates"
"""The paper's random views: some of the feature dimensions."""

PAPER_NAMES = {"Henze-Zirkler": "Henze–Zirkler", "Shapiro-Wilk": "Shapiro-Wilk"}
"""What the paper's table calls the tests."""

Records = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Part:
    """Sets whose classes are pooled: the paper's ImageNet alone, and all others."""

    name: str
    """What they are called where there is another part; empty where there is none."""
    printed: bool
    """Whether the paper's numbers are of just this."""
    records: Mapping[str, Records]
    """By view, and of normal samples."""


def rows_of(kind: str, part: Part) -> list[Row]:
    """A row for each test and dimension."""
    records, normal = part.records[kind], part.records["normal"]
    rows = []
    for test in TESTS:
        for d in DIMENSIONS:
            printed = _printed(test, d) if part.printed and kind == PAPERS_VIEW else None
            above = None if printed is None else printed.number("Frequency of p>0.05 (%)")
            average = None if printed is None else printed.number("Average p-value")
            cells: tuple[Cell, ...] = (
                f"d = {d}",
                pooled(records, test, d, "above", None if above is None else above / 100),
                pooled(records, test, d, "mean_p", average),
                pooled(normal, test, d, "mean_p"),
                pooled(records, test, d, "rejected"),
                pooled(normal, test, d, "rejected"),
            )
            rows.append(Row(cells, f"{test}, {part.name}" if part.name else test))
    return rows


def pooled(records: Records, test: str, d: int, field: str, paper: float | None = None) -> Value | None:
    """The mean over all classes of all sets, and the least and greatest of a set; None where no class was tested."""
    rows = [row for r in records for row in r["tests"] if row["test"] == test and row["dimension"] == d]
    rows = [row for row in rows if row["classes"]]
    if not rows:
        return None
    values = [float(row[field]) for row in rows]
    mean = float(np.average(values, weights=[row["classes"] for row in rows]))
    one = len(values) == 1
    return Value(mean, None if one else min(values), None if one else max(values), paper)


def counts_of(records: Records) -> tuple[int, int]:
    """Classes tested and left out in the most dimensions."""
    test = next(iter(TESTS))
    rows = [row for r in records for row in r["tests"] if row["test"] == test and row["dimension"] == DIMENSIONS[-1]]
    return sum(row["classes"] for row in rows), sum(row["left_out"] for row in rows)


def _printed(test: str, d: int) -> PaperRow | None:
    return paper_table("normality_tests").row(method=PAPER_NAMES[test], label=f"Low-dim {d}")
