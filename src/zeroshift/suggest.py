"""Names in messages: suggestions for misspelt ones, and long lists shortened."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Iterable, Sequence

__all__ = ["did_you_mean", "first_few", "name_key"]

SHORTEST: dict[float, int] = {1: 3, 2: 7, 3: 10}
"""The length from which a name may differ by that many letters from one that is suggested."""

LONGEST = 100
"""Longer texts are not names."""


def did_you_mean(given: object, known: Iterable[str]) -> str:
    """A sentence that suggests a known name, followed by a space; an empty string if none is close.

    Close are names that differ by few letters for their length, and names that contain all of the given words.

    >>> did_you_mean("adapt_onlin", ["zero_shot", "adapt_online"])
    "Did you mean 'adapt_online'? "
    >>> did_you_mean("TDA", ["tca", "tda"]), did_you_mean("mixture", ["zero_shot", "anchored_mixture_online"])
    ("Did you mean 'tda'? ", "Did you mean 'anchored_mixture_online'? ")
    >>> did_you_mean("nonsense", ["zero_shot", "adapt_online"])
    ''
    """
    wanted = _normalise(given) if isinstance(given, str) else ""
    if not 0 < len(wanted) <= LONGEST:
        return ""
    by_spelling = {_normalise(name): name for name in known}
    edits = {one: _count_edits(wanted, one) for one in by_spelling}
    near = sorted((one for one in edits if _is_slip(wanted, one, edits[one])), key=edits.__getitem__)
    same_words = [one for one in by_spelling if _has_words(one, wanted)]
    found = [one for one in near if edits[one] <= 1] or same_words or near
    return f"Did you mean {by_spelling[found[0]]!r}? " if found else ""


def _is_slip(wanted: str, name: str, edits: float) -> bool:
    """Whether so few letters differ that `name` was probably meant. Where several differ, the first may not."""
    if edits > 1 and wanted[:1] != name[:1]:
        return False
    return edits == 0 or max(len(wanted), len(name)) >= SHORTEST.get(edits, math.inf)


def _has_words(name: str, wanted: str) -> bool:
    """Whether each word of `wanted` is a word of `name`, the beginning of one, or differs by a letter from one."""
    words = name.split("_")
    return all(len(word) > 2 and any(_is_word(word, one) for one in words) for word in wanted.split("_"))


def _is_word(given: str, word: str) -> bool:
    if len(given) < 4:
        return given == word
    return word.startswith(given) or (len(given) > 4 and _count_edits(given, word) <= 1)


def _count_edits(first: str, second: str) -> float:
    """Letters to insert, delete, replace or swap with their neighbour to turn one word into the other; infinity if the
    lengths alone differ by too many."""
    if abs(len(first) - len(second)) > max(SHORTEST):
        return math.inf
    before: list[int] = []
    row = list(range(len(second) + 1))
    for i, a in enumerate(first, 1):
        two_before, before, row = before, row, [i]
        for j, b in enumerate(second, 1):
            edits = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (a != b))
            if i > 1 and j > 1 and a == second[j - 2] and b == first[i - 2]:
                edits = min(edits, two_before[j - 2] + 1)
            row.append(edits)
    return row[-1]


def _normalise(name: str) -> str:
    """The form that is compared: lower case, with underscores for dashes and spaces, and none at the ends."""
    return name.strip().lower().replace("-", "_").replace(" ", "_").strip("_")


def name_key(name: str) -> str:
    """What two spellings of a class have in common; classes that differ in nothing else would share their samples.

    >>> name_key("hot_dog") == name_key("Hot  dog"), name_key("cat") == name_key("car")
    (True, False)
    """
    return " ".join(unicodedata.normalize("NFKC", name.replace("_", " ")).casefold().split())


def first_few(names: Sequence[str], limit: int = 3) -> str:
    """The first `limit` names, followed by "..." if there are more.

    >>> first_few(["cat", "dog", "fox"], limit=2)
    'cat, dog, ...'
    """
    return ", ".join(names[:limit]) + (", ..." if len(names) > limit else "")
