"""The colours of figures: real ones for files, and at the same time marks that the page swaps for its own."""

from __future__ import annotations

__all__ = [
    "CLASS_COLOURS",
    "EXPERIMENT_COLOURS",
    "INK",
    "METHOD_COLOURS",
    "OTHER_COLOURS",
    "PAGE_COLOURS",
    "SERIES_COLOURS",
    "method_colour",
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
