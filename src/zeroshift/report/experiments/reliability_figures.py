"""Accuracy against confidence, bin by bin, and how many samples are in each bin."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from zeroshift.experiments.parts.findings import Reliability, ReliabilityPanel
from zeroshift.report.experiments.grid import harmless, written
from zeroshift.report.experiments.pen import SMALL, TEXT, note, style
from zeroshift.report.experiments.sketch import Panel, Sketch, colours
from zeroshift.report.palette import INK

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["sketch_reliability"]

SIZE = 2.6
SHARES = 0.22
"""Height of the strip of shares, as a part of the panel."""

BINS = 15
"""Bins of the expected calibration error, whose width the bars have."""


def sketch_reliability(reliability: Reliability) -> Sketch:
    chosen = colours(reliability.panels)
    return Sketch(
        tuple(
            Panel(partial(_draw, panel=panel, colour=colour), SIZE, SIZE, harmless(panel.label))
            for panel, colour in zip(reliability.panels, chosen, strict=True)
        )
    )


def _draw(axes: Axes, panel: ReliabilityPanel, colour: str) -> None:
    confidence, accuracy, share = (np.asarray(part, float) for part in (panel.confidence, panel.accuracy, panel.share))
    width = 0.86 / BINS
    style(axes, "confidence", "accuracy", grid="y")
    axes.plot([0, 1], [0, 1], color=INK, alpha=0.5, linewidth=0.8, linestyle=(0, (3, 2)))
    axes.bar(confidence, accuracy, width, color=colour, alpha=0.85)
    # What is missing to the diagonal, or stands above it, is the error: an outline, which needs no second colour.
    axes.bar(confidence, confidence - accuracy, width, accuracy, color="none", edgecolor=INK, linewidth=0.7, alpha=0.8)
    note(axes, (0.03, 0.97), f"calibration error {written(panel.error, 'percent')}%", xytext=(0, 0), va="top",
         xycoords="axes fraction", fontsize=TEXT)  # fmt: skip
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1.12)
    ticks = [0, 0.25, 0.5, 0.75, 1.0]
    axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    above = axes.inset_axes((0, 1.02, 1, SHARES), sharex=axes)
    above.bar(confidence, share, width, color=colour, alpha=0.45)
    style(above, "", "share")
    above.set_yticks([])
    above.set_ylabel("share", fontsize=SMALL, color=INK, rotation=0, ha="right", va="center")
    above.tick_params(axis="x", labelbottom=False, length=0)
    above.set_ylim(0, 1.05 * max(share, default=1.0))
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
