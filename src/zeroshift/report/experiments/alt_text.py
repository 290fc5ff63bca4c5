"""Figures in words, for screen readers and for formats without images."""

from __future__ import annotations

from collections.abc import Sequence
from functools import singledispatch

import numpy as np

from zeroshift.experiments._shared.findings import (
    Bar,
    Bars,
    Confusion,
    Finding,
    HeatMap,
    HeatMaps,
    Lines,
    Regions,
    Reliability,
    ReliabilityPanel,
    Remark,
    Series,
    Table,
)
from zeroshift.report.formatting import counted, format_number, one_line

__all__ = ["alt_text"]

MAX_PARTS = 6
"""Lines, bars or panels that are described one by one; of more bars, only the ends."""


def alt_text(finding: Finding) -> str:
    """A sentence or two with the main numbers.

    >>> alt_text(Bars("gains", "Gain over zero-shot", "points", (Bar("cifar10", 4.9, 3.8, 6.1), Bar("fmnist", -0.5))))
    'Gain over zero-shot, points: cifar10 4.9 (3.8 to 6.1); fmnist -0.5.'
    """
    return one_line(_describe(finding))


@singledispatch
def _describe(finding: Finding) -> str:
    raise TypeError(f"finding is {finding!r}, which is not a finding of an experiment. Fix: {Finding}.")


@_describe.register
def _(finding: Remark) -> str:
    return finding.text


@_describe.register
def _(finding: Table) -> str:
    rows = counted(len(finding.rows), "row")
    return f"{finding.title}: a table of {rows} and {counted(len(finding.columns), 'column')}."


@_describe.register
def _(finding: Lines) -> str:
    lines = [_line(series) for series in finding.series if len(series.x)]
    return f"{finding.title}: {finding.y_label} against {finding.x_label}. {_list(lines)}"


def _line(series: Series) -> str:
    first, last = (f"{format_number(series.y[end])} at {format_number(series.x[end])}" for end in (0, -1))
    if len(series.x) == 1:
        return f"{series.label}: {first}"
    top = int(np.nanargmax(series.y)) if not np.isnan(series.y).all() else 0
    highest = f", highest {format_number(series.y[top])} at {format_number(series.x[top])}"
    return f"{series.label}: {first}, {last}{highest if 0 < top < len(series.x) - 1 else ''}"


@_describe.register
def _(finding: Bars) -> str:
    bars = list(finding.bars)
    if len(bars) > MAX_PARTS:
        bars = sorted(bars, key=lambda bar: bar.value)
        ends = f"from {_bar(bars[0])} to {_bar(bars[-1])}"
        below = counted(sum(bar.value < 0 for bar in bars), "bar")
        return f"{finding.title}, {finding.x_label}: {counted(len(bars), 'bar')}, {ends}; {below} below zero."
    return f"{finding.title}, {finding.x_label}: {_list([_bar(bar) for bar in bars])}"


def _bar(bar: Bar) -> str:
    reach = "" if bar.low is None or bar.high is None else f" ({format_number(bar.low)} to {format_number(bar.high)})"
    return f"{bar.label} {format_number(bar.value)}{reach}"


@_describe.register
def _(finding: HeatMaps) -> str:
    unit = f" of {finding.unit}" if finding.unit else ""
    many = counted(len(finding.maps), "matrix", "matrices")
    return f"{finding.title}: {many}{unit}. {_list([_map(heat_map) for heat_map in finding.maps])}"


def _map(heat_map: HeatMap) -> str:
    size = " by ".join(map(str, heat_map.values.shape))
    known = heat_map.values[np.isfinite(heat_map.values)]
    values = f", {format_number(known.min())} to {format_number(known.max())}" if known.size else ""
    return f"{heat_map.title} ({size}{values})"


@_describe.register
def _(finding: Reliability) -> str:
    title = finding.title if finding.title.endswith("?") else f"{finding.title}:"
    return f"{title} {_list([_panel(panel) for panel in finding.panels])}"


def _panel(panel: ReliabilityPanel) -> str:
    means = [float(np.dot(panel.share, values)) for values in (panel.confidence, panel.accuracy)]
    confidence, accuracy = (format_number(mean, "percent") for mean in means)
    error = format_number(panel.error, "percent")
    return f"{panel.label} is {confidence}% sure and {accuracy}% right on average, calibration error {error}%"


@_describe.register
def _(finding: Confusion) -> str:
    sides = [(finding.before_label, finding.before), (finding.after_label, finding.after)]
    parts = [_confused(label, matrix, finding.class_names) for label, matrix in sides]
    return f"{finding.title} ({counted(len(finding.class_names), 'class', 'classes')}): {_list(parts)}"


def _confused(label: str, matrix: np.ndarray, class_names: Sequence[str]) -> str:
    diagonal = np.diagonal(matrix)
    known = diagonal[np.isfinite(diagonal)]
    right = f"{label} gets {format_number(known.mean(), 'percent')}% of a class right" if known.size else label
    off = np.where(np.isfinite(matrix) & ~np.eye(len(matrix), dtype=bool), matrix, 0.0)
    if not off.any():
        return f"{right}, nothing is confused"
    true, taken = map(int, np.unravel_index(int(off.argmax()), off.shape))
    share = format_number(off[true, taken], "percent")
    return f"{right}, most often takes {class_names[true]} for {class_names[taken]} ({share}%)"


@_describe.register
def _(finding: Regions) -> str:
    points, classes = counted(len(finding.points), "point"), counted(len(finding.class_names), "class", "classes")
    right = [f"{region.label} {format_number(region.accuracy, 'percent')}%" for region in finding.regions]
    return f"{finding.title}: {points} of {classes} in a plane, and how many each method gets right. {_list(right)}"


def _list(parts: Sequence[str]) -> str:
    if not parts:
        return "Nothing was measured."
    more = f"; and {len(parts) - MAX_PARTS} more" if len(parts) > MAX_PARTS else ""
    return f"{'; '.join(parts[:MAX_PARTS])}{more}."
