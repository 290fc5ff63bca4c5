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
    """
    near = difflib.get_close_matches(str(given), list(known), n=1, cutoff=CUTOFF)
    return f"Did you mean {near[0]!r}? " if near else ""
