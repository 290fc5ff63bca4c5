"""What an experiment finds, as plain data: tables, figures and remarks. How they look is for `zeroshift.report`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

__all__ = [
    "Bar",
    "Bars",
    "Column",
    "Confusion",
    "Finding",
    "HeatMap",
    "HeatMaps",
    "Lines",
    "Region",
    "Regions",
    "Reliability",
    "ReliabilityPanel",
    "Remark",
    "Row",
    "Series",
    "Table",
    "Unit",
    "Value",
]

Unit = Literal["text", "percent", "points", "number", "count", "seconds", "bytes"]
"""How a column is written. `percent` holds fractions (0.785 is 78.5), `points` holds percentage points (+4.9)."""


@dataclass(frozen=True)
class Value:
    """A number we measured, how far its runs reach, and what the paper printed for the same data."""

    value: float
    low: float | None = None
    high: float | None = None
    """The least and the greatest of several runs, or the ends of an interval; None where there was one run."""
    paper: float | None = None
    """In the unit of the column; None where the paper has no number on the same data."""
    best: bool = False
    """Whether it is the best of its column within its group."""


Cell = Value | str | None
"""A number, words, or nothing."""


@dataclass(frozen=True)
class Column:
    title: str
    unit: Unit = "percent"
    detail: str = ""
    """What stands under the title in small: "15 samples, 10 classes"."""


@dataclass(frozen=True)
class Row:
    """One line; `cells` are in the order of the table's columns, the first being the label."""

    cells: tuple[Cell, ...]
    group: str = ""
    """Rows of one group stand together under its name: "online", "transductive"."""
    strong: bool = False
    """Whether it is the row the table is about."""


@dataclass(frozen=True)
class Table:
    """Numbers in the paper's shape."""

    name: str
    """A word of lower-case letters and hyphens, different for all findings of an experiment: files are named by it."""
    title: str
    columns: tuple[Column, ...]
    """The first column is the label of the row, in words."""
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()
    """Sentences that stand under the table."""
    reference: bool = False
    """Whether it is the paper's own table, shown for its shape alone because ours ran on other data."""


@dataclass(frozen=True)
class Series:
    """One line of a figure."""

    label: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    low: tuple[float, ...] | None = None
    high: tuple[float, ...] | None = None
    """A band around the line."""
    method: str = ""
    """Name in the registry, for its colour; empty where the line is no method."""


@dataclass(frozen=True)
class Lines:
    """Curves: a sweep, or accuracy over a stream."""

    name: str
    title: str
    x_label: str
    y_label: str
    series: tuple[Series, ...]
    caption: str = ""
    log_x: bool = False
    marked_x: float | None = None
    """Where the default stands, drawn as a thin vertical line."""
    steps: bool = False
    """Whether the points are few and each is marked by a dot."""


@dataclass(frozen=True)
class Bar:
    label: str
    value: float
    low: float | None = None
    high: float | None = None
    """The ends of its interval."""
    group: str = ""
    method: str = ""


@dataclass(frozen=True)
class Bars:
    """Horizontal bars from zero, each with its interval."""

    name: str
    title: str
    x_label: str
    bars: tuple[Bar, ...]
    caption: str = ""


@dataclass(frozen=True)
class HeatMap:
    """One matrix in colour."""

    title: str
    values: np.ndarray
    row_labels: tuple[str, ...] = ()
    column_labels: tuple[str, ...] = ()


@dataclass(frozen=True)
class HeatMaps:
    """Matrices side by side on one scale of colours."""

    name: str
    title: str
    maps: tuple[HeatMap, ...]
    caption: str = ""
    unit: str = ""
    """What the colours mean: "covariance"."""
    diverging: bool = False
    """Whether zero is the middle of the scale."""
    written: bool = False
    """Whether each field also shows its number."""


@dataclass(frozen=True)
class ReliabilityPanel:
    label: str
    confidence: tuple[float, ...]
    """Mean confidence of each bin that holds samples."""
    accuracy: tuple[float, ...]
    share: tuple[float, ...]
    """Fraction of all samples in each of these bins."""
    error: float
    """Expected calibration error."""
    method: str = ""


@dataclass(frozen=True)
class Reliability:
    """Accuracy against confidence; on the diagonal probabilities mean what they say."""

    name: str
    title: str
    panels: tuple[ReliabilityPanel, ...]
    caption: str = ""


@dataclass(frozen=True)
class Confusion:
    """Which classes are taken for which, before and after."""

    name: str
    title: str
    class_names: tuple[str, ...]
    before: np.ndarray
    """(K, K) fractions of each true class (row) by predicted class (column)."""
    after: np.ndarray
    before_label: str = "zero-shot"
    after_label: str = "adapted"
    caption: str = ""


@dataclass(frozen=True)
class Region:
    """The plane as one method divides it."""

    label: str
    classes: np.ndarray
    """(H, W) predicted class of each field of a grid, the first row at the bottom."""
    accuracy: float
    method: str = ""


@dataclass(frozen=True)
class Regions:
    """Decision regions of several methods over the same plane and points."""

    name: str
    title: str
    regions: tuple[Region, ...]
    extent: tuple[float, float, float, float]
    """Left, right, bottom, top."""
    points: np.ndarray
    """(n, 2)."""
    labels: np.ndarray
    """(n,) true classes."""
    class_names: tuple[str, ...]
    anchors: np.ndarray | None = None
    """(K, 2) the text prototypes."""
    caption: str = ""


@dataclass(frozen=True)
class Remark:
    """A sentence the reader must have read."""

    text: str
    kind: Literal["note", "data", "warning"] = "note"
    """`data` says that ours ran on other data than the paper's; `warning` that something came out badly."""


Finding = Table | Lines | Bars | HeatMaps | Reliability | Confusion | Regions | Remark
