"""Whether a text encoder can tell the class names apart: an English one reads Japanese as unknown words."""

from __future__ import annotations

import unicodedata
import warnings
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from zeroshift.suggest import first_few, name_key

__all__ = ["unreadable_names", "warn_about_names"]

MOST_UNREAD = 0.5
"""Share of a name's letters; of English words that are cut into many tokens, a third may be tokens by themselves."""

SMALLEST_VOCABULARY = 2000
"""Smaller ones have letters instead of words."""

NEARLY_SAME = 1e-4
"""Prototypes whose cosine is larger than 1 minus this are those of one class."""

FIX = "Fix: write the names in English, or choose an encoder of their language: `zeroshift encoders`"


def warn_about_names(names: Sequence[str], prototypes: np.ndarray, tokenizer: Any) -> None:
    """Warn about names that the tokenizer (None if it is not loaded) does not know, and about prototypes that nearly
    coincide."""
    unread = [] if tokenizer is None else unreadable_names(tokenizer, names)
    if unread:
        shown = first_few([*map(repr, unread)])
        warnings.warn(
            f"the text encoder cannot read {len(unread)} of {len(names)} class names ({shown}): its tokenizer knows "
            f"few of their letters as words. {FIX}.",
            stacklevel=3,
        )
    if pairs := _coinciding(names, prototypes):
        shown = first_few([f"{one!r} and {other!r}" for one, other in pairs])
        warnings.warn(
            f"the text encoder does not tell {shown} apart: their prototypes nearly coincide. {FIX}.", stacklevel=3
        )


def unreadable_names(tokenizer: Any, names: Sequence[str]) -> list[str]:
    """The names of which most letters are in unknown tokens, in parts of a letter, or tokens by themselves."""
    if not getattr(tokenizer, "is_fast", False) or len(tokenizer) < SMALLEST_VOCABULARY:
        return []
    return [name for name in dict.fromkeys(names) if _unread_share(tokenizer, name) > MOST_UNREAD]


def _unread_share(tokenizer: Any, name: str) -> float:
    letters = [place for place, letter in enumerate(name) if letter.isalpha()]
    encoded = tokenizer(name, add_special_tokens=False, return_offsets_mapping=True)
    unread: set[int] = set()
    alone: Counter[int] = Counter()
    for token, (start, end) in zip(encoded["input_ids"], encoded["offset_mapping"], strict=True):
        if token == tokenizer.unk_token_id:
            unread.update(range(start, end))
        elif end - start == 1:
            alone[start] += 1
    # Two tokens of one letter are its bytes. An ideograph may be a word, and so may a letter without neighbours.
    unread |= {place for place, tokens in alone.items() if tokens > 1 or not _is_word(name, place)}
    return sum(place in unread for place in letters) / max(1, len(letters))


def _is_word(name: str, place: int) -> bool:
    neighbours = name[max(0, place - 1) : place] + name[place + 1 : place + 2]
    return "CJK" in unicodedata.name(name[place], "") or not any(map(str.isalpha, neighbours))


def _coinciding(names: Sequence[str], prototypes: np.ndarray) -> list[tuple[str, str]]:
    """Pairs of different names with nearly the same prototype; of each name the first."""
    pairs = []
    for place in range(1, len(names)):
        near = np.flatnonzero(prototypes[:place] @ prototypes[place] > 1 - NEARLY_SAME).tolist()
        other = next((names[i] for i in near if name_key(names[i]) != name_key(names[place])), None)
        if other is not None:
            pairs.append((other, names[place]))
    return pairs
