"""One picture of a comparison: each method's mean gain over zero-shot as a bar, and how far its orders reach."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from zeroshift.evaluate import Standing
from zeroshift.report.compare_tables import by_protocol, marked
from zeroshift.report.palette import INK, METHOD_COLOURS, OTHER_COLOURS
from zeroshift.report.words import points

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["COLOURS", "gain_bars"]

WIDTH = 7.0
ROW = 0.24
"""Inches of a bar."""

COLOURS = {
    "online": METHOD_COLOURS["adapt_online"],
    "episodic": OTHER_COLOURS[1],
    "transductive": METHOD_COLOURS["adapt_transductive"],
    "few-shot": OTHER_COLOURS[0],
}
"""A colour for each protocol: methods of different ones have seen different things."""


def gain_bars(standings: Sequence[Standing]) -> Figure:
    """Horizontal bars from zero, protocol by protocol; a thin line from the least to the greatest order."""
    from matplotlib.figure import Figure

    rows = [standing for _, group in by_protocol(standings) for standing in group]
    figure = Figure(figsize=(WIDTH, 0.6 + ROW * len(rows)), layout="constrained")
    axes = figure.add_subplot()
    for place, standing in enumerate(rows):
        gain = standing.gain
        axes.barh(place, gain.mean, 0.7, color=COLOURS[standing.contestant.protocol])
        if len(gain.values) > 1:
            axes.plot([gain.low, gain.high], [place, place], color=INK, linewidth=1.1, solid_capstyle="butt")
        # Beside the far end, so that the line never crosses the number.
        axes.annotate(
            points(gain.mean), (max(gain.high, 0.0), place), xytext=(5, 0), textcoords="offset points",
            va="center_baseline", fontsize=8, color=INK,
        )  # fmt: skip
    axes.axvline(0, color=INK, linewidth=0.7, alpha=0.5)
    axes.set_yticks(range(len(rows)), [marked(standing) for standing in rows], parse_math=False)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.margins(x=0.08)
    axes.set_facecolor("none")
    axes.set_xlabel("mean gain over zero-shot, points", fontsize=8, color=INK)
    for side in ("top", "right", "left", "bottom"):
        axes.spines[side].set_visible(False)
    axes.tick_params(axis="x", colors=INK, labelsize=8, width=0.7, length=3)
    axes.tick_params(axis="y", colors=INK, labelsize=8, length=0)
    axes.grid(axis="x", color=INK, alpha=0.12, linewidth=0.6)
    axes.set_axisbelow(True)
    return figure
