"""Figures as the page holds them: an SVG a panel, in the page's colours and as few bytes as can be."""

from __future__ import annotations

import re
import warnings
from typing import Any

from zeroshift.experiments.parts.findings import Finding, Regions
from zeroshift.report.experiments.figure import panel_figure, sketch_of
from zeroshift.report.experiments.grid import harmless
from zeroshift.report.experiments.sketch import Key, Panel
from zeroshift.report.experiments.spoken import spoken
from zeroshift.report.palette import EXPERIMENT_COLOURS, PAGE_COLOURS
from zeroshift.report.svg import inline_svg

__all__ = ["page_colour", "page_figure", "prose"]

LEAST, MOST = 1.14, 1.6
"""Pixels of the page a point of a figure takes: with fewer, small letters are not read; with more, they shout."""

POINTS_AN_INCH = 72

SHAPES = {
    "o": "M5 1a4 4 0 1 0 .01 0z", "s": "M1.5 1.5h7v7h-7z", "^": "M5 1l4.3 7.6H.7z", "D": "M5 .6L9.4 5 5 9.4.6 5z",
    "v": "M5 9l4.3-7.6H.7z", "P": "M3.5.8h3v2.7h2.7v3H6.5v2.7h-3V6.5H.8v-3h2.7z",
    "X": "M2.6.6L5 3 7.4.6l2 2L7 5l2.4 2.4-2 2L5 7 2.6 9.4l-2-2L3 5 .6 2.6z",
    "*": "M5 .3l1.2 3.4h3.6L6.9 5.9 8 9.4 5 7.2 2 9.4l1.1-3.5L.2 3.7h3.6z",
    "<": "M1 5l7.6-4.3v8.6z", ">": "M9 5L1.4.7v8.6z",
}  # fmt: skip
"""Outlines of the shapes of points, in a square of ten, for the words beside a figure."""


def page_figure(name: str, finding: Finding) -> dict[str, Any] | None:
    """What the template shows of a finding; None for tables and remarks. `name` keeps its ids apart from others'."""
    sketch = sketch_of(finding)
    if sketch is None:
        return None
    title, said = harmless(getattr(finding, "title", "")), spoken(finding)
    several = len(sketch.panels) > 1
    panels = []
    for place, panel in enumerate(sketch.panels):
        label = f"{title}: {panel.title}" if several else said
        panels.append({"title": panel.title, **_drawn(panel, f"{name}-{place}", label)})
    scale = None if sketch.scale is None else _drawn(sketch.scale, f"{name}-scale", f"Scale of colours: {title}")
    return {
        "id": name,
        "title": title,
        "caption": prose(getattr(finding, "caption", "")),
        "spoken": said,
        "several": several,
        "panels": panels,
        "keys": [_key(key) for key in sketch.keys],
        "scale": scale,
        "haloed": isinstance(finding, Regions),
    }


def prose(text: str) -> str:
    """A sentence of a finding; a hyphen before a number, with nothing but a bracket or a space before it, is a minus.

    >>> prose("It lost on t-shirts (-1.2 points).")
    'It lost on t-shirts (−1.2 points).'
    """
    return re.sub(r"(?<![^\s(\[])-(?=\d)", "\N{MINUS SIGN}", harmless(text))


def page_colour(colour: str) -> str:
    """What a colour of a figure is called in the page's style sheet; one it does not have stays as it is."""
    return PAGE_COLOURS.get(colour) or EXPERIMENT_COLOURS.get(colour, colour)


def _key(key: Key) -> dict[str, str]:
    shape = "" if key.mark in ("line", "dashed", "box") and not key.shape else key.shape
    return {"label": key.label, "colour": page_colour(key.colour), "mark": key.mark, "path": SHAPES.get(shape, "")}


def _drawn(panel: Panel, name: str, label: str) -> dict[str, Any]:
    with warnings.catch_warnings():
        # A letter that matplotlib's own font lacks: the browser, whose fonts the text is shown in, may have it.
        warnings.filterwarnings("ignore", message="Glyph")
        svg = inline_svg(panel_figure(panel), name=name, label=label)
    for colour, page in EXPERIMENT_COLOURS.items():
        svg = svg.replace(colour, page)
    points = POINTS_AN_INCH * panel.width
    return {"svg": _slim(svg), "least": round(LEAST * points), "most": round(MOST * points)}


def _slim(svg: str) -> str:
    """Coordinates to a hundredth of a point, weights kept apart from matplotlib's own font, no defaults repeated."""
    # What matplotlib says of all elements would hold for the whole page, and is said in its style sheet.
    svg = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", svg, flags=re.DOTALL)
    svg = re.sub(r"font: (bold|[5-9]00) ([\d.]+px)[^;\"]*", r"font-weight: \1; font-size: \2", svg)
    svg = re.sub(r'(?<=[\s"])(d|x|y|points)="[^"]*"', _rounded, svg)
    svg = re.sub(r' transform="rotate\(-0 [^"]*\)"', "", svg)
    return re.sub(r">\s+<", "><", svg)


def _rounded(match: re.Match[str]) -> str:
    text = re.sub(r"-?\d+\.\d{3,}", lambda number: f"{float(number[0]):.2f}".rstrip("0").rstrip("."), match[0])
    return re.sub(r"\s+", " ", text)
