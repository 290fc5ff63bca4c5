"""Every prompt of a class by itself: what methods take that weigh prompts (Frolic, TIMO, Histo-TransCLIP)."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

import numpy as np

from zeroshift.encode.encoder import Encoder
from zeroshift.encode.extraction.text import Progress, encode_classes

__all__ = ["encode_prompts"]


def encode_prompts(
    encoder: Encoder,
    prompts: Iterable[Sequence[str]],
    *,
    templates: Sequence[str] | None = None,
    cache: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> np.ndarray:
    """(K, P, d) rows of unit length, one for each prompt, where `encode_classes` gives their means.

    Classes with more than P prompts, the number of the class with the fewest, keep their first P: the methods that take
    them want as many of each. `progress` is told how many prompts are done; the rest is as for `encode_classes`.
    """
    listed = [list(of_class) if not isinstance(of_class, str) else of_class for of_class in prompts]
    for number, of_class in enumerate(listed):
        if isinstance(of_class, str) or not of_class:
            given = f"the string {of_class!r}" if isinstance(of_class, str) else "none"
            raise ValueError(
                f"prompts of class {number} must be a list of at least one sentence; got {given}. "
                "Fix: Prompts.named('ensemble').for_classes(names)."
            )
    if not listed:
        raise ValueError("prompts is empty; at least one class is needed.")
    fewest = min(map(len, listed))
    singles = ([prompt] for of_class in listed for prompt in of_class[:fewest])
    rows = encode_classes(encoder, singles, templates=templates, cache=cache, progress=progress).prototypes
    return rows.reshape(len(listed), fewest, -1)
