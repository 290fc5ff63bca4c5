"""The findings of an experiment as plain data: tables, figures and remarks. `zeroshift.report` renders them."""

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
"""The format of a column. `percent` holds fractions (0.785 is shown as 78.5), `points` percentage points (+4.9)."""


@dataclass(frozen=True)
class Value:
    """A measured number, its range over runs, and the paper's number for the same data."""

    value: float
    low: float | None = None
    high: float | None = None
    """Minimum and maximum over runs, or the ends of an interval; None for a single run."""
    paper: float | None = None
    """In the unit of the column; None if the paper has no number on the same data."""
    best: bool = False
    """Whether it is the best of its column, or of its group in the column."""


Cell = Value | str | None
"""A number, text, or nothing."""


@dataclass(frozen=True)
class Column:
    title: str
    unit: Unit = "percent"
    detail: str = ""
    """Small text below the title, such as "15 samples, 10 classes"."""


@dataclass(frozen=True)
class Row:
    """A row; `cells` are in the order of the columns, the first is the label."""

    cells: tuple[Cell, ...]
    group: str = ""
    """Rows of one group are shown together under its name, such as "online"."""
    strong: bool = False
    """Whether the row is highlighted."""


@dataclass(frozen=True)
class Table:
    """A table of numbers."""

    name: str
    """Lower-case letters and hyphens, unique among the findings of an experiment; used for file names."""
    title: str
    columns: tuple[Column, ...]
    """The first column holds the labels of the rows, as text."""
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()
    """Sentences below the table."""
    reference: bool = False
    """Whether this is a table of the paper, shown for comparison because ours ran on other data."""


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
    """Name in the registry, which determines the colour; empty for lines that are not a method."""


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
    """Position of the default, drawn as a thin vertical line."""
    steps: bool = False
    """Whether to mark each point with a dot."""


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
    """A matrix shown in colour."""

    title: str
    values: np.ndarray
    row_labels: tuple[str, ...] = ()
    column_labels: tuple[str, ...] = ()


@dataclass(frozen=True)
class HeatMaps:
    """Matrices side by side with one colour scale."""

    name: str
    title: str
    maps: tuple[HeatMap, ...]
    caption: str = ""
    unit: str = ""
    """Meaning of the colours, such as "covariance"."""
    diverging: bool = False
    """Whether the colour scale is centred at zero."""
    written: bool = False
    """Whether the numbers are written into the cells."""


@dataclass(frozen=True)
class ReliabilityPanel:
    label: str
    confidence: tuple[float, ...]
    """Mean confidence of each non-empty bin."""
    accuracy: tuple[float, ...]
    share: tuple[float, ...]
    """Fraction of all samples in each of these bins."""
    error: float
    """Expected calibration error."""
    method: str = ""


@dataclass(frozen=True)
class Reliability:
    """Reliability diagrams: accuracy against confidence."""

    name: str
    title: str
    panels: tuple[ReliabilityPanel, ...]
    caption: str = ""


@dataclass(frozen=True)
class Confusion:
    """Confusion matrices before and after adaptation."""

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
    """The decision regions of one method in a plane."""

    label: str
    classes: np.ndarray
    """(H, W) predicted class of each grid cell, the first row at the bottom."""
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
    """A sentence about the results."""

    text: str
    kind: Literal["note", "data", "warning"] = "note"
    """`data`: ours ran on other data than the paper's. `warning`: something failed or contradicts the paper."""
    claim: Literal["", "confirmed", "not confirmed", "undecided"] = ""
    """Whether a claim of the paper holds here; empty for remarks that are not about a claim."""


Finding = Table | Lines | Bars | HeatMaps | Reliability | Confusion | Regions | Remark
