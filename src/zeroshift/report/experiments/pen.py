"""How every figure of an experiment looks: thin axes without a frame, one ink, names never taken for mathematics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from zeroshift.report.palette import INK

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["SMALL", "TEXT", "note", "number", "style"]

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
