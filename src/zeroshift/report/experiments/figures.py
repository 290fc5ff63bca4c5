"""A finding as a figure: one image with everything in it for a file, or panel by panel for the page."""

from __future__ import annotations

import math
import os
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from zeroshift.experiments import Chapter
from zeroshift.experiments._shared.findings import Bars, Confusion, Finding, HeatMaps, Lines, Regions, Reliability
from zeroshift.report.experiments.charts import bars_figure, lines_figure, reliability_figure
from zeroshift.report.experiments.headlines import finding_title
from zeroshift.report.experiments.maps import confusion_figure, maps_figure, regions_figure
from zeroshift.report.experiments.panels import WIDTH, LegendKey, Panel, PanelFigure
from zeroshift.report.experiments.tables import make_folder, named_findings
from zeroshift.report.style import INK, TEXT, new_figure, save_figure

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.figure import Figure

__all__ = ["figure_of", "panel_figure", "panels_of", "write_figures"]

RASTER_DPI = 200
"""Resolution of raster images inside a figure."""

MAX_COLUMNS = 3
PANEL_TITLE_HEIGHT = 0.25
"""Inches of the title of a panel."""

LETTERS_PER_INCH = 13
"""Letters of a title."""


def panels_of(finding: Finding) -> PanelFigure | None:
    """The panels of a finding; None for tables and remarks."""
    match finding:
        case Lines():
            return lines_figure(finding)
        case Bars():
            return bars_figure(finding)
        case HeatMaps():
            return maps_figure(finding)
        case Reliability():
            return reliability_figure(finding)
        case Confusion():
            return confusion_figure(finding)
        case Regions():
            return regions_figure(finding)
    return None


def panel_figure(panel: Panel) -> Figure:
    """One panel, without its title, for the page."""
    figure = new_figure(panel.width, panel.height, dpi=RASTER_DPI)
    panel.draw(figure.add_subplot())
    return figure


def figure_of(finding: Finding) -> Figure | None:
    """All panels of a finding with title, legend and scale; None for tables and remarks."""
    drawn = panels_of(finding)
    if drawn is None or isinstance(finding, str):
        return None
    columns = 2 if len(drawn.panels) == 4 else min(MAX_COLUMNS, len(drawn.panels))
    rows = math.ceil(len(drawn.panels) / columns)
    width = max(WIDTH, columns * max(panel.width for panel in drawn.panels))
    title = textwrap.fill(finding_title(finding), int(LETTERS_PER_INCH * width))
    heights = [
        max(
            panel.height + (PANEL_TITLE_HEIGHT if panel.title else 0)
            for panel in drawn.panels[row * columns :][:columns]
        )
        for row in range(rows)
    ]
    if drawn.scale is not None:
        heights.append(drawn.scale.height)
    keys_height = 0.2 * _key_rows(drawn.keys, width)
    height = sum(heights) + 0.22 * (1 + title.count("\n")) + keys_height
    figure = new_figure(width, height, dpi=RASTER_DPI, layout=None)
    figure.set_layout_engine("constrained", w_pad=0.06, h_pad=0.05, wspace=0.03, hspace=0.03)
    figure.suptitle(title, x=0.02, ha="left", fontsize=TEXT + 2, color=INK, parse_math=False)
    places = figure.add_gridspec(len(heights), columns, height_ratios=heights)
    for at, panel in enumerate(drawn.panels):
        axes = figure.add_subplot(places[at // columns, at % columns])
        panel.draw(axes)
        if panel.title:
            shown = textwrap.shorten(panel.title, int(LETTERS_PER_INCH * panel.width), placeholder="…")
            axes.set_title(shown, loc="left", fontsize=TEXT + 0.5, color=INK, parse_math=False)
    if drawn.scale is not None:
        drawn.scale.draw(figure.add_subplot(places[-1, :]))
    if drawn.keys:
        names = [key.label for key in drawn.keys]
        legend = figure.legend(
            [_handle(key) for key in drawn.keys], names, loc="outside lower left", frameon=False, labelcolor=INK,
            fontsize=TEXT, ncols=_key_columns(drawn.keys, width), handlelength=1.6, columnspacing=1.4,
        )  # fmt: skip
        for text in legend.get_texts():
            text.set_parse_math(False)
    return figure


def _key_columns(keys: tuple[LegendKey, ...], width: float) -> int:
    longest = max((len(key.label) for key in keys), default=1)
    return max(1, min(len(keys), int(width / (0.45 + 0.068 * longest))))


def _key_rows(keys: tuple[LegendKey, ...], width: float) -> int:
    return math.ceil(len(keys) / _key_columns(keys, width)) if keys else 0


def _handle(key: LegendKey) -> Artist:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    if key.mark == "box":
        return Patch(color=key.colour)
    if key.mark == "point":
        return Line2D([], [], color=key.colour, linestyle="", marker=key.shape, markersize=4.5)
    dashes = (4.0, 1.6) if key.mark == "dashed" else (None, None)
    return Line2D([], [], color=key.colour, dashes=dashes, marker=key.shape or None, markersize=4)


def write_figures(folder: str | os.PathLike[str], chapters: Sequence[Chapter]) -> list[Path]:
    """Every figure as EXPERIMENT-NAME.svg and .png on white; existing files of these names are replaced."""
    target, paths = make_folder(folder), []
    for name, finding in named_findings(chapters):
        figure = figure_of(finding)
        if figure is not None:
            paths += save_figure(figure, target, name, (".svg", ".png"))
    return paths
