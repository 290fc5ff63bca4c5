"""A wrong name answered with the one that was probably meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = ["did_you_mean"]

CUTOFF = 0.4
"""How alike two names must be, from 0 to 1, before one is offered for the other."""


def did_you_mean(given: object, known: Iterable[str]) -> str:
    """A sentence that offers the nearest known name, with a space behind it; nothing where none is near.

    >>> did_you_mean("adapt_onlin", ["zero_shot", "adapt_online"])
    "Did you mean 'adapt_online'? "
    >>> did_you_mean("TDA", ["tca", "tda"])
    "Did you mean 'tda'? "
    """
    if not isinstance(given, str):
        return ""
    by_letters = {_letters(name): name for name in known}
    near = difflib.get_close_matches(_letters(given), list(by_letters), n=1, cutoff=CUTOFF)
    return f"Did you mean {by_letters[near[0]]!r}? " if near else ""


def _letters(name: str) -> str:
    """As it is compared: capitals and the kind of dash are not what a name is mistaken for."""
    return name.lower().replace("-", "_")
