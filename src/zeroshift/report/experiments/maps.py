"""Matrices in colour: heat maps on one scale, and confusions before and after.

Shades are opacities, not colours of their own: they then read the same on a light and on a dark page.
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

MORE, LESS = METHOD_COLOURS["adapt_online"], METHOD_COLOURS["adapt_transductive"]
"""Blue above zero and orange below: told apart by everyone."""

FULLEST = 0.85
"""Opacity of the greatest value: ink on it is still read, light or dark."""

NAMED, NARROW = 3.4, 2.6
"""Inches of a map with names, of which three stand side by side on a desk, and of one without, of which four do."""

MAP_FIGURES_LONGEST_NAME = 15
SMALLEST = 6.4
"""Points of the smallest letters: eight pixels on a phone."""

MAX_NAMED, MAX_WRITTEN = 40, 12
"""Columns beyond which their names, or the numbers in the fields, have no room."""

LOW = 0.22
"""Inches a row needs to be read: those of an oblong map are not higher, so that it does not fill a screen."""


@dataclass(frozen=True)
class _Scale:
    low: float
    high: float
    diverging: bool
    unit: str = ""


def shades(values: np.ndarray, low: float, high: float, diverging: bool) -> np.ndarray:
    """(H, W, 4) colours; what is not a number is left empty."""
    held = np.nan_to_num(np.asarray(values, dtype=float), nan=0.0 if diverging else low)
    above, reach = (np.abs(held), max(abs(low), abs(high))) if diverging else (held - low, high - low)
    strength = above / (reach or 1.0)
    rgba = np.empty((*held.shape, 4), dtype=np.uint8)
    rgba[..., :3] = np.where((held >= 0)[..., None] | (not diverging), _rgb(MORE), _rgb(LESS))
    rgba[..., 3] = np.round(255 * FULLEST * np.clip(strength, 0.0, 1.0))
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
    """Before, after, and what the one has more or less than the other, all of one class in a row."""
    names, whole = confusion.class_names, _Scale(0.0, 1.0, False)
    change = np.asarray(confusion.after) - np.asarray(confusion.before)
    moved = _Scale(-1.0, 1.0, True, "fraction of the class in the row; orange: fewer")

    def percent(value: float) -> str:
        text = f"{100 * value:.0f}"
        return "" if text in ("0", "-0") else text.replace("-", "\N{MINUS SIGN}")

    def signed(value: float) -> str:
        text = percent(value)
        return f"+{text}" if value > 0 and text else text

    shown = (
        (confusion.before, whole, confusion.before_label, percent),
        (confusion.after, whole, confusion.after_label, percent),
        (change, moved, "change", signed),
    )
    panels = tuple(
        _panel(values, scale, one_line(title), names, names, how, "predicted class, in percent", "true class")
        for values, scale, title, how in shown
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
    named = bool(row_names or column_names) and max(rows, columns) <= MAX_NAMED
    width = NAMED if named else NARROW
    left = 0.3 + (
        0.07 * max((len(shorten(name, MAP_FIGURES_LONGEST_NAME)) for name in row_names), default=0) if named else 0
    )
    below = 0.25 + (_below(column_names, columns, width - left) if named else 0)
    field = (width - left) / max(columns, 1)
    tall = field if rows == columns else min(field, max(LOW, 1.9 / rows))
    tall = min(tall, 0.55)
    height = below + rows * tall

    def draw(axes: Axes) -> None:
        axes.imshow(shades(values, scale.low, scale.high, scale.diverging), interpolation="none", aspect="auto")
        _names(axes, row_names if named else (), column_names if named else (), field, tall)
        if write is not None and columns <= MAX_WRITTEN:
            _write_values(axes, values, write, field)
        axes.set_xlabel(x_label, fontsize=SMALL, color=INK)
        axes.set_ylabel(y_label, fontsize=SMALL, color=INK)

    return Panel(draw, height, width, title)


def _below(names: Sequence[str], columns: int, width: float) -> float:
    """Inches the names of the columns take, flat or upright."""
    longest = max((len(shorten(one_line(name), MAP_FIGURES_LONGEST_NAME)) for name in names), default=0)
    return 0.15 if _flat(names, width / max(columns, 1)) else 0.065 * longest


def _flat(names: Sequence[str], field: float) -> bool:
    return all(0.065 * len(shorten(one_line(name), MAP_FIGURES_LONGEST_NAME)) < 0.92 * field for name in names)


def _names(axes: Axes, row_names: Sequence[str], column_names: Sequence[str], field: float, tall: float) -> None:
    style_axes(axes)
    axes.spines["bottom"].set_visible(False)
    axes.tick_params(axis="both", length=0, pad=2)
    for names, put, size in ((row_names, axes.set_yticks, tall), (column_names, axes.set_xticks, field)):
        short = [shorten(one_line(name), MAP_FIGURES_LONGEST_NAME) for name in names]
        font = min(TEXT, max(SMALLEST, 72 * size * 0.8))
        every = max(1, math.ceil(1.1 * font / (72 * size)))
        put(range(0, len(short), every), short[::every], parse_math=False, fontsize=font)
    if not _flat(column_names, field):
        axes.tick_params(axis="x", labelrotation=90)


def _write_values(axes: Axes, values: np.ndarray, write: Callable[[float], str], field: float) -> None:
    size = min(TEXT, max(SMALLEST, 72 * field * 0.34))
    for (row, column), value in np.ndenumerate(np.asarray(values, dtype=float)):
        if np.isfinite(value):
            axes.text(column, row, write(float(value)), ha="center", va="center_baseline", fontsize=size, color=INK)


def _scale_panel(scale: _Scale) -> Panel:
    """The shades from the least value to the greatest, with numbers below."""

    def draw(axes: Axes) -> None:
        ramp = np.linspace(scale.low, scale.high, 128)[None]
        extent = (scale.low, scale.high if scale.high > scale.low else scale.low + 1.0, 0.0, 1.0)
        axes.imshow(shades(ramp, scale.low, scale.high, scale.diverging), aspect="auto", extent=extent)
        style_axes(axes, scale.unit)
        axes.set_yticks([])
        axes.set_ylim(0.0, 1.6)
        axes.locator_params(axis="x", nbins=5)

    return Panel(draw, 0.55 if scale.unit else 0.38)


# The plane as several methods divide it, with the samples and the prototypes upon it.


SIZE = 2.6
SHADE = 0.34
"""Opacity of the regions: points of the same colour stand out on them."""

VECTORS = 400
"""Points beyond which they are drawn into an image: each would weigh a hundred bytes."""

REST = "other classes"
LONGEST_NAME = 16


def regions_figure(regions: Regions) -> PanelFigure:
    """A panel a method; the classes with the most samples in colours of their own, all others in the last."""
    place = _places(regions)
    shared = len(regions.class_names) > len(CLASS_COLOURS)
    last = len(CLASS_COLOURS) - 1
    named = {at: one_line(regions.class_names[k]) for k, at in enumerate(place) if not (shared and at == last)}
    if shared:
        named[last] = REST
    keys = tuple(LegendKey(named[at], CLASS_COLOURS[at], "point", MARKERS[at]) for at in sorted(named))
    panels = tuple(
        Panel(partial(_draw, regions=regions, region=region, place=place), SIZE, SIZE, _title(region))
        for region in regions.regions
    )
    return PanelFigure(panels, keys)


def _title(region: Region) -> str:
    return f"{one_line(region.label)}: {format_number(region.accuracy, 'percent')}%"


def _places(regions: Regions) -> np.ndarray:
    """(K,) which colour each class has."""
    n_classes, n_colours = len(regions.class_names), len(CLASS_COLOURS)
    if n_classes <= n_colours:
        return np.arange(n_classes)
    counts = np.bincount(regions.labels, minlength=n_classes)
    most = np.sort(np.argsort(-counts, kind="stable")[: n_colours - 1])
    place = np.full(n_classes, n_colours - 1)
    place[most] = np.arange(n_colours - 1)
    return place


def _draw(axes: Axes, regions: Regions, region: Region, place: np.ndarray) -> None:
    left, right, bottom, top = regions.extent
    palette = np.array([[int(colour[at : at + 2], 16) for at in (1, 3, 5)] for colour in CLASS_COLOURS], dtype=np.uint8)
    rgba = np.full((*region.classes.shape, 4), round(255 * SHADE), dtype=np.uint8)
    colour_of = place[region.classes]
    rgba[..., :3] = palette[colour_of]
    axes.imshow(rgba, extent=(left, right, bottom, top), origin="lower", interpolation="none", aspect="auto")
    dense = len(regions.points) > VECTORS
    size = 2.2 if dense else 3.2
    of_point = place[regions.labels]
    for at in np.unique(of_point):
        x, y = regions.points[of_point == at].T
        # A hair of ink around each, which is light on a dark page: a dark class is then seen there, too.
        axes.plot(x, y, linestyle="", marker=MARKERS[at], color=CLASS_COLOURS[at], markersize=size, rasterized=dense,
                  markeredgecolor=INK, markeredgewidth=0.0 if dense else 0.35)  # fmt: skip
    if regions.anchors is not None:
        _anchors(axes, regions, place)
    style_axes(axes)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.set_xlim(left, right)
    axes.set_ylim(bottom, top)
    axes.spines["bottom"].set_visible(False)


def _anchors(axes: Axes, regions: Regions, place: np.ndarray) -> None:
    """Prototypes as stars in ink; named where the classes are few."""
    anchors = np.asarray(regions.anchors)
    for (x, y), at, name in zip(anchors, place, regions.class_names, strict=True):
        axes.plot([x], [y], linestyle="", marker="*", markersize=10, color=CLASS_COLOURS[at], markeredgecolor=INK,
                  markeredgewidth=0.8)  # fmt: skip
        if len(anchors) <= len(CLASS_COLOURS):
            annotate(axes, (x, y), shorten(one_line(name), LONGEST_NAME), xytext=(0, 6), ha="center", va="bottom",
                 fontsize=SMALL)  # fmt: skip
