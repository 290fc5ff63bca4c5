"""The plane as several methods divide it, with the samples and the prototypes upon it."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from zeroshift.experiments.parts.findings import Region, Regions
from zeroshift.report.experiments.grid import harmless, written
from zeroshift.report.experiments.pen import SMALL, note, style
from zeroshift.report.experiments.sketch import MARKERS, Key, Panel, Sketch, shortened
from zeroshift.report.palette import CLASS_COLOURS, INK

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["sketch_regions"]

SIZE = 2.6
SHADE = 0.34
"""Opacity of the regions: points of the same colour stand out on them."""

VECTORS = 400
"""Points beyond which they are drawn into an image: each would weigh a hundred bytes."""

REST = "other classes"
LONGEST_NAME = 16


def sketch_regions(regions: Regions) -> Sketch:
    """A panel a method; the classes with the most samples in colours of their own, all others in the last."""
    place = _places(regions)
    shared = len(regions.class_names) > len(CLASS_COLOURS)
    last = len(CLASS_COLOURS) - 1
    named = {at: harmless(regions.class_names[k]) for k, at in enumerate(place) if not (shared and at == last)}
    if shared:
        named[last] = REST
    keys = tuple(Key(named[at], CLASS_COLOURS[at], "point", MARKERS[at]) for at in sorted(named))
    panels = tuple(
        Panel(partial(_draw, regions=regions, region=region, place=place), SIZE, SIZE, _title(region))
        for region in regions.regions
    )
    return Sketch(panels, keys)


def _title(region: Region) -> str:
    return f"{harmless(region.label)}: {written(region.accuracy, 'percent')}%"


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
    style(axes)
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
            note(axes, (x, y), shortened(harmless(name), LONGEST_NAME), xytext=(0, 6), ha="center", va="bottom",
                 fontsize=SMALL)  # fmt: skip
