"""Figures as SVG: the same bytes for the same data and, inside a page, in the page's own colours and font."""

from __future__ import annotations

import html
import io
import re
from typing import TYPE_CHECKING

from zeroshift.report.palette import PAGE_COLOURS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["inline_svg", "svg_bytes"]


def svg_bytes(figure: Figure) -> bytes:
    """A whole SVG file, text kept as text; no date, and ids that depend on the drawing alone."""
    import matplotlib

    buffer = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "zeroshift", "svg.fonttype": "none"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    return buffer.getvalue()


def inline_svg(figure: Figure, *, name: str, label: str) -> str:
    """The `<svg>` element alone, to stand inside an HTML page that may hold others.

    `name` keeps its ids apart from theirs; `label` is read out by a screen reader.
    """
    figure.patch.set_visible(False)
    text = svg_bytes(figure).decode("utf-8")
    text = text[text.index("<svg") :].strip()
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)
    text = re.sub(r"font: ([\d.]+px)[^;\"]*", r"font-size: \1", text)
    for colour, page_colour in PAGE_COLOURS.items():
        text = text.replace(colour, page_colour)
    text = _own_ids(text, name)
    # No width and height: the page's style sheet sets the width, the view box keeps the proportions.
    opening = re.sub(r'\s(?:width|height)="[^"]*"', "", text[: text.index(">")])
    label = html.escape(label, quote=True)
    return re.sub(r"\n+", "\n", f'{opening} role="img" aria-label="{label}"{text[text.index(">") :]}')


def _own_ids(text: str, name: str) -> str:
    """Ids nothing refers to are dropped (matplotlib names every group); the others get `name` in front."""
    referred = set(re.findall(r'(?:href="|url\()#([^")]+)', text))

    def renamed(match: re.Match[str]) -> str:
        return f' id="{name}-{match[1]}"' if match[1] in referred else ""

    text = re.sub(r'\sid="([^"]*)"', renamed, text)
    return re.sub(r'(href="|url\()#', rf"\1#{name}-", text)
