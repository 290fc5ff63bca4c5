"""The colours of figures: real ones for files, and at the same time marks that the page swaps for its own."""

from __future__ import annotations

import html
import io
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = [
    "CLASS_COLOURS",
    "EXPERIMENT_COLOURS",
    "INK",
    "METHOD_COLOURS",
    "OTHER_COLOURS",
    "PAGE_COLOURS",
    "SERIES_COLOURS",
    "inline_svg",
    "method_colour",
    "svg_bytes",
]

INK = "#1c2128"
"""Text and axes; `currentColor` on the page, so that figures follow light and dark with everything else."""

METHOD_COLOURS = {
    "zero_shot": "#768390",
    "adapt_online": "#1f6feb",
    "adapt_transductive": "#bf5b04",
    "anchored_mixture_online": "#0a2c6b",
    "anchored_mixture_transductive": "#7d1a12",
}
"""Blue is online, orange and red transductive; of each the stronger shade is the mixture: those who see no red or no
green tell shades apart. None of these is one of `SERIES_COLOURS`."""

OTHER_COLOURS = ("#1a7f37", "#8250df", "#bf3989", "#0a7d91")
"""For methods without a colour of their own, in the order they come."""

SERIES_COLOURS = (*OTHER_COLOURS, "#9a6700", "#c4432b", "#4453c4", "#5f7a1f")
"""For lines that are no methods: sets, classes, settings. None is a method's own, so that blue always means it."""

CLASS_COLOURS = (
    "#5890d0", "#f1be1d", "#276b52", "#d78c9e", "#6056d9", "#50e586", "#76541f", "#2adff3", "#8a3c81", "#808f13",
)  # fmt: skip
"""For classes in decision regions: as far apart for those who see no red or no green as ten can be, and of middling
lightness, because an image has the same colours on light and dark."""

PAGE_COLOURS = {
    INK: "currentColor",
    **{colour: f"var(--{name.replace('_', '-')})" for name, colour in METHOD_COLOURS.items()},
}
"""What each colour of a figure becomes inside the page, whose style sheet has one set for light and one for dark."""

EXPERIMENT_COLOURS = {colour: f"var(--series-{place + 1})" for place, colour in enumerate(SERIES_COLOURS)}
"""The same for the report of experiments, whose style sheet has these, too."""


def method_colour(name: str, position: int = 0) -> str:
    return METHOD_COLOURS.get(name, OTHER_COLOURS[position % len(OTHER_COLOURS)])


# Figures as SVG: the same bytes for the same data and, inside a page, in the page's own colours and font.


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
