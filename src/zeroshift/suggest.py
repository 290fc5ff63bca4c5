"""Names in messages: suggestions for misspelt ones, and long lists shortened."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

__all__ = ["did_you_mean", "first_few"]

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


def first_few(names: Sequence[str], limit: int = 3) -> str:
    """The first `limit` names, followed by "..." if there are more.

    >>> first_few(["cat", "dog", "fox"], limit=2)
    'cat, dog, ...'
    """
    return ", ".join(names[:limit]) + (", ..." if len(names) > limit else "")
