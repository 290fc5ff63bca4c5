"""Curves: sweeps of a setting, and accuracy over a stream."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from zeroshift.experiments.parts.findings import Lines, Series
from zeroshift.report.experiments.grid import harmless
from zeroshift.report.experiments.pen import SMALL, note, number, style
from zeroshift.report.experiments.sketch import MARKERS, Key, Panel, Sketch, colours
from zeroshift.report.palette import INK, SERIES_COLOURS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["sketch_lines"]

HEIGHT = 2.4
MAX_ENDS = 8
"""Lines beyond which the values at their ends would stand too far from them."""

ROWS = 13
"""Lines of text that fit beside the axis."""

MAX_TICKS = 8
"""Measured places beyond which a straight axis is left to choose its own ticks."""

NEAREST = 0.1
"""How near two ticks may be, as a part of the axis."""

POINTS = 240
"""Points of a curve: more than a phone has pixels for."""


def sketch_lines(lines: Lines) -> Sketch:
    chosen = colours(lines.series)
    marks = _marks(lines.series)
    keys = tuple(
        Key(harmless(one.label), colour, "dashed" if dashed else "line", shape if lines.steps else "")
        for one, colour, (dashed, shape) in zip(lines.series, chosen, marks, strict=True)
    )
    return Sketch((Panel(lambda axes: _draw(axes, lines, chosen), HEIGHT),), keys if len(keys) > 1 else ())


def _marks(series: Sequence[Series]) -> list[tuple[bool, str]]:
    """Whether a line is dashed, because its colour has been used before, and the shape of its points."""
    return [(place >= len(SERIES_COLOURS), MARKERS[place % len(MARKERS)]) for place in range(len(series))]


def _draw(axes: Axes, lines: Lines, chosen: Sequence[str]) -> None:
    if lines.log_x:
        _log_axis(axes, lines)
    for series, colour, (dashed, shape) in zip(lines.series, chosen, _marks(lines.series), strict=True):
        at = _thinned(len(series.x))
        x, y = np.asarray(series.x, float)[at], np.asarray(series.y, float)[at]
        if series.low is not None and series.high is not None:
            low, high = np.asarray(series.low, float)[at], np.asarray(series.high, float)[at]
            axes.fill_between(x, low, high, color=colour, alpha=0.16, linewidth=0)
        axes.plot(
            x, y, color=colour, linewidth=1.6, linestyle=(0, (4, 1.6)) if dashed else "-", solid_capstyle="round",
            marker=shape if lines.steps else None, markersize=4, label=harmless(series.label),
        )  # fmt: skip
    style(axes, lines.x_label, lines.y_label, grid="y")
    _limits(axes, lines)
    if lines.marked_x is not None:
        axes.axvline(lines.marked_x, color=INK, alpha=0.55, linewidth=0.8, linestyle=(0, (2, 2)))
        top = (lines.marked_x, 1.0)
        note(axes, top, "default", xycoords=("data", "axes fraction"), xytext=(0, 2), va="bottom", ha="center",
             fontsize=SMALL)  # fmt: skip
    if len(lines.series) <= MAX_ENDS:
        _label_ends(axes, lines.series)


def _thinned(count: int) -> np.ndarray:
    return np.unique(np.linspace(0, max(count - 1, 0), min(count, POINTS)).round().astype(int))


def _places(lines: Lines) -> list[float]:
    return sorted({float(x) for series in lines.series for x in series.x})


def _log_axis(axes: Axes, lines: Lines) -> None:
    """A logarithm knows no zero: where one was measured, the axis is straight from it to the least above it."""
    above = [x for x in _places(lines) if x > 0]
    if above and len(above) == len(_places(lines)):
        axes.set_xscale("log", base=2)
    elif above:
        axes.set_xscale("symlog", base=2, linthresh=above[0], linscale=0.7)


def _limits(axes: Axes, lines: Lines) -> None:
    """Room above and below the curves; ticks where something was measured, if these are few."""
    held = [value for series in lines.series for part in (series.y, series.low, series.high) for value in part or ()]
    finite = [value for value in held if math.isfinite(value)]
    if finite:
        margin = 0.08 * (max(finite) - min(finite)) or 0.02 * abs(max(finite)) or 1.0
        axes.set_ylim(min(finite) - margin, max(finite) + margin)
    axes.locator_params(axis="y", nbins=6, steps=[1, 2, 2.5, 5, 10])
    if lines.steps or lines.log_x:
        _ticks_where_measured(axes, lines)
    else:
        axes.locator_params(axis="x", nbins=5, steps=[1, 2, 2.5, 5, 10])


def _ticks_where_measured(axes: Axes, lines: Lines) -> None:
    """The default first, then what is far enough from those that are there."""
    places = _places(lines)
    if not places or (len(places) > MAX_TICKS and not lines.log_x):
        return
    at = dict(zip(places, axes.xaxis.get_transform().transform(np.array(places)), strict=True))
    apart = NEAREST * (at[places[-1]] - at[places[0]])
    kept: list[float] = []
    for x in sorted(places, key=lambda x: (x != lines.marked_x, x)):
        if all(abs(at[x] - at[other]) >= apart for other in kept):
            kept.append(x)
    axes.set_xticks(sorted(kept), [f"{x:g}" for x in sorted(kept)])
    axes.set_xticks([], minor=True)


def _label_ends(axes: Axes, series: Sequence[Series]) -> None:
    """The last value beside each line that reaches the far end, pushed apart where two would overlap."""
    bottom, top = axes.get_ylim()
    gap, reach = (top - bottom) / ROWS, max(abs(bottom), abs(top))
    far = max((one.x[-1] for one in series if one.x), default=0.0)
    there = [float(one.y[-1]) for one in series if one.x and one.x[-1] == far and math.isfinite(one.y[-1])]
    ends = {number(end, reach): end for end in sorted(there)}
    places: list[float] = []
    for end in ends.values():
        places.append(max(end, places[-1] + gap) if places else end)
    # What was pushed out at the top comes down again, and takes those below with it.
    for at in range(len(places) - 1, -1, -1):
        ceiling = top if at == len(places) - 1 else places[at + 1] - gap
        places[at] = min(places[at], ceiling)
    for text, place in zip(ends, places, strict=True):
        note(axes, (1.0, place), text, xycoords=("axes fraction", "data"), annotation_clip=False)
