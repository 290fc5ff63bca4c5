"""A figure before it is drawn: panels of a phone's width or less, what their colours mean, and a scale they share.

The page lays the panels out in as many columns as there is room for; a file holds them all in one picture.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

from zeroshift.report.palette import METHOD_COLOURS, SERIES_COLOURS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["MARKERS", "WIDTH", "Coloured", "Key", "Panel", "Sketch", "colours", "shortened"]

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

    >>> from zeroshift.experiments.parts.findings import Bar
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
