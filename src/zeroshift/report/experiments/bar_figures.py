"""Horizontal bars from zero, in groups, each with its interval and its value."""

from __future__ import annotations

import textwrap
from itertools import groupby
from typing import TYPE_CHECKING

from zeroshift.experiments.parts.findings import Bar, Bars
from zeroshift.report.experiments.grid import harmless
from zeroshift.report.experiments.pen import TEXT, note, number, style
from zeroshift.report.experiments.sketch import Key, Panel, Sketch
from zeroshift.report.palette import INK, METHOD_COLOURS, SERIES_COLOURS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["sketch_bars"]

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


def sketch_bars(bars: Bars) -> Sketch:
    rows = sum(_height(bar) for bar in bars.bars) + HEADING * sum(1 for group in _groups(bars) if group)
    own = _own_colours(bars)
    named = {bar.label: colour for bar, colour in zip(bars.bars, own, strict=True)}
    several = len(set(own)) > 1 and len(named) < len(bars.bars)
    keys = tuple(Key(harmless(label), colour) for label, colour in named.items()) if several else ()
    return Sketch((Panel(lambda axes: _draw(axes, bars, own), 0.5 + ROW * rows),), keys)


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
    lines = textwrap.wrap(harmless(bar.label), LETTERS, max_lines=MAX_LINES, placeholder="…")
    return "\n".join(lines)


def _height(bar: Bar) -> float:
    """Of a bar, in those with a label of one line."""
    return 1.0 + 0.6 * _label(bar).count("\n")


def _draw(axes: Axes, bars: Bars, own: list[str]) -> None:
    ends = [end for bar in bars.bars for end in (bar.value, bar.low, bar.high) if end is not None]
    low, high = min([0.0, *ends]), max([0.0, *ends])
    reach = (high - low) or 1.0
    at, places, before = 0.0, [], ""
    for bar, colour in zip(bars.bars, own, strict=True):
        if bar.group != before and bar.group:
            heading = textwrap.shorten(harmless(bar.group), GROUP_LETTERS, placeholder="…")
            # From the figure's own edge: beside the labels a long name would run out at the right. It makes no room for
            # itself, or the labels would be moved aside for it.
            note(axes, (0.0, at + 0.6 * HEADING), heading, xycoords=("figure fraction", "data"), xytext=(2, 0),
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
        note(axes, (min(reaches) if left else max(*reaches, 0.0), middle), number(bar.value, max(-low, high)),
             xytext=(-4 if left else 4, 0), ha="right" if left else "left")  # fmt: skip
        # The line of zero only along the bars: it would strike the groups' names through.
        axes.plot([0, 0], [at, at + _height(bar)], color=INK, linewidth=0.8, alpha=0.6)
        at += _height(bar)
    style(axes, bars.x_label)
    axes.set_yticks(places, [_label(bar) for bar in bars.bars], parse_math=False, fontsize=TEXT, linespacing=1.0)
    axes.set_ylim(at + 0.2, -0.2)
    room = ROOM * reach
    axes.set_xlim(low - (room if low < 0 else 0), high + (room if high > 0 or low >= 0 else 0))
    axes.locator_params(axis="x", nbins=5, steps=[1, 2, 2.5, 5, 10])
    axes.spines["bottom"].set_visible(False)
