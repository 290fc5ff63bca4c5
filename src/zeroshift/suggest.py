"""Suggestions for misspelt names."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = ["did_you_mean"]

CUTOFF = 0.4
"""How similar two names must be, from 0 to 1, for one to be suggested for the other."""


def did_you_mean(given: object, known: Iterable[str]) -> str:
    """A sentence that suggests the nearest known name, followed by a space; an empty string if none is near.

    >>> did_you_mean("adapt_onlin", ["zero_shot", "adapt_online"])
    "Did you mean 'adapt_online'? "
    >>> did_you_mean("TDA", ["tca", "tda"])
    "Did you mean 'tda'? "
    """
    if not isinstance(given, str):
        return ""
    by_spelling = {_normalise(name): name for name in known}
    matches = difflib.get_close_matches(_normalise(given), list(by_spelling), n=1, cutoff=CUTOFF)
    return f"Did you mean {by_spelling[matches[0]]!r}? " if matches else ""


def _normalise(name: str) -> str:
    """The form that is compared: lower case, with underscores for dashes."""
    return name.lower().replace("-", "_")
