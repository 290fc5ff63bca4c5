"""Prototypes from prompts: every prompt of a class encoded, averaged, scaled to unit length; once for each class."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from zeroshift.encode.encoder import Encoder, warn_cut
from zeroshift.encode.extraction.store import DIGEST_BYTES, FeatureStore, as_folder, keyed_folder

__all__ = ["ClassTexts", "encode_classes", "encode_prompts"]

PART_PROMPTS = 4096
"""Prompts after which the classes done are put on the disk: what is lost when a run is killed."""

Progress = Callable[[int], None]
"""Told how many classes are done since the last call."""


class ClassTexts(NamedTuple):
    """What became of the prompts."""

    prototypes: np.ndarray
    """(K, d), rows of unit length."""
    n_prompts: int
    n_cut: int
    """Prompts with more tokens than the model reads."""


def encode_classes(
    encoder: Encoder,
    prompts: Iterable[Sequence[str]],
    *,
    templates: Sequence[str] | None = None,
    cache: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> ClassTexts:
    """Prototypes of unit length: for each class the mean over its prompts, all of equal weight.

    Parameters
    ----------
    prompts : the prompts of one class after the other; taken one at a time, so that millions need not fit in memory.
    templates : what the prompts were made with, for encoders that centre on them (the composed one).
    cache : folder in which the means are kept by encoder and prompts; None keeps nothing.
    """
    book = _Book(encoder, as_folder(cache), progress or (lambda classes: None))
    order: list[bytes] = []
    total = 0
    for listed in prompts:
        if isinstance(listed, str):  # a sequence, too, of letters
            raise TypeError(
                f"prompts of class {len(order)} must be a list of sentences; got the string {listed!r}. "
                "Fix: [[prompt], ...], or Prompts.named('vanilla').for_classes(names)."
            )
        if not listed:
            raise ValueError(f"prompts of class {len(order)} are empty; every class needs at least one.")
        order.append(book.enter(listed))
        total += len(listed)
    if not order:
        raise ValueError("prompts is empty; at least one class is needed.")
    rows = book.rows(order)
    cut = int(rows[:, -1].sum())
    if cut:
        warn_cut(cut, total, encoder.text_length)
    return ClassTexts(encoder.finish_prototypes(rows[:, :-1], templates), total, cut)


class _Book:
    """Means by the prompts they are of: looked up, or encoded together with those of other classes."""

    def __init__(self, encoder: Encoder, cache: Path | None, progress: Progress) -> None:
        self.encoder, self.progress = encoder, progress
        self.store = None
        if cache is not None:
            self.store = FeatureStore(keyed_folder(cache, "text", encoder.key()), check=True)
        self.done: dict[bytes, np.ndarray] = {}
        self.waiting: dict[bytes, list[str]] = {}

    def enter(self, prompts: Sequence[str]) -> bytes:
        """The key under which `rows` will find the mean of these prompts."""
        key = _digest(prompts)
        if key in self.done or key in self.waiting or (self.store is not None and key in self.store):
            self.progress(1)
            return key
        self.waiting[key] = list(prompts)
        if sum(map(len, self.waiting.values())) >= PART_PROMPTS:
            self.encode()
        return key

    def encode(self) -> None:
        """Everything that waits, as one part of the store."""
        if not self.waiting:
            return
        together = [prompt for listed in self.waiting.values() for prompt in listed]
        long = np.array(self.encoder.count_tokens(together)) > self.encoder.text_length
        rows = self.encoder.encode_texts(together, warn=False).astype(np.float64)
        ends = np.cumsum([len(listed) for listed in self.waiting.values()])[:-1]
        # The last column counts the prompts that were cut: a later run must warn of them, too.
        means = [
            np.append(part.mean(axis=0), cut.sum()).astype(np.float32)
            for part, cut in zip(np.split(rows, ends), np.split(long, ends), strict=True)
        ]
        if self.store is None:
            self.done.update(zip(self.waiting, means, strict=True))
        else:
            self.store.add(list(self.waiting), np.stack(means))
        self.progress(len(self.waiting))
        self.waiting.clear()

    def rows(self, keys: Sequence[bytes]) -> np.ndarray:
        self.encode()
        return np.stack([self.done[key] for key in keys]) if self.store is None else self.store.rows(keys)


def _digest(prompts: Sequence[str]) -> bytes:
    digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
    for prompt in prompts:
        written = prompt.encode()
        digest.update(len(written).to_bytes(4, "little") + written)
    return digest.digest()


# Every prompt of a class by itself: what methods take that weigh prompts (Frolic, TIMO, Histo-TransCLIP).


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
