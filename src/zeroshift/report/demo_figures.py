"""Figures of `zeroshift demo`: accuracy over the stream, bank fill over the stream, and accuracy per set as bars.

`draw_...` draws on given axes; `..._of` is a figure of one set, as wide as a phone, for the page; the others show all
sets, with titles, for a file.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

import numpy as np

from zeroshift.evaluate import Comparison, Result, running_accuracy
from zeroshift.report.comparisons import titled_with_gains
from zeroshift.report.formatting import method_label, percent, visible
from zeroshift.report.style import INK, annotate, method_colour, new_figure, save_figure, style_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "MAX_NAMED_CLASSES",
    "accuracy_bars",
    "bank_fill",
    "bank_fill_of",
    "draw_accuracy_bars",
    "draw_bank_fill",
    "draw_running_accuracy",
    "figure_paths",
    "first_drawn",
    "running_accuracies",
    "running_accuracy_of",
    "spaced",
    "streamed",
    "write_figures",
]

POINTS = 240
"""Points of a curve: more than a phone has pixels for, few enough to keep the page small."""

SETTLED = 50
"""Sample from which running accuracy is drawn, or a quarter of a short stream: before, it jumps between 0 and 1."""

FULLEST_SHADE = 0.8
"""Opacity of a full bank."""

MAX_NAMED_CLASSES = 20
"""With more classes, their names do not fit next to the bank figure."""

LONGEST_NAME = 16
"""Letters of a class name that fit next to the bank figure."""


WIDTH = 3.6
"""Inches of a figure for one set: the width of a phone at the page's scale, so that text is never shrunk."""

CLASS_HEIGHT = 0.155
"""Inches of one class in the bank figure."""

NAMES = ("accuracy", "running_accuracy", "bank_fill")
SUFFIXES = (".png", ".svg")


def draw_running_accuracy(axes: Axes, comparison: Comparison) -> None:
    """One line per method, with its final value at its end."""
    n_samples = comparison.features.n_samples
    at = np.unique(np.linspace(first_drawn(n_samples) - 1, n_samples - 1, POINTS).round().astype(int))
    low, high, ends = 100.0, 0.0, []
    for place, result in enumerate(comparison.results):
        if result.correct is None:
            raise ValueError(f"running accuracy needs labels, and {comparison.name} has none.")
        curve = 100 * running_accuracy(result.correct)[at]
        colour = method_colour(result.method, place)
        axes.plot(at + 1, curve, color=colour, linewidth=1.5, label=method_label(result.method))
        low, high = min(low, curve.min()), max(high, curve.max())
        ends.append((float(curve[-1]), percent(result.accuracy)))
    margin = max(1.0, 0.12 * (high - low))
    bottom, top = max(0.0, low - margin), min(100.0, high + margin)
    axes.set_ylim(bottom, top)
    axes.set_xlim(0, n_samples)
    axes.locator_params(axis="y", nbins=6, steps=[1, 2, 5, 10])
    _label_ends(axes, ends, gap=(top - bottom) / 11)
    style_axes(axes, "samples seen", "accuracy so far, %", grid="y")
    axes.locator_params(axis="x", nbins=5, steps=[1, 2, 5, 10])


def first_drawn(n_samples: int) -> int:
    """The sample, counted from 1, at which lines of running accuracy start."""
    return min(SETTLED, max(1, n_samples // 4))


def _label_ends(axes: Axes, ends: Sequence[tuple[float, str]], gap: float) -> None:
    """The final value next to each line, moved up or down where two would overlap."""
    ordered = sorted(ends)
    for height, (_, text) in zip(spaced([value for value, _ in ordered], gap), ordered, strict=True):
        _annotate_right(axes, height, text, fontsize=8)


def spaced(values: Sequence[float], gap: float) -> list[float]:
    """Heights at least `gap` apart, as near to the ascending `values` as least squares can make them.

    >>> spaced([1.0, 5.0, 5.0, 9.0], gap=1.0)
    [1.0, 4.5, 5.5, 9.0]
    """
    groups: list[list[float]] = []  # values minus the gaps below them; equal ones share their mean
    for place, value in enumerate(values):
        groups.append([value - place * gap])
        while len(groups) > 1 and fmean(groups[-2]) > fmean(groups[-1]):
            groups[-2:] = [groups[-2] + groups[-1]]
    level = [fmean(group) for group in groups for _ in group]
    return [height + place * gap for place, height in enumerate(level)]


def draw_bank_fill(axes: Axes, comparison: Comparison) -> None:
    """One strip per class, the stronger the fuller its bank, with the final number of entries at its end."""
    result = streamed(comparison)
    if result is None or result.run.bank_history is None:
        raise ValueError(f"no method compared on {comparison.name} keeps a bank.")
    history, names = result.run.bank_history, [visible(name) for name in comparison.features.class_names]
    # Labelled support samples may fill a bank beyond its size; the strongest shade is then the fullest one seen.
    capacity = max(int(result.parameters.get("bank_size") or 0), int(history.max()))
    starts = np.concatenate([[0], result.run.rows_seen[:-1]])
    colour = method_colour(result.method)
    named = len(names) <= MAX_NAMED_CLASSES
    for k in range(len(names)):
        for begin, end, count in _constant_runs(starts, result.run.rows_seen, history[:, k]):
            if count:
                # Shade by opacity, not by colour: it then reads the same on a light and on a dark page.
                shade = FULLEST_SHADE * count / capacity
                axes.broken_barh([(begin, end - begin)], (k - 0.41, 0.82), color=colour, alpha=shade, lw=0, aa=False)
        if named:
            _annotate_right(axes, k, str(history[-1, k]), fontsize=7)
    short = [name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 1]}…" for name in names]
    axes.set_yticks(range(len(names)) if named else [], short if named else [], parse_math=False)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.set_xlim(0, comparison.features.n_samples)
    style_axes(axes, "samples seen", "" if named else f"{len(names)} classes")
    axes.locator_params(axis="x", nbins=5, steps=[1, 2, 5, 10])
    axes.tick_params(axis="y", labelsize=7)


def streamed(comparison: Comparison) -> Result | None:
    """The result with the longest bank history (the online one); None where no method keeps a bank."""
    kept = [r for r in comparison.results if r.run.bank_history is not None and r.run.bank_history.any()]
    return max(kept, key=lambda result: len(result.run.rows_seen), default=None)


def _constant_runs(starts: np.ndarray, stops: np.ndarray, counts: np.ndarray) -> list[tuple[int, int, int]]:
    """(first row, row after the last, count) of each run of equal counts: one rectangle each."""
    breaks = np.flatnonzero(np.diff(counts)) + 1
    firsts, lasts = np.concatenate([[0], breaks]), np.concatenate([breaks - 1, [len(counts) - 1]])
    return [(int(starts[i]), int(stops[j]), int(counts[i])) for i, j in zip(firsts, lasts, strict=True)]


def draw_accuracy_bars(axes: Axes, comparisons: Sequence[Comparison]) -> None:
    """Per set its title and, below it, one bar per method."""
    thickness = 1 / (len(comparisons[0].results) + 2.4)
    for row, comparison in enumerate(comparisons):
        annotate(axes, (0, row - 0.5 + 1.1 * thickness), comparison.title, fontsize=8.5)
        for place, result in enumerate(comparison.results):
            if result.accuracy is None:
                raise ValueError(f"accuracy needs labels, and {comparison.name} has none.")
            at, length = row - 0.5 + (place + 2.3) * thickness, 100 * result.accuracy
            axes.barh(at, length, 0.86 * thickness, color=method_colour(result.method, place))
            annotate(axes, (length, at), percent(result.accuracy), fontsize=7.5)
    axes.set_ylim(len(comparisons) - 0.5, -0.5)
    axes.set_xlim(0, 100)
    axes.set_yticks([])
    style_axes(axes, "accuracy, %", "")
    axes.locator_params(axis="x", nbins=5, steps=[1, 2, 5, 10])
    axes.spines["left"].set_visible(True)


def _annotate_right(axes: Axes, height: float, text: str, fontsize: float) -> None:
    """`text` to the right of the axes, at `height` in units of the data."""
    annotate(axes, (1.0, height), text, xycoords=("axes fraction", "data"), annotation_clip=False, fontsize=fontsize)


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
    figure = _grid(comparisons, draw_running_accuracy, titled_with_gains, height=2.5)
    lines = figure.axes[0].lines
    figure.legend(handles=lines, loc="outside upper left", ncols=len(lines), frameon=False, labelcolor=INK)
    return figure


def bank_fill(comparisons: Sequence[Comparison]) -> Figure:
    """`bank_fill_of` for every set."""
    return _grid(comparisons, draw_bank_fill, _bank_title, height=0.95 + _classes_height(comparisons))


def _classes_height(comparisons: Sequence[Comparison]) -> float:
    return CLASS_HEIGHT * min(MAX_NAMED_CLASSES, max(comparison.features.n_classes for comparison in comparisons))


def _one(draw: Callable[[Axes], None], height: float) -> Figure:
    figure = new_figure(WIDTH, height)
    draw(figure.add_subplot())
    return figure


def _bank_title(comparison: Comparison) -> str:
    """How many banks are full at the end."""
    result = streamed(comparison)
    if result is None or result.run.bank_history is None:
        return comparison.title
    counts = result.run.bank_history[-1]
    full = int(np.count_nonzero(counts >= (result.parameters.get("bank_size") or math.inf)))
    return f"{comparison.title}: {full} of {len(counts)} banks full"


def _grid(
    comparisons: Sequence[Comparison],
    draw: Callable[[Axes, Comparison], None],
    title: Callable[[Comparison], str],
    height: float,
) -> Figure:
    columns = min(3, len(comparisons))
    rows = math.ceil(len(comparisons) / columns)
    figure = new_figure(columns * WIDTH, rows * (height + 0.15) + 0.3, layout=None)
    figure.set_layout_engine("constrained", w_pad=0.08, h_pad=0.08, wspace=0.03, hspace=0.03)
    for place, comparison in enumerate(comparisons):
        axes = figure.add_subplot(rows, columns, place + 1)
        draw(axes, comparison)
        # On two lines: together they may be wider than the panel.
        name, separator, finding = title(comparison).rpartition(": ")
        text = f"{name}\n{finding}" if separator else finding
        axes.set_title(text, loc="left", fontsize=9, color=INK, parse_math=False)
    return figure


def figure_paths(folder: str | os.PathLike[str]) -> list[Path]:
    """Every file `write_figures` may write into `folder`; without a bank there is no figure of its filling."""
    return [Path(folder) / f"{name}{suffix}" for name in NAMES for suffix in SUFFIXES]


def write_figures(folder: str | os.PathLike[str], comparisons: Sequence[Comparison]) -> list[Path]:
    """Write every figure, each with all sets, into `folder`; existing files are replaced. Returns the paths."""
    drawn = {
        "accuracy": accuracy_bars(comparisons),
        "running_accuracy": running_accuracies(comparisons),
    }
    if all(streamed(comparison) is not None for comparison in comparisons):
        drawn["bank_fill"] = bank_fill(comparisons)
    return [path for name, figure in drawn.items() for path in save_figure(figure, folder, name, SUFFIXES)]
