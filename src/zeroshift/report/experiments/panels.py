"""Parts of the figures of experiments: panels, what their colours mean, and a scale they share.

A page arranges the panels in as many columns as there is room for; a file holds them all in one image.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

from zeroshift.report.style import METHOD_COLOURS, SERIES_COLOURS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["MARKERS", "WIDTH", "LegendKey", "Panel", "PanelFigure", "choose_colours", "format_value", "shorten"]

WIDTH = 3.6
"""Inches of a single panel: the width of a phone at the page's scale, so that text is never shrunk."""

MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<", ">")
"""Shapes of points, so that lines and classes can be distinguished without their colours."""


@dataclass(frozen=True)
class LegendKey:
    """What a colour means."""

    label: str
    colour: str
    mark: Literal["line", "dashed", "box", "point"] = "box"
    shape: str = "o"
    """Marker of a point, as in matplotlib."""


@dataclass(frozen=True)
class Panel:
    draw: Callable[[Axes], None]
    height: float
    """Inches, without the title."""
    width: float = WIDTH
    title: str = ""


@dataclass(frozen=True)
class PanelFigure:
    panels: tuple[Panel, ...]
    keys: tuple[LegendKey, ...] = ()
    scale: Panel | None = None
    """The scale of colours that all panels share."""


class _Coloured(Protocol):
    @property
    def label(self) -> str: ...
    @property
    def method(self) -> str: ...


def choose_colours(items: Sequence[_Coloured]) -> list[str]:
    """A colour for each: the method's own where the method occurs once, else the next of `SERIES_COLOURS`.

    >>> from zeroshift.experiments._shared.findings import Bar
    >>> choose_colours([Bar("a", 1.0, method="zero_shot"), Bar("b", 2.0), Bar("c", 3.0)])
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


def shorten(text: str, longest: int) -> str:
    """
    >>> shorten("a very long name", 7)
    'a very…'
    """
    return text if len(text) <= longest else f"{text[: longest - 1].rstrip()}…"


def format_value(value: float, reach: float) -> str:
    """A value next to a line or bar; the largest value of the axis, `reach`, decides the number of decimals.

    >>> format_value(78.532, 100.0), format_value(-1.256, 3.0), format_value(0.01234, 0.05), format_value(5120, 10_000)
    ('78.5', '−1.26', '0.0123', '5,120')
    """
    decimals = 0 if reach >= 1000 else 1 if reach >= 8 else 2 if reach >= 0.5 else 4
    text = f"{value:,.{decimals}f}"
    if not text.strip("-0.,"):
        text = text.lstrip("-")
    return text.replace("-", "\N{MINUS SIGN}")
