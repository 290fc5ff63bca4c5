"""A finding as a figure: one picture with everything in it for a file, or panel by panel for the page.

matplotlib is imported where it is used: importing zeroshift must not wait for it. No pyplot, hence no global state.
"""

from __future__ import annotations

import math
import os
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from zeroshift.experiments import Chapter
from zeroshift.experiments._shared.findings import Bars, Confusion, Finding, HeatMaps, Lines, Regions, Reliability
from zeroshift.files import atomic_path
from zeroshift.report.experiments.charts import sketch_bars, sketch_lines, sketch_reliability
from zeroshift.report.experiments.maps import sketch_confusion, sketch_maps, sketch_regions
from zeroshift.report.experiments.panels import TEXT, WIDTH, Key, Panel, Sketch
from zeroshift.report.experiments.tables import make_folder, named_findings
from zeroshift.report.formatting import one_line
from zeroshift.report.palette import INK, svg_bytes

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.figure import Figure

__all__ = ["figure_of", "panel_figure", "sketch_of", "write_figures"]

RASTER_DPI = 200
"""Of what is drawn into an image inside a figure."""

MAX_COLUMNS = 3
HEADING = 0.25
"""Inches of a panel's title."""

LETTERS = 13
"""Letters of a title that fit into an inch."""


def sketch_of(finding: Finding) -> Sketch | None:
    """What there is to draw; None for tables and remarks."""
    match finding:
        case Lines():
            return sketch_lines(finding)
        case Bars():
            return sketch_bars(finding)
        case HeatMaps():
            return sketch_maps(finding)
        case Reliability():
            return sketch_reliability(finding)
        case Confusion():
            return sketch_confusion(finding)
        case Regions():
            return sketch_regions(finding)
    return None


def panel_figure(panel: Panel) -> Figure:
    """One panel, without its title, for the page."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(panel.width, panel.height), dpi=RASTER_DPI, layout="constrained")
    panel.draw(figure.add_subplot())
    return figure


def figure_of(finding: Finding) -> Figure | None:
    """All panels of a finding with its title, what the colours mean and the scale; None for tables and remarks."""
    from matplotlib.figure import Figure

    sketch = sketch_of(finding)
    if sketch is None or isinstance(finding, str):
        return None
    columns = 2 if len(sketch.panels) == 4 else min(MAX_COLUMNS, len(sketch.panels))
    rows = math.ceil(len(sketch.panels) / columns)
    width = max(WIDTH, columns * max(panel.width for panel in sketch.panels))
    title = textwrap.fill(one_line(getattr(finding, "title", "")), int(LETTERS * width))
    heights = [
        max(panel.height + (HEADING if panel.title else 0) for panel in sketch.panels[row * columns :][:columns])
        for row in range(rows)
    ]
    if sketch.scale is not None:
        heights.append(sketch.scale.height)
    keys_height = 0.2 * _key_rows(sketch.keys, width)
    figure = Figure(figsize=(width, sum(heights) + 0.22 * (1 + title.count("\n")) + keys_height), dpi=RASTER_DPI)
    figure.set_layout_engine("constrained", w_pad=0.06, h_pad=0.05, wspace=0.03, hspace=0.03)
    figure.suptitle(title, x=0.02, ha="left", fontsize=TEXT + 2, color=INK, parse_math=False)
    places = figure.add_gridspec(len(heights), columns, height_ratios=heights)
    for at, panel in enumerate(sketch.panels):
        axes = figure.add_subplot(places[at // columns, at % columns])
        panel.draw(axes)
        if panel.title:
            shown = textwrap.shorten(panel.title, int(LETTERS * panel.width), placeholder="…")
            axes.set_title(shown, loc="left", fontsize=TEXT + 0.5, color=INK, parse_math=False)
    if sketch.scale is not None:
        sketch.scale.draw(figure.add_subplot(places[-1, :]))
    if sketch.keys:
        names = [key.label for key in sketch.keys]
        legend = figure.legend(
            [_handle(key) for key in sketch.keys], names, loc="outside lower left", frameon=False, labelcolor=INK,
            fontsize=TEXT, ncols=_key_columns(sketch.keys, width), handlelength=1.6, columnspacing=1.4,
        )  # fmt: skip
        for text in legend.get_texts():
            text.set_parse_math(False)
    return figure


def _key_columns(keys: tuple[Key, ...], width: float) -> int:
    longest = max((len(key.label) for key in keys), default=1)
    return max(1, min(len(keys), int(width / (0.45 + 0.068 * longest))))


def _key_rows(keys: tuple[Key, ...], width: float) -> int:
    return math.ceil(len(keys) / _key_columns(keys, width)) if keys else 0


def _handle(key: Key) -> Artist:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    if key.mark == "box":
        return Patch(color=key.colour)
    if key.mark == "point":
        return Line2D([], [], color=key.colour, linestyle="", marker=key.shape, markersize=4.5)
    dashes = (4.0, 1.6) if key.mark == "dashed" else (None, None)
    return Line2D([], [], color=key.colour, dashes=dashes, marker=key.shape or None, markersize=4)


# Figures as files, SVG and PNG: for a paper, a README or a slide.


PNG_DPI = 160


def write_figures(folder: str | os.PathLike[str], chapters: Sequence[Chapter]) -> list[Path]:
    """Every figure into `folder` as EXPERIMENT-NAME.svg and .png, on white; older ones are replaced."""
    target, written = make_folder(folder), []
    for name, finding in named_findings(chapters):
        figure = figure_of(finding)
        if figure is None:
            continue
        for suffix in (".svg", ".png"):
            with atomic_path(target / f"{name}{suffix}") as temporary:
                if suffix == ".svg":
                    temporary.write_bytes(svg_bytes(figure))
                else:
                    # Without the "Software" entry the bytes do not change with matplotlib's version number alone.
                    figure.savefig(temporary, format="png", dpi=PNG_DPI, metadata={"Software": None})
            written.append(target / f"{name}{suffix}")
    return written
