"""How every figure of an experiment looks: thin axes without a frame, one ink, names never taken for mathematics."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

from zeroshift.report.palette import INK, METHOD_COLOURS, SERIES_COLOURS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = [
    "MARKERS",
    "SMALL",
    "TEXT",
    "WIDTH",
    "Coloured",
    "Key",
    "Panel",
    "Sketch",
    "colours",
    "note",
    "number",
    "shortened",
    "style",
]

TEXT, SMALL = 8.0, 7.0
"""Sizes of text in points: a phone shows a point as a pixel and a quarter."""

GRID = 0.12
"""Opacity of lines that only guide the eye."""


def style(axes: Axes, x_label: str = "", y_label: str = "", grid: str = "") -> None:
    """No frame but the lower axis; `grid` is "x" or "y" where lines should guide the eye along the other."""
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set(color=INK, alpha=0.5, linewidth=0.7)
    axes.set_facecolor("none")
    axes.set_xlabel(x_label, fontsize=TEXT, color=INK, parse_math=False)
    axes.set_ylabel(y_label, fontsize=TEXT, color=INK, parse_math=False)
    axes.tick_params(axis="x", colors=INK, labelsize=TEXT, width=0.7, length=3)
    axes.tick_params(axis="y", colors=INK, labelsize=TEXT, length=0)
    if grid in ("x", "y"):
        axes.grid(axis=grid, color=INK, alpha=GRID, linewidth=0.6)  # type: ignore[arg-type]
    axes.set_axisbelow(True)


def note(axes: Axes, at: tuple[float, float], text: str, **how: Any) -> None:
    """`text` a hair beside a point, in ink: colours that suit lines are too light for small letters."""
    settings = {"xytext": (4, 0), "textcoords": "offset points", "va": "center_baseline", "fontsize": TEXT}
    axes.annotate(text, at, color=INK, parse_math=False, **{**settings, **how})


def number(value: float, reach: float) -> str:
    """A value beside a line or bar; `reach` is how far the axis reaches, which decides how many decimals say anything.

    >>> number(78.532, 100.0), number(-1.256, 3.0), number(0.01234, 0.05), number(5120, 10_000)
    ('78.5', '−1.26', '0.0123', '5,120')
    """
    decimals = 0 if reach >= 1000 else 1 if reach >= 8 else 2 if reach >= 0.5 else 4
    text = f"{value:,.{decimals}f}"
    if not text.strip("-0.,"):
        text = text.lstrip("-")
    return text.replace("-", "\N{MINUS SIGN}")


# A figure before it is drawn: panels of a phone's width or less, what their colours mean, and a scale they share.
#
# The page lays the panels out in as many columns as there is room for; a file holds them all in one picture.


WIDTH = 3.6
"""Inches of a panel that stands alone: at the page's scale a phone's width, so that text is never shrunk."""

MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<", ">")
"""Shapes of points, so that lines and classes are told apart without their colours, too."""


@dataclass(frozen=True)
class Key:
    """What a colour means."""

    label: str
    colour: str
    mark: Literal["line", "dashed", "box", "point"] = "box"
    shape: str = "o"
    """Of a point, as matplotlib calls it."""


@dataclass(frozen=True)
class Panel:
    draw: Callable[[Axes], None]
    height: float
    """Inches, without the title."""
    width: float = WIDTH
    title: str = ""


@dataclass(frozen=True)
class Sketch:
    panels: tuple[Panel, ...]
    keys: tuple[Key, ...] = ()
    scale: Panel | None = None
    """What the shades of all panels mean."""


class Coloured(Protocol):
    @property
    def label(self) -> str: ...
    @property
    def method(self) -> str: ...


def colours(items: Sequence[Coloured]) -> list[str]:
    """A colour for each: the method's own where it is there once; else one no method has, in turn.

    >>> from zeroshift.experiments._shared.findings import Bar
    >>> colours([Bar("a", 1.0, method="zero_shot"), Bar("b", 2.0), Bar("c", 3.0)])
    ['#768390', '#1a7f37', '#8250df']
    """
    methods = [item.method for item in items]
    found, turn = [], 0
    for method in methods:
        if method in METHOD_COLOURS and methods.count(method) == 1:
            found.append(METHOD_COLOURS[method])
        else:
            found.append(SERIES_COLOURS[turn % len(SERIES_COLOURS)])
            turn += 1
    return found


def shortened(text: str, longest: int) -> str:
    """
    >>> shortened("a very long name", 7)
    'a very…'
    """
    return text if len(text) <= longest else f"{text[: longest - 1].rstrip()}…"
