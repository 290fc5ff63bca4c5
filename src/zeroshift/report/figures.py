"""Figures of comparisons: accuracy over the stream, bank fill over the stream, and accuracy of each set as bars.

`..._of` is one set alone, as wide as a phone, for the page; the others hold all sets, with titles, for a file.
matplotlib is imported where it is used: importing zeroshift must not wait for it. No pyplot, hence no global state.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from zeroshift.evaluate import Comparison
from zeroshift.report.drawing import MAX_NAMED_CLASSES, draw_accuracy_bars, draw_bank_fill, draw_running_accuracy
from zeroshift.report.palette import INK

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["accuracy_bars", "bank_fill", "bank_fill_of", "running_accuracies", "running_accuracy_of"]

WIDTH = 3.6
"""Inches of a figure for one set: at the page's scale a phone's width, so that text is never shrunk."""

CLASS_HEIGHT = 0.155
"""Inches of one class in the bank figure."""


def running_accuracy_of(comparison: Comparison) -> Figure:
    """Accuracy so far against samples seen, a line for each method."""
    return _one(lambda axes: draw_running_accuracy(axes, comparison), height=2.3)


def bank_fill_of(comparison: Comparison) -> Figure:
    """How full each class's bank is against samples seen."""
    return _one(lambda axes: draw_bank_fill(axes, comparison), height=0.75 + _classes_height([comparison]))


def accuracy_bars(comparisons: Sequence[Comparison]) -> Figure:
    """Accuracy of each method on each set, as horizontal bars."""
    height = 0.45 + len(comparisons) * (0.36 + 0.15 * len(comparisons[0].results))
    return _one(lambda axes: draw_accuracy_bars(axes, comparisons), height=height)


def running_accuracies(comparisons: Sequence[Comparison]) -> Figure:
    """`running_accuracy_of` for every set, with a legend."""
    figure = _grid(comparisons, draw_running_accuracy, height=2.5)
    lines = figure.axes[0].lines
    figure.legend(handles=lines, loc="outside upper left", ncols=len(lines), frameon=False, labelcolor=INK)
    return figure


def bank_fill(comparisons: Sequence[Comparison]) -> Figure:
    """`bank_fill_of` for every set."""
    return _grid(comparisons, draw_bank_fill, height=0.95 + _classes_height(comparisons))


def _classes_height(comparisons: Sequence[Comparison]) -> float:
    return CLASS_HEIGHT * min(MAX_NAMED_CLASSES, max(comparison.features.n_classes for comparison in comparisons))


def _one(draw: Callable[[Axes], None], height: float) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    draw(figure.add_subplot())
    return figure


def _grid(comparisons: Sequence[Comparison], draw: Callable[[Axes, Comparison], None], height: float) -> Figure:
    from matplotlib.figure import Figure

    columns = min(3, len(comparisons))
    rows = math.ceil(len(comparisons) / columns)
    figure = Figure(figsize=(columns * WIDTH, rows * height + 0.3))
    figure.set_layout_engine("constrained", w_pad=0.08, h_pad=0.08, wspace=0.03, hspace=0.03)
    for place, comparison in enumerate(comparisons):
        axes = figure.add_subplot(rows, columns, place + 1)
        draw(axes, comparison)
        axes.set_title(comparison.title, loc="left", fontsize=9, color=INK, parse_math=False)
    return figure
