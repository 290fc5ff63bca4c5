"""The colours of figures: real ones for files, and at the same time marks that the page swaps for its own."""

from __future__ import annotations

__all__ = ["INK", "METHOD_COLOURS", "OTHER_COLOURS", "PAGE_COLOURS", "method_colour"]

INK = "#1c2128"
"""Text and axes; `currentColor` on the page, so that figures follow light and dark with everything else."""

METHOD_COLOURS = {
    "zero_shot": "#768390",
    "adapt_online": "#1f6feb",
    "adapt_transductive": "#bf5b04",
}

OTHER_COLOURS = ("#1a7f37", "#8250df", "#bf3989", "#0a7d91")
"""For methods without a colour of their own, in the order they come."""

PAGE_COLOURS = {
    INK: "currentColor",
    **{colour: f"var(--{name.replace('_', '-')})" for name, colour in METHOD_COLOURS.items()},
}
"""What each colour of a figure becomes inside the page, whose style sheet has one set for light and one for dark."""


def method_colour(name: str, position: int = 0) -> str:
    return METHOD_COLOURS.get(name, OTHER_COLOURS[position % len(OTHER_COLOURS)])
