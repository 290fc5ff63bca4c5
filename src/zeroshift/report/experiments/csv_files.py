"""Tables and the data of figures as CSV, one file each: plain numbers at full precision."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterator, Sequence
from functools import singledispatch
from itertools import chain, count
from pathlib import Path

import numpy as np

from zeroshift.experiments import Chapter
from zeroshift.experiments._shared.findings import (
    Bars,
    Cell,
    Column,
    Confusion,
    Finding,
    HeatMaps,
    Lines,
    Regions,
    Reliability,
    Table,
    Value,
)
from zeroshift.files import atomic_path
from zeroshift.report.experiments.tables import folder_for, harmless, named_findings

__all__ = ["write_csv"]

Field = str | int | float | None
Sheet = list[list[Field]]
"""All lines of a file, the first being the heading."""

UNITS = {"percent": " (fraction)", "points": " (points)", "seconds": " (seconds)", "bytes": " (bytes)"}
"""What is said after the title of a column."""


def write_csv(folder: str | os.PathLike[str], chapters: Sequence[Chapter]) -> list[Path]:
    """EXPERIMENT-NAME.csv for each table and each figure that is one sheet; of a figure of several matrices, a file
    each, EXPERIMENT-NAME-1.csv and so on. Each file whole or not at all; files of these names are replaced."""
    sheets = [
        (f"{name}{ending}.csv", sheet)
        for name, _, finding in named_findings(chapters)
        for ending, sheet in _sheets(finding)
    ]
    names = [name for name, _ in sheets]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"two findings would be written to {twice[0]}. Fix: give one of them another name.")
    where = folder_for(folder)
    for name, sheet in sheets:
        with (
            atomic_path(where / name) as temporary,
            open(temporary, "w", encoding="utf-8", newline="") as handle,
        ):
            csv.writer(handle, lineterminator="\n").writerows([_safe(field) for field in line] for line in sheet)
    return [where / name for name in names]


def _safe(field: Field) -> Field:
    return harmless(field) if isinstance(field, str) else field


@singledispatch
def _sheets(finding: Finding) -> Iterator[tuple[str, Sheet]]:
    """(what its file's name ends with, sheet) of a finding."""
    raise TypeError(f"finding is {finding!r}, of which no file can be made. Fix: {Finding}.")


@_sheets.register
def _(finding: Table) -> Iterator[tuple[str, Sheet]]:
    """A column for the group; for each of the table's, its value, and its low, high and paper's where there are any."""
    columns: list[tuple[str, list[Field]]] = [("group", [row.group for row in finding.rows])]
    for place, column in enumerate(finding.columns):
        columns += _columns(column, [row.cells[place] for row in finding.rows])
    heading: list[Field] = []
    for title in (harmless(title) for title, _ in columns):
        # Two columns of one name could not be told apart by a program.
        numbered = (f"{title} {number}" for number in count(2))
        heading.append(next(name for name in chain([title], numbered) if name not in heading))
    yield "", [heading, *(list(line) for line in zip(*(fields for _, fields in columns), strict=True))]


def _columns(column: Column, cells: Sequence[Cell]) -> Iterator[tuple[str, list[Field]]]:
    title = f"{column.title}{UNITS.get(column.unit, '')}"
    yield title, [cell.value if isinstance(cell, Value) else cell for cell in cells]
    for part in ("low", "high", "paper"):
        parts = [getattr(cell, part) if isinstance(cell, Value) else None for cell in cells]
        if any(end is not None for end in parts):
            yield f"{title} {part}", parts


@_sheets.register
def _(finding: Lines) -> Iterator[tuple[str, Sheet]]:
    sheet: Sheet = [["series", "method", finding.x_label, finding.y_label, "low", "high"]]
    for series in finding.series:
        low, high = ((None,) * len(series.x) if end is None else end for end in (series.low, series.high))
        points = zip(series.x, series.y, low, high, strict=True)
        sheet += [[series.label, series.method, *point] for point in points]
    yield "", sheet


@_sheets.register
def _(finding: Bars) -> Iterator[tuple[str, Sheet]]:
    heading: list[Field] = ["group", "bar", "method", finding.x_label, "low", "high"]
    yield "", [heading, *([bar.group, bar.label, bar.method, bar.value, bar.low, bar.high] for bar in finding.bars)]


@_sheets.register
def _(finding: Reliability) -> Iterator[tuple[str, Sheet]]:
    sheet: Sheet = [["panel", "method", "confidence", "accuracy", "share", "calibration error"]]
    for panel in finding.panels:
        bins = zip(panel.confidence, panel.accuracy, panel.share, strict=True)
        sheet += [[panel.label, panel.method, *point, panel.error] for point in bins]
    yield "", sheet


@_sheets.register
def _(finding: HeatMaps) -> Iterator[tuple[str, Sheet]]:
    for number, heat_map in enumerate(finding.maps, start=1):
        yield f"-{number}", _matrix(heat_map.title, heat_map.values, heat_map.row_labels, heat_map.column_labels)


@_sheets.register
def _(finding: Confusion) -> Iterator[tuple[str, Sheet]]:
    names = finding.class_names
    yield "-before", _matrix(finding.before_label, finding.before, names, names)
    yield "-after", _matrix(finding.after_label, finding.after, names, names)


@_sheets.register
def _(finding: Regions) -> Iterator[tuple[str, Sheet]]:
    """The points, the prototypes, and each method's plane: class numbers, a line for each height, the lowest first."""
    names = finding.class_names
    yield "-points", _places(finding.points, [names[int(label)] for label in finding.labels])
    if finding.anchors is not None:
        yield "-anchors", _places(finding.anchors, names)
    left, right, bottom, top = finding.extent
    for number, region in enumerate(finding.regions, start=1):
        height, width = region.classes.shape
        # Each field is named by its middle.
        xs = [f"{left + (right - left) * (column + 0.5) / width:.6g}" for column in range(width)]
        ys = [f"{bottom + (top - bottom) * (row + 0.5) / height:.6g}" for row in range(height)]
        yield f"-{number}", _matrix(region.label, region.classes, ys, xs)


def _places(points: np.ndarray, names: Sequence[str]) -> Sheet:
    return [["x", "y", "class"], *([*point, name] for point, name in zip(points.tolist(), names, strict=True))]


def _matrix(corner: str, values: np.ndarray, rows: Sequence[str], columns: Sequence[str]) -> Sheet:
    """Lines and columns without a name are numbered from 1."""
    rows, columns = (
        names or [str(number) for number in range(1, size + 1)]
        for names, size in zip((rows, columns), values.shape, strict=True)
    )
    return [[corner, *columns], *([name, *line] for name, line in zip(rows, values.tolist(), strict=True))]
