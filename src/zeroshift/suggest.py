"""Names in messages: suggestions for misspelt ones, and long lists shortened."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

__all__ = ["did_you_mean", "first_few"]

CLOSE, VERY_CLOSE = 0.65, 0.8
"""How similar two spellings must be, from 0 to 1: two of three letters, a slip in a longer name."""


def did_you_mean(given: object, known: Iterable[str]) -> str:
    """A sentence that suggests a known name, followed by a space; an empty string if none is close.

    Close are names with nearly the same spelling, and names that contain all of the given words.

    >>> did_you_mean("adapt_onlin", ["zero_shot", "adapt_online"])
    "Did you mean 'adapt_online'? "
    >>> did_you_mean("TDA", ["tca", "tda"]), did_you_mean("mixture", ["zero_shot", "anchored_mixture_online"])
    ("Did you mean 'tda'? ", "Did you mean 'anchored_mixture_online'? ")
    >>> did_you_mean("nonsense", ["zero_shot", "adapt_online"])
    ''
    """
    if not isinstance(given, str) or not given.strip():
        return ""
    by_spelling = {_normalise(name): name for name in known}
    wanted = _normalise(given)
    matches = (
        difflib.get_close_matches(wanted, by_spelling, n=1, cutoff=VERY_CLOSE)
        or [spelling for spelling in by_spelling if _has_words(spelling, wanted)]
        or difflib.get_close_matches(wanted, by_spelling, n=1, cutoff=CLOSE)
    )
    return f"Did you mean {by_spelling[matches[0]]!r}? " if matches else ""


def _has_words(name: str, wanted: str) -> bool:
    """Whether each word of `wanted`, none shorter than three letters, is a word of `name`, up to a slip."""
    words = name.split("_")
    return all(
        len(word) > 2 and difflib.get_close_matches(word, words, n=1, cutoff=VERY_CLOSE) for word in wanted.split("_")
    )


def _normalise(name: str) -> str:
    """The form that is compared: lower case, with underscores for dashes and spaces."""
    return name.strip().lower().replace("-", "_").replace(" ", "_")


def first_few(names: Sequence[str], limit: int = 3) -> str:
    """The first `limit` names, followed by "..." if there are more.

    >>> first_few(["cat", "dog", "fox"], limit=2)
    'cat, dog, ...'
    """
    return ", ".join(names[:limit]) + (", ..." if len(names) > limit else "")
