"""Figures of heat maps, of confusion matrices and of decision regions.

Shades are opacities, so that they look the same in light and in dark mode.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from zeroshift.experiments._shared.findings import Confusion, HeatMaps, Region, Regions
from zeroshift.report.experiments.panels import MARKERS, LegendKey, Panel, PanelFigure, shorten
from zeroshift.report.formatting import format_number, one_line
from zeroshift.report.style import CLASS_COLOURS, INK, METHOD_COLOURS, SMALL, TEXT, annotate, style_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["confusion_figure", "maps_figure", "regions_figure", "shades"]

ABOVE, BELOW = METHOD_COLOURS["adapt_online"], METHOD_COLOURS["adapt_transductive"]
"""Blue above zero and orange below, which everyone can distinguish."""

MAX_OPACITY = 0.85
"""Opacity of the largest value; text on it can still be read, in light and in dark mode."""

NAMED_WIDTH, PLAIN_WIDTH = 3.4, 2.6
"""Inches of a map with names (three fit next to each other on a desktop) and without (four fit)."""

MAX_NAME_LETTERS = 15

MIN_TEXT = 6.4
"""Points of the smallest letters: eight pixels on a phone."""

MAX_NAMED_COLUMNS, MAX_WRITTEN_COLUMNS = 40, 12
"""With more columns there is no room for their names, or for numbers."""

ROW_HEIGHT = 0.22
"""Inches of a row that is readable; the rows of a wide map are not higher."""

REGIONS_SIZE = 2.6
"""Inches of a panel of decision regions."""

REGION_OPACITY = 0.34
"""Opacity of regions, on which points of the same colour are visible."""

MAX_VECTOR_POINTS = 400
"""More points are drawn as a raster image, because each takes a hundred bytes."""

OTHER_CLASSES = "other classes"
MAX_ANCHOR_LETTERS = 16


@dataclass(frozen=True)
class _Scale:
    low: float
    high: float
    diverging: bool
    unit: str = ""


def shades(values: np.ndarray, low: float, high: float, diverging: bool) -> np.ndarray:
    """(H, W, 4) colours; values that are not numbers are transparent."""
    known = np.nan_to_num(np.asarray(values, dtype=float), nan=0.0 if diverging else low)
    above, reach = (np.abs(known), max(abs(low), abs(high))) if diverging else (known - low, high - low)
    strength = above / (reach or 1.0)
    rgba = np.empty((*known.shape, 4), dtype=np.uint8)
    rgba[..., :3] = np.where((known >= 0)[..., None] | (not diverging), _rgb(ABOVE), _rgb(BELOW))
    rgba[..., 3] = np.round(255 * MAX_OPACITY * np.clip(strength, 0.0, 1.0))
    return rgba


def _rgb(colour: str) -> list[int]:
    return [int(colour[at : at + 2], 16) for at in (1, 3, 5)]


def maps_figure(maps: HeatMaps) -> PanelFigure:
    finite = [one.values[np.isfinite(one.values)] for one in maps.maps]
    low = min((float(part.min()) for part in finite if part.size), default=0.0)
    high = max((float(part.max()) for part in finite if part.size), default=1.0)
    if maps.diverging:
        low, high = -max(abs(low), abs(high)), max(abs(low), abs(high))
    scale = _Scale(low, high, maps.diverging, maps.unit)
    decimals = 0 if high - low >= 100 else 1 if high - low >= 10 else 2

    def with_decimals(value: float) -> str:
        return f"{value:.{decimals}f}".replace("-", "\N{MINUS SIGN}")

    panels = tuple(
        _panel(
            one.values,
            scale,
            one_line(one.title),
            one.row_labels,
            one.column_labels,
            with_decimals if maps.written else None,
        )
        for one in maps.maps
    )
    return PanelFigure(panels, scale=_scale_panel(scale))


def confusion_figure(confusion: Confusion) -> PanelFigure:
    """Before, after, and the change; one row per true class."""
    names, whole = confusion.class_names, _Scale(0.0, 1.0, False)
    change = np.asarray(confusion.after) - np.asarray(confusion.before)
    moved = _Scale(-1.0, 1.0, True, "fraction of the class in the row; orange: fewer")

    def percent(value: float) -> str:
        text = f"{100 * value:.0f}"
        return "" if text in ("0", "-0") else text.replace("-", "\N{MINUS SIGN}")

    def signed(value: float) -> str:
        text = percent(value)
        return f"+{text}" if value > 0 and text else text

    parts = (
        (confusion.before, whole, confusion.before_label, percent),
        (confusion.after, whole, confusion.after_label, percent),
        (change, moved, "change", signed),
    )
    panels = tuple(
        _panel(values, scale, one_line(title), names, names, write, "predicted class, in percent", "true class")
        for values, scale, title, write in parts
    )
    return PanelFigure(panels, scale=_scale_panel(moved))


def _panel(
    values: np.ndarray,
    scale: _Scale,
    title: str,
    row_names: Sequence[str],
    column_names: Sequence[str],
    write: Callable[[float], str] | None,
    x_label: str = "",
    y_label: str = "",
) -> Panel:
    rows, columns = np.shape(values)
    named = bool(row_names or column_names) and max(rows, columns) <= MAX_NAMED_COLUMNS
    width = NAMED_WIDTH if named else PLAIN_WIDTH
    left = 0.3 + (0.07 * max((len(shorten(name, MAX_NAME_LETTERS)) for name in row_names), default=0) if named else 0)
    below = 0.25 + (_names_height(column_names, columns, width - left) if named else 0)
    field = (width - left) / max(columns, 1)
    tall = field if rows == columns else min(field, max(ROW_HEIGHT, 1.9 / rows))
    tall = min(tall, 0.55)
    height = below + rows * tall

    def draw(axes: Axes) -> None:
        axes.imshow(shades(values, scale.low, scale.high, scale.diverging), interpolation="none", aspect="auto")
        _set_names(axes, row_names if named else (), column_names if named else (), field, tall)
        if write is not None and columns <= MAX_WRITTEN_COLUMNS:
            _write_values(axes, values, write, field)
        axes.set_xlabel(x_label, fontsize=SMALL, color=INK)
        axes.set_ylabel(y_label, fontsize=SMALL, color=INK)

    return Panel(draw, height, width, title)


def _names_height(names: Sequence[str], columns: int, width: float) -> float:
    """Inches that the names of the columns take, horizontal or vertical."""
    longest = max((len(shorten(one_line(name), MAX_NAME_LETTERS)) for name in names), default=0)
    return 0.15 if _are_horizontal(names, width / max(columns, 1)) else 0.065 * longest


def _are_horizontal(names: Sequence[str], field: float) -> bool:
    return all(0.065 * len(shorten(one_line(name), MAX_NAME_LETTERS)) < 0.92 * field for name in names)


def _set_names(axes: Axes, row_names: Sequence[str], column_names: Sequence[str], field: float, tall: float) -> None:
    style_axes(axes)
    axes.spines["bottom"].set_visible(False)
    axes.tick_params(axis="both", length=0, pad=2)
    for names, put, size in ((row_names, axes.set_yticks, tall), (column_names, axes.set_xticks, field)):
        short = [shorten(one_line(name), MAX_NAME_LETTERS) for name in names]
        font = min(TEXT, max(MIN_TEXT, 72 * size * 0.8))
        every = max(1, math.ceil(1.1 * font / (72 * size)))
        put(range(0, len(short), every), short[::every], parse_math=False, fontsize=font)
    if not _are_horizontal(column_names, field):
        axes.tick_params(axis="x", labelrotation=90)


def _write_values(axes: Axes, values: np.ndarray, write: Callable[[float], str], field: float) -> None:
    size = min(TEXT, max(MIN_TEXT, 72 * field * 0.34))
    for (row, column), value in np.ndenumerate(np.asarray(values, dtype=float)):
        if np.isfinite(value):
            axes.text(column, row, write(float(value)), ha="center", va="center_baseline", fontsize=size, color=INK)


def _scale_panel(scale: _Scale) -> Panel:
    """All shades from the smallest value to the largest, with numbers below."""

    def draw(axes: Axes) -> None:
        ramp = np.linspace(scale.low, scale.high, 128)[None]
        extent = (scale.low, scale.high if scale.high > scale.low else scale.low + 1.0, 0.0, 1.0)
        axes.imshow(shades(ramp, scale.low, scale.high, scale.diverging), aspect="auto", extent=extent)
        style_axes(axes, scale.unit)
        axes.set_yticks([])
        axes.set_ylim(0.0, 1.6)
        axes.locator_params(axis="x", nbins=5)

    return Panel(draw, 0.55 if scale.unit else 0.38)


def regions_figure(regions: Regions) -> PanelFigure:
    """One panel per method; the classes with the most samples have their own colours, all others share the last."""
    colour_index = _colour_indices(regions)
    shared = len(regions.class_names) > len(CLASS_COLOURS)
    last = len(CLASS_COLOURS) - 1
    named = {at: one_line(regions.class_names[k]) for k, at in enumerate(colour_index) if not (shared and at == last)}
    if shared:
        named[last] = OTHER_CLASSES
    keys = tuple(LegendKey(named[at], CLASS_COLOURS[at], "point", MARKERS[at]) for at in sorted(named))
    panels = tuple(
        Panel(
            partial(_draw_region, regions=regions, region=region, colour_index=colour_index),
            REGIONS_SIZE,
            REGIONS_SIZE,
            _title(region),
        )
        for region in regions.regions
    )
    return PanelFigure(panels, keys)


def _title(region: Region) -> str:
    return f"{one_line(region.label)}: {format_number(region.accuracy, 'percent')}%"


def _colour_indices(regions: Regions) -> np.ndarray:
    """(K,) index of the colour of each class."""
    n_classes, n_colours = len(regions.class_names), len(CLASS_COLOURS)
    if n_classes <= n_colours:
        return np.arange(n_classes)
    counts = np.bincount(regions.labels, minlength=n_classes)
    most = np.sort(np.argsort(-counts, kind="stable")[: n_colours - 1])
    indices = np.full(n_classes, n_colours - 1)
    indices[most] = np.arange(n_colours - 1)
    return indices


def _draw_region(axes: Axes, regions: Regions, region: Region, colour_index: np.ndarray) -> None:
    left, right, bottom, top = regions.extent
    palette = np.array([_rgb(colour) for colour in CLASS_COLOURS], dtype=np.uint8)
    rgba = np.full((*region.classes.shape, 4), round(255 * REGION_OPACITY), dtype=np.uint8)
    rgba[..., :3] = palette[colour_index[region.classes]]
    axes.imshow(rgba, extent=(left, right, bottom, top), origin="lower", interpolation="none", aspect="auto")
    dense = len(regions.points) > MAX_VECTOR_POINTS
    size = 2.2 if dense else 3.2
    of_point = colour_index[regions.labels]
    for at in np.unique(of_point):
        x, y = regions.points[of_point == at].T
        # A thin edge in ink, which is light in dark mode, keeps dark colours visible there.
        axes.plot(x, y, linestyle="", marker=MARKERS[at], color=CLASS_COLOURS[at], markersize=size, rasterized=dense,
                  markeredgecolor=INK, markeredgewidth=0.0 if dense else 0.35)  # fmt: skip
    if regions.anchors is not None:
        _draw_anchors(axes, regions, colour_index)
    style_axes(axes)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.set_xlim(left, right)
    axes.set_ylim(bottom, top)
    axes.spines["bottom"].set_visible(False)


def _draw_anchors(axes: Axes, regions: Regions, colour_index: np.ndarray) -> None:
    """Prototypes as stars, with names where there are few classes."""
    anchors = np.asarray(regions.anchors)
    for (x, y), at, name in zip(anchors, colour_index, regions.class_names, strict=True):
        axes.plot([x], [y], linestyle="", marker="*", markersize=10, color=CLASS_COLOURS[at], markeredgecolor=INK,
                  markeredgewidth=0.8)  # fmt: skip
        if len(anchors) <= len(CLASS_COLOURS):
            annotate(axes, (x, y), shorten(one_line(name), MAX_ANCHOR_LETTERS), xytext=(0, 6), ha="center", va="bottom",
                 fontsize=SMALL)  # fmt: skip
