"""One picture of growth: time of a sample against samples seen, against K, against d, a line for each engine."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zeroshift.benchmarks.growth import furthest
from zeroshift.files import atomic_path
from zeroshift.report.palette import INK, METHOD_COLOURS, OTHER_COLOURS
from zeroshift.report.svg import svg_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["figure_paths", "growth_figure", "write_figures"]

WIDTH, HEIGHT = 3.6, 2.7
PNG_DPI = 160
COLOURS = {
    "direct": METHOD_COLOURS["zero_shot"],
    "streaming": METHOD_COLOURS["adapt_online"],
    "transductive": METHOD_COLOURS["adapt_transductive"],
}
"""The definition recedes; the methods keep the colours they have elsewhere."""


def growth_figure(growth: Mapping[str, Any]) -> Figure:
    """Panels for which there is something to draw; the largest line of each kind where there are several."""
    from matplotlib.figure import Figure

    panels = _panels(growth)
    figure = Figure(figsize=(max(1, len(panels)) * WIDTH, HEIGHT), layout="constrained")
    handles: dict[str, Any] = {}
    for place, (title, label, curves) in enumerate(panels):
        axes = figure.add_subplot(1, len(panels), place + 1)
        for position, (engine, curve) in enumerate(curves.items()):
            colour = COLOURS.get(engine, OTHER_COLOURS[position % len(OTHER_COLOURS)])
            milliseconds = [1e3 * seconds for _, seconds in curve]
            (line,) = axes.plot(
                [at for at, _ in curve], milliseconds, color=colour, linewidth=1.5, marker=".", label=engine
            )
            handles.setdefault(engine, line)
        _style(axes, title, label, categories=None if place == 0 else _places(curves))
    if handles:
        figure.legend(
            handles=list(handles.values()), loc="outside upper left", ncols=len(handles), frameon=False, labelcolor=INK
        )
    return figure


def _panels(growth: Mapping[str, Any]) -> list[tuple[str, str, dict[str, list[list[float]]]]]:
    """(title, what is along the bottom, curves): of several groups the one that reaches furthest."""
    kinds = {"seen": "samples seen", "classes": "K", "dimension": "d"}
    found = ((furthest(growth[kind]), label) for kind, label in kinds.items())
    return [(group["title"], label, group["engines"]) for group, label in found if group is not None]


def _places(curves: Mapping[str, Sequence[Sequence[float]]]) -> list[float]:
    return sorted({at for curve in curves.values() for at, _ in curve})


def _style(axes: Axes, title: str, label: str, categories: list[float] | None) -> None:
    """Logarithmic upwards: engines differ by orders of magnitude. Sizes double, so they are drawn that way too."""
    from matplotlib.ticker import NullFormatter, NullLocator, StrMethodFormatter

    axes.set_yscale("log")
    low, high = axes.dataLim.intervaly
    axes.set_ylim(10 ** math.floor(math.log10(low) - 0.05), 10 ** math.ceil(math.log10(high) + 0.05))
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    if categories is not None:
        axes.set_xscale("log")
        axes.set_xticks(categories, [f"{at:g}" for at in categories])
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_minor_formatter(NullFormatter())
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set(color=INK, alpha=0.5, linewidth=0.7)
    axes.set_facecolor("none")
    axes.set_xlabel(label, fontsize=8, color=INK)
    axes.set_ylabel("ms a sample", fontsize=8, color=INK)
    axes.tick_params(colors=INK, labelsize=8, width=0.7, length=3)
    axes.grid(axis="y", color=INK, alpha=0.12, linewidth=0.6)
    axes.set_title(title, loc="left", fontsize=9, color=INK, parse_math=False)


def figure_paths(folder: str | os.PathLike[str]) -> list[Path]:
    return [Path(folder) / f"growth{suffix}" for suffix in (".png", ".svg")]


def write_figures(folder: str | os.PathLike[str], growth: Mapping[str, Any]) -> list[Path]:
    """Write the picture as PNG and SVG; returns the paths."""
    figure = growth_figure(growth)
    for path in figure_paths(folder):
        with atomic_path(path) as temporary:
            if path.suffix == ".svg":
                temporary.write_bytes(svg_bytes(figure))
            else:
                figure.savefig(temporary, format="png", dpi=PNG_DPI, metadata={"Software": None})
    return figure_paths(folder)
