"""How every figure looks, and how it becomes a file or a part of a page.

Figures are drawn in fixed colours. A page's style sheet replaces these by its own, which differ in light and dark mode
(`PAGE_COLOURS`). matplotlib is imported where it is used: importing zeroshift must not wait for it. No pyplot, hence no
global state.
"""

from __future__ import annotations

import io
import math
import os
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zeroshift.files import atomic_path
from zeroshift.report.formatting import visible

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "CLASS_COLOURS",
    "INK",
    "METHOD_COLOURS",
    "OTHER_COLOURS",
    "PAGE_COLOURS",
    "SERIES_COLOURS",
    "SMALL",
    "TEXT",
    "annotate",
    "inline_svg",
    "label_points",
    "method_colour",
    "new_figure",
    "save_figure",
    "style_axes",
    "svg_bytes",
]

INK = "#1c2128"
"""Text and axes."""

METHOD_COLOURS = {
    "zero_shot": "#768390",
    "adapt_online": "#1f6feb",
    "adapt_transductive": "#bf5b04",
    "anchored_mixture_online": "#0a2c6b",
    "anchored_mixture_transductive": "#7d1a12",
}
"""Blue is online, orange and red are transductive; of each, the stronger shade is the mixture, so that shades can be
distinguished without seeing red or green. None of these is one of `SERIES_COLOURS`."""

OTHER_COLOURS = ("#1a7f37", "#8250df", "#bf3989", "#0a7d91")
"""For methods without a colour of their own, in their order."""

SERIES_COLOURS = (*OTHER_COLOURS, "#9a6700", "#c4432b", "#4453c4", "#5f7a1f")
"""For lines that are not methods: sets, classes, settings."""

CLASS_COLOURS = (
    "#5890d0", "#f1be1d", "#276b52", "#d78c9e", "#6056d9", "#50e586", "#76541f", "#2adff3", "#8a3c81", "#808f13",
)  # fmt: skip
"""For classes in decision regions: chosen to differ for readers who see no red or no green, and of medium lightness,
because a raster image has the same colours in light and dark mode."""

PAGE_COLOURS = {
    INK: "currentColor",
    **{colour: f"var(--{name.replace('_', '-')})" for name, colour in METHOD_COLOURS.items()},
    **{colour: f"var(--series-{place + 1})" for place, colour in enumerate(SERIES_COLOURS)},
}
"""The colours of figures, and what a page shows instead."""

TEXT, SMALL = 8.0, 7.0
"""Sizes of text in points; a phone shows a point as 1.25 pixels."""

LABEL_RISES = (4, -12, 16, -24, 28, -36, 40, 52, 64)
"""Points by which a label may be above or below its point. A label that covers another point is as bad as one that is
ten points further away."""

NEAR = 12
"""Points above or below, from which on a line connects a label with its point."""

PNG_DPI = 160


def method_colour(name: str, position: int = 0) -> str:
    return METHOD_COLOURS.get(name, OTHER_COLOURS[position % len(OTHER_COLOURS)])


def new_figure(width: float, height: float, **settings: Any) -> Figure:
    """A figure of this size in inches."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), **{"layout": "constrained", **settings})


def style_axes(axes: Axes, x_label: str = "", y_label: str = "", grid: str = "") -> None:
    """Thin axes without a frame, all in one colour; `grid` is "x" or "y" for lines across that axis.

    Labels are never read as mathematics: names may contain dollar signs.
    """
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    for side in ("bottom", "left"):
        axes.spines[side].set(color=INK, alpha=0.5, linewidth=0.7)
    axes.set_facecolor("none")
    axes.set_xlabel(x_label, fontsize=TEXT, color=INK, parse_math=False)
    axes.set_ylabel(y_label, fontsize=TEXT, color=INK, parse_math=False)
    axes.tick_params(axis="x", colors=INK, labelsize=TEXT, width=0.7, length=3)
    axes.tick_params(axis="y", colors=INK, labelsize=TEXT, length=0)
    if grid in ("x", "y"):
        axes.grid(axis=grid, color=INK, alpha=0.12, linewidth=0.6)  # type: ignore[arg-type]
    axes.set_axisbelow(True)


def annotate(axes: Axes, at: tuple[float, float], text: str, **settings: Any) -> None:
    """`text` just to the right of a point, in ink: the colours of lines are too light for small letters."""
    defaults = {"xytext": (4, 0), "textcoords": "offset points", "va": "center_baseline", "fontsize": TEXT}
    axes.annotate(text, at, color=INK, parse_math=False, **{**defaults, **settings})


def label_points(
    figure: Figure, axes: Axes, names: Mapping[str, tuple[float, float]], points: Sequence[tuple[float, float]]
) -> None:
    """Write each name next to its point, where it covers no other name and as few of `points` as possible; a thin line
    leads to a name that is further away. A name without room is left out. The axes must have their final limits."""
    from matplotlib.transforms import Bbox

    figure.draw_without_rendering()
    scale = figure.dpi / 72
    dots = axes.transData.transform(points)
    taken: list[Bbox] = []
    for name, point in names.items():
        text = axes.annotate(
            name, point, xytext=(0, 0), textcoords="offset points", color=INK, fontsize=TEXT, parse_math=False,
            arrowprops={"arrowstyle": "-", "color": INK, "alpha": 0.4, "linewidth": 0.6, "shrinkB": 3},
        )  # fmt: skip
        size = text.get_window_extent()
        x, y = axes.transData.transform(point)
        best, offset = math.inf, None
        for up, right in product(LABEL_RISES, (True, False)):
            aside = 5 if right else -5 - size.width / scale
            # With the room that a browser's font may need in addition.
            box = Bbox.from_bounds(x + aside * scale, y + up * scale, size.width, size.height).padded(2 * scale)
            is_free = axes.bbox.containsx(box.x0) and axes.bbox.containsx(box.x1) and axes.bbox.containsy(box.y1)
            cost = box.count_contains(dots) + abs(up) / 10
            if is_free and cost < best and not any(box.overlaps(other) for other in taken):
                best, offset, found = cost, (aside, up), box
        if offset is None:
            text.remove()
            continue
        taken.append(found)
        text.set_position(offset)
        if text.arrow_patch is not None:
            text.arrow_patch.set_visible(abs(offset[1]) > NEAR)


def svg_bytes(figure: Figure, *, salt: str = "zeroshift", **metadata: None) -> bytes:
    """A complete SVG file with text as text, without a date; ids depend on the drawing and on `salt`."""
    import matplotlib

    _make_visible(figure)
    buffer = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": salt, "svg.fonttype": "none"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None, **metadata})
    return buffer.getvalue()


def _make_visible(figure: Figure) -> None:
    """Spell out characters without a shape in all texts: SVG cannot hold them, and fonts have none."""
    from matplotlib.text import Text

    for text in figure.findobj(Text):
        if (shown := visible(text.get_text(), keep="\n")) != text.get_text():
            text.set_text(shown)


def inline_svg(figure: Figure, *, name: str) -> str:
    """The `<svg>` element, for a page with several of them: all ids start with `name` or depend on it."""
    figure.patch.set_visible(False)
    _make_visible(figure)
    figure.draw_without_rendering()  # only now there are ticks
    for number, artist in enumerate(figure.findobj()):
        artist.set_gid(f"{name}-{number}")
    text = svg_bytes(figure, salt=name, Format=None, Type=None).decode("utf-8")
    return text[text.index("<svg") :].strip()


def save_figure(figure: Figure, folder: str | os.PathLike[str], name: str, suffixes: Sequence[str]) -> list[Path]:
    """Write NAME.png, NAME.svg or both into `folder`; existing files are replaced."""
    paths = [Path(folder) / f"{name}{suffix}" for suffix in suffixes]
    for path in paths:
        with atomic_path(path) as temporary:
            if path.suffix == ".svg":
                temporary.write_bytes(svg_bytes(figure))
            else:
                _make_visible(figure)
                # Without "Software" the bytes do not change with matplotlib's version number alone.
                figure.savefig(temporary, format="png", dpi=PNG_DPI, metadata={"Software": None})
    return paths
