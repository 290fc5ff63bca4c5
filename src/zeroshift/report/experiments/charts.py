"""Figures of lines (sweeps, accuracy over a stream), of horizontal bars, and of reliability."""

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

LINES_HEIGHT = 2.4
"""Inches of a panel of lines."""

MAX_END_LABELS = 8
"""With more lines, the values at their ends would be too far from them."""

TEXT_ROWS = 13
"""Lines of text that fit next to the vertical axis."""

MAX_TICKS = 8
"""With more measured values, a linear axis chooses its own ticks."""

MIN_TICK_DISTANCE = 0.1
"""Smallest distance of two ticks, as a fraction of the axis."""

MAX_POINTS = 240
"""Points of a curve: more than a phone has pixels for."""

BAR_HEIGHT = 0.2
"""Inches of a bar with a label of one line."""

GROUP_HEIGHT = 1.25
"""Height of the name of a group, in bars."""

LABEL_LETTERS, GROUP_LETTERS = 22, 44
"""Letters on one line, of a label and of the bold name of a group, which may be as wide as the figure."""

MAX_LABEL_LINES = 3

NUMBER_SPACE = 0.27
"""Space for a number beyond the longest bar, as a fraction of what the bars take."""

RELIABILITY_SIZE = 2.6
"""Inches of a panel of reliability."""

SHARES_HEIGHT = 0.22
"""Height of the shares above a panel of reliability, as a fraction of the panel."""

BINS = 15
"""Bins of the expected calibration error; bars have their width."""


def lines_figure(lines: Lines) -> PanelFigure:
    chosen = choose_colours(lines.series)
    marks = _marks(lines.series)
    keys = tuple(
        LegendKey(one_line(one.label), colour, "dashed" if dashed else "line", shape if lines.steps else "")
        for one, colour, (dashed, shape) in zip(lines.series, chosen, marks, strict=True)
    )
    return PanelFigure(
        (Panel(lambda axes: _draw_lines(axes, lines, chosen), LINES_HEIGHT),), keys if len(keys) > 1 else ()
    )


def _marks(series: Sequence[Series]) -> list[tuple[bool, str]]:
    """Whether a line is dashed, because its colour has been used before, and the shape of its points."""
    return [(place >= len(SERIES_COLOURS), MARKERS[place % len(MARKERS)]) for place in range(len(series))]


def _draw_lines(axes: Axes, lines: Lines, chosen: Sequence[str]) -> None:
    if lines.log_x:
        _log_axis(axes, lines)
    for series, colour, (dashed, shape) in zip(lines.series, chosen, _marks(lines.series), strict=True):
        at = _spread_indices(len(series.x))
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
    if len(lines.series) <= MAX_END_LABELS:
        _label_ends(axes, lines.series)


def _spread_indices(count: int) -> np.ndarray:
    return np.unique(np.linspace(0, max(count - 1, 0), min(count, MAX_POINTS)).round().astype(int))


def _measured_x(lines: Lines) -> list[float]:
    return sorted({float(x) for series in lines.series for x in series.x})


def _log_axis(axes: Axes, lines: Lines) -> None:
    """Where zero was measured, the axis is linear from zero to the next value."""
    above = [x for x in _measured_x(lines) if x > 0]
    if above and len(above) == len(_measured_x(lines)):
        axes.set_xscale("log", base=2)
    elif above:
        axes.set_xscale("symlog", base=2, linthresh=above[0], linscale=0.7)


def _limits(axes: Axes, lines: Lines) -> None:
    """Space above and below the curves; ticks at measured values, if they are few."""
    values = [value for series in lines.series for part in (series.y, series.low, series.high) for value in part or ()]
    finite = [value for value in values if math.isfinite(value)]
    if finite:
        margin = 0.08 * (max(finite) - min(finite)) or 0.02 * abs(max(finite)) or 1.0
        axes.set_ylim(min(finite) - margin, max(finite) + margin)
    axes.locator_params(axis="y", nbins=6, steps=[1, 2, 2.5, 5, 10])
    if lines.steps or lines.log_x:
        _ticks_where_measured(axes, lines)
    else:
        axes.locator_params(axis="x", nbins=5, steps=[1, 2, 2.5, 5, 10])


def _ticks_where_measured(axes: Axes, lines: Lines) -> None:
    """A tick at the default, then at each value that is far enough from the other ticks."""
    places = _measured_x(lines)
    if not places or (len(places) > MAX_TICKS and not lines.log_x):
        return
    at = dict(zip(places, axes.xaxis.get_transform().transform(np.array(places)), strict=True))
    apart = MIN_TICK_DISTANCE * (at[places[-1]] - at[places[0]])
    kept: list[float] = []
    for x in sorted(places, key=lambda x: (x != lines.marked_x, x)):
        if all(abs(at[x] - at[other]) >= apart for other in kept):
            kept.append(x)
    axes.set_xticks(sorted(kept), [f"{x:g}" for x in sorted(kept)])
    axes.set_xticks([], minor=True)


def _label_ends(axes: Axes, series: Sequence[Series]) -> None:
    """The last value next to each line that reaches the right end, moved apart where two would overlap."""
    bottom, top = axes.get_ylim()
    gap, reach = (top - bottom) / TEXT_ROWS, max(abs(bottom), abs(top))
    far = max((one.x[-1] for one in series if one.x), default=0.0)
    there = [float(one.y[-1]) for one in series if one.x and one.x[-1] == far and math.isfinite(one.y[-1])]
    ends = {format_value(end, reach): end for end in sorted(there)}
    places: list[float] = []
    for end in ends.values():
        places.append(max(end, places[-1] + gap) if places else end)
    # Labels above the top move down, together with those below them.
    for at in range(len(places) - 1, -1, -1):
        ceiling = top if at == len(places) - 1 else places[at + 1] - gap
        places[at] = min(places[at], ceiling)
    for text, place in zip(ends, places, strict=True):
        annotate(axes, (1.0, place), text, xycoords=("axes fraction", "data"), annotation_clip=False)


def bars_figure(bars: Bars) -> PanelFigure:
    rows = sum(_bar_rows(bar) for bar in bars.bars) + GROUP_HEIGHT * sum(1 for group in _groups(bars) if group)
    colours = _bar_colours(bars)
    named = {bar.label: colour for bar, colour in zip(bars.bars, colours, strict=True)}
    several = len(set(colours)) > 1 and len(named) < len(bars.bars)
    keys = tuple(LegendKey(one_line(label), colour) for label, colour in named.items()) if several else ()
    return PanelFigure((Panel(lambda axes: _draw_bars(axes, bars, colours), 0.5 + BAR_HEIGHT * rows),), keys)


def _groups(bars: Bars) -> list[str]:
    return [group for group, _ in groupby(bars.bars, key=lambda bar: bar.group)]


def _bar_colours(bars: Bars) -> list[str]:
    """The methods' own colours; other labels that recur between groups have one colour each, all others the same."""
    labels = list(dict.fromkeys(bar.label for bar in bars.bars))
    is_repeated = len(labels) < len(bars.bars) and len(labels) <= len(SERIES_COLOURS)
    return [
        METHOD_COLOURS.get(bar.method) or SERIES_COLOURS[labels.index(bar.label) if is_repeated else 0]
        for bar in bars.bars
    ]


def _wrapped_label(bar: Bar) -> str:
    lines = textwrap.wrap(one_line(bar.label), LABEL_LETTERS, max_lines=MAX_LABEL_LINES, placeholder="…")
    return "\n".join(lines)


def _bar_rows(bar: Bar) -> float:
    """Height of a bar, in bars with a label of one line."""
    return 1.0 + 0.6 * _wrapped_label(bar).count("\n")


def _draw_bars(axes: Axes, bars: Bars, colours: list[str]) -> None:
    ends = [end for bar in bars.bars for end in (bar.value, bar.low, bar.high) if end is not None]
    low, high = min([0.0, *ends]), max([0.0, *ends])
    reach = (high - low) or 1.0
    at, places, before = 0.0, [], ""
    for bar, colour in zip(bars.bars, colours, strict=True):
        if bar.group != before and bar.group:
            heading = textwrap.shorten(one_line(bar.group), GROUP_LETTERS, placeholder="…")
            # From the edge of the figure, so that a long name fits; not part of the layout, or the labels would move.
            annotate(axes, (0.0, at + 0.6 * GROUP_HEIGHT), heading, xycoords=("figure fraction", "data"), xytext=(2, 0),
                 annotation_clip=False, fontweight="bold", in_layout=False)  # fmt: skip
            at += GROUP_HEIGHT
        before = bar.group
        middle = at + _bar_rows(bar) / 2
        places.append(middle)
        axes.barh(middle, bar.value, 0.72, color=colour)
        reaches = [bar.value, *(end for end in (bar.low, bar.high) if end is not None)]
        if bar.low is not None and bar.high is not None:
            axes.plot([bar.low, bar.high], [middle, middle], color=INK, linewidth=1.1, solid_capstyle="butt")
            axes.plot([bar.low, bar.high], [middle, middle], color=INK, linestyle="", marker="|", markersize=4)
        # Beyond bar and interval, so that nothing crosses the number.
        left = bar.value < 0
        annotate(axes, (min(reaches) if left else max(*reaches, 0.0), middle), format_value(bar.value, max(-low, high)),
             xytext=(-4 if left else 4, 0), ha="right" if left else "left")  # fmt: skip
        # The line at zero is drawn next to bars only: it would cross the names of groups.
        axes.plot([0, 0], [at, at + _bar_rows(bar)], color=INK, linewidth=0.8, alpha=0.6)
        at += _bar_rows(bar)
    style_axes(axes, bars.x_label)
    axes.set_yticks(
        places, [_wrapped_label(bar) for bar in bars.bars], parse_math=False, fontsize=TEXT, linespacing=1.0
    )
    axes.set_ylim(at + 0.2, -0.2)
    space = NUMBER_SPACE * reach
    axes.set_xlim(low - (space if low < 0 else 0), high + (space if high > 0 or low >= 0 else 0))
    axes.locator_params(axis="x", nbins=5, steps=[1, 2, 2.5, 5, 10])
    axes.spines["bottom"].set_visible(False)


def reliability_figure(reliability: Reliability) -> PanelFigure:
    chosen = choose_colours(reliability.panels)
    return PanelFigure(
        tuple(
            Panel(
                partial(_draw_reliability, panel=panel, colour=colour),
                RELIABILITY_SIZE,
                RELIABILITY_SIZE,
                one_line(panel.label),
            )
            for panel, colour in zip(reliability.panels, chosen, strict=True)
        )
    )


def _draw_reliability(axes: Axes, panel: ReliabilityPanel, colour: str) -> None:
    confidence, accuracy, share = (np.asarray(part, float) for part in (panel.confidence, panel.accuracy, panel.share))
    width = 0.86 / BINS
    style_axes(axes, "confidence", "accuracy", grid="y")
    axes.plot([0, 1], [0, 1], color=INK, alpha=0.5, linewidth=0.8, linestyle=(0, (3, 2)))
    axes.bar(confidence, accuracy, width, color=colour, alpha=0.85)
    # The outline shows the distance to the diagonal, which is the error.
    axes.bar(confidence, confidence - accuracy, width, accuracy, color="none", edgecolor=INK, linewidth=0.7, alpha=0.8)
    annotate(axes, (0.03, 0.97), f"calibration error {format_number(panel.error, 'percent')}%", xytext=(0, 0), va="top",
         xycoords="axes fraction", fontsize=TEXT)  # fmt: skip
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1.12)
    ticks = [0, 0.25, 0.5, 0.75, 1.0]
    axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    above = axes.inset_axes((0, 1.02, 1, SHARES_HEIGHT), sharex=axes)
    above.bar(confidence, share, width, color=colour, alpha=0.45)
    style_axes(above, "", "share")
    above.set_yticks([])
    above.set_ylabel("share", fontsize=SMALL, color=INK, rotation=0, ha="right", va="center")
    above.tick_params(axis="x", labelbottom=False, length=0)
    above.set_ylim(0, 1.05 * max(share, default=1.0))
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
