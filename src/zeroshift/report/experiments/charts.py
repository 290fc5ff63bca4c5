"""Curves: sweeps of a setting, and accuracy over a stream."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np

from zeroshift.experiments._shared.findings import Bar, Bars, Lines, Reliability, ReliabilityPanel, Series
from zeroshift.report.experiments.panels import MARKERS, LegendKey, Panel, PanelFigure, choose_colours, format_value
from zeroshift.report.formatting import format_number, one_line
from zeroshift.report.style import INK, METHOD_COLOURS, SERIES_COLOURS, SMALL, TEXT, annotate, style_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["bars_figure", "lines_figure", "reliability_figure"]

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


def lines_figure(lines: Lines) -> PanelFigure:
    chosen = choose_colours(lines.series)
    marks = _marks(lines.series)
    keys = tuple(
        LegendKey(one_line(one.label), colour, "dashed" if dashed else "line", shape if lines.steps else "")
        for one, colour, (dashed, shape) in zip(lines.series, chosen, marks, strict=True)
    )
    return PanelFigure((Panel(lambda axes: _draw_lines(axes, lines, chosen), HEIGHT),), keys if len(keys) > 1 else ())


def _marks(series: Sequence[Series]) -> list[tuple[bool, str]]:
    """Whether a line is dashed, because its colour has been used before, and the shape of its points."""
    return [(place >= len(SERIES_COLOURS), MARKERS[place % len(MARKERS)]) for place in range(len(series))]


def _draw_lines(axes: Axes, lines: Lines, chosen: Sequence[str]) -> None:
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
            marker=shape if lines.steps else None, markersize=4, label=one_line(series.label),
        )  # fmt: skip
    style_axes(axes, lines.x_label, lines.y_label, grid="y")
    _limits(axes, lines)
    if lines.marked_x is not None:
        axes.axvline(lines.marked_x, color=INK, alpha=0.55, linewidth=0.8, linestyle=(0, (2, 2)))
        top = (lines.marked_x, 1.0)
        annotate(axes, top, "default", xycoords=("data", "axes fraction"), xytext=(0, 2), va="bottom", ha="center",
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
    ends = {format_value(end, reach): end for end in sorted(there)}
    places: list[float] = []
    for end in ends.values():
        places.append(max(end, places[-1] + gap) if places else end)
    # What was pushed out at the top comes down again, and takes those below with it.
    for at in range(len(places) - 1, -1, -1):
        ceiling = top if at == len(places) - 1 else places[at + 1] - gap
        places[at] = min(places[at], ceiling)
    for text, place in zip(ends, places, strict=True):
        annotate(axes, (1.0, place), text, xycoords=("axes fraction", "data"), annotation_clip=False)


# Horizontal bars from zero, in groups, each with its interval and its value.


ROW = 0.2
"""Inches of a bar."""

HEADING = 1.25
"""Height of a group's name, in bars."""

LETTERS = 22
"""Letters of a label on one line."""

GROUP_LETTERS = 44
"""Letters of a group's name: bold, they fill the width of a phone."""

MAX_LINES = 3
ROOM = 0.27
"""Room for a number beyond the farthest bar, as a part of what the bars take."""


def bars_figure(bars: Bars) -> PanelFigure:
    rows = sum(_height(bar) for bar in bars.bars) + HEADING * sum(1 for group in _groups(bars) if group)
    own = _own_colours(bars)
    named = {bar.label: colour for bar, colour in zip(bars.bars, own, strict=True)}
    several = len(set(own)) > 1 and len(named) < len(bars.bars)
    keys = tuple(LegendKey(one_line(label), colour) for label, colour in named.items()) if several else ()
    return PanelFigure((Panel(lambda axes: _draw_bars(axes, bars, own), 0.5 + ROW * rows),), keys)


def _groups(bars: Bars) -> list[str]:
    return [group for group, _ in groupby(bars.bars, key=lambda bar: bar.group)]


def _own_colours(bars: Bars) -> list[str]:
    """By what recurs from group to group; the methods' own where they have one, one colour for all where nothing
    recurs."""
    labels = list(dict.fromkeys(bar.label for bar in bars.bars))
    recurs = len(labels) < len(bars.bars) and len(labels) <= len(SERIES_COLOURS)
    return [
        METHOD_COLOURS.get(bar.method) or SERIES_COLOURS[labels.index(bar.label) if recurs else 0] for bar in bars.bars
    ]


def _label(bar: Bar) -> str:
    lines = textwrap.wrap(one_line(bar.label), LETTERS, max_lines=MAX_LINES, placeholder="…")
    return "\n".join(lines)


def _height(bar: Bar) -> float:
    """Of a bar, in those with a label of one line."""
    return 1.0 + 0.6 * _label(bar).count("\n")


def _draw_bars(axes: Axes, bars: Bars, own: list[str]) -> None:
    ends = [end for bar in bars.bars for end in (bar.value, bar.low, bar.high) if end is not None]
    low, high = min([0.0, *ends]), max([0.0, *ends])
    reach = (high - low) or 1.0
    at, places, before = 0.0, [], ""
    for bar, colour in zip(bars.bars, own, strict=True):
        if bar.group != before and bar.group:
            heading = textwrap.shorten(one_line(bar.group), GROUP_LETTERS, placeholder="…")
            # From the figure's own edge: beside the labels a long name would run out at the right. It makes no room for
            # itself, or the labels would be moved aside for it.
            annotate(axes, (0.0, at + 0.6 * HEADING), heading, xycoords=("figure fraction", "data"), xytext=(2, 0),
                 annotation_clip=False, fontweight="bold", in_layout=False)  # fmt: skip
            at += HEADING
        before = bar.group
        middle = at + _height(bar) / 2
        places.append(middle)
        axes.barh(middle, bar.value, 0.72, color=colour)
        reaches = [bar.value, *(end for end in (bar.low, bar.high) if end is not None)]
        if bar.low is not None and bar.high is not None:
            axes.plot([bar.low, bar.high], [middle, middle], color=INK, linewidth=1.1, solid_capstyle="butt")
            axes.plot([bar.low, bar.high], [middle, middle], color=INK, linestyle="", marker="|", markersize=4)
        # Beyond the far end of bar and interval, so that nothing crosses the number.
        left = bar.value < 0
        annotate(axes, (min(reaches) if left else max(*reaches, 0.0), middle), format_value(bar.value, max(-low, high)),
             xytext=(-4 if left else 4, 0), ha="right" if left else "left")  # fmt: skip
        # The line of zero only along the bars: it would strike the groups' names through.
        axes.plot([0, 0], [at, at + _height(bar)], color=INK, linewidth=0.8, alpha=0.6)
        at += _height(bar)
    style_axes(axes, bars.x_label)
    axes.set_yticks(places, [_label(bar) for bar in bars.bars], parse_math=False, fontsize=TEXT, linespacing=1.0)
    axes.set_ylim(at + 0.2, -0.2)
    room = ROOM * reach
    axes.set_xlim(low - (room if low < 0 else 0), high + (room if high > 0 or low >= 0 else 0))
    axes.locator_params(axis="x", nbins=5, steps=[1, 2, 2.5, 5, 10])
    axes.spines["bottom"].set_visible(False)


# Accuracy against confidence, bin by bin, and how many samples are in each bin.


SIZE = 2.6
SHARES = 0.22
"""Height of the strip of shares, as a part of the panel."""

BINS = 15
"""Bins of the expected calibration error, whose width the bars have."""


def reliability_figure(reliability: Reliability) -> PanelFigure:
    chosen = choose_colours(reliability.panels)
    return PanelFigure(
        tuple(
            Panel(partial(_draw_reliability, panel=panel, colour=colour), SIZE, SIZE, one_line(panel.label))
            for panel, colour in zip(reliability.panels, chosen, strict=True)
        )
    )


def _draw_reliability(axes: Axes, panel: ReliabilityPanel, colour: str) -> None:
    confidence, accuracy, share = (np.asarray(part, float) for part in (panel.confidence, panel.accuracy, panel.share))
    width = 0.86 / BINS
    style_axes(axes, "confidence", "accuracy", grid="y")
    axes.plot([0, 1], [0, 1], color=INK, alpha=0.5, linewidth=0.8, linestyle=(0, (3, 2)))
    axes.bar(confidence, accuracy, width, color=colour, alpha=0.85)
    # What is missing to the diagonal, or stands above it, is the error: an outline, which needs no second colour.
    axes.bar(confidence, confidence - accuracy, width, accuracy, color="none", edgecolor=INK, linewidth=0.7, alpha=0.8)
    annotate(axes, (0.03, 0.97), f"calibration error {format_number(panel.error, 'percent')}%", xytext=(0, 0), va="top",
         xycoords="axes fraction", fontsize=TEXT)  # fmt: skip
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1.12)
    ticks = [0, 0.25, 0.5, 0.75, 1.0]
    axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    above = axes.inset_axes((0, 1.02, 1, SHARES), sharex=axes)
    above.bar(confidence, share, width, color=colour, alpha=0.45)
    style_axes(above, "", "share")
    above.set_yticks([])
    above.set_ylabel("share", fontsize=SMALL, color=INK, rotation=0, ha="right", va="center")
    above.tick_params(axis="x", labelbottom=False, length=0)
    above.set_ylim(0, 1.05 * max(share, default=1.0))
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
