"""Prototypes from prompts: the prompts of a class are encoded, averaged and normalised. Means are cached by prompts."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from zeroshift.encode.encoder import Encoder, warn_truncated
from zeroshift.encode.extraction.store import DIGEST_BYTES, FeatureStore, cache_folder, settings_folder

__all__ = ["ClassTexts", "encode_classes", "encode_prompts"]

PART_PROMPTS = 4096
"""Number of prompts after which means are written to disk; a killed run loses at most these."""

ClassProgress = Callable[[int], None]
"""Called with the number of classes done since the last call."""


class ClassTexts(NamedTuple):
    """Prototypes, and the numbers of prompts."""

    prototypes: np.ndarray
    """(K, d) unit rows."""
    n_prompts: int
    n_cut: int
    """Number of prompts that were truncated."""


def encode_classes(
    encoder: Encoder,
    prompts: Iterable[Sequence[str]],
    *,
    templates: Sequence[str] | None = None,
    cache: str | os.PathLike[str] | None = None,
    progress: ClassProgress | None = None,
) -> ClassTexts:
    """Unit prototypes: for each class, the mean over its prompts with equal weights.

    Parameters
    ----------
    prompts : the prompts of one class after the other; read lazily, so that millions need not fit into memory.
    templates : the templates of the prompts, for encoders that need them (the composed encoder).
    cache : folder in which the means are stored by encoder and prompts; None stores nothing.
    """
    class_means = _ClassMeans(encoder, cache_folder(cache), progress or (lambda classes: None))
    order: list[bytes] = []
    total = 0
    for listed in prompts:
        if isinstance(listed, str):  # a string is also a sequence
            raise TypeError(
                f"prompts of class {len(order)} must be a list of sentences; got the string {listed!r}. "
                "Fix: [[prompt], ...], or Prompts.named('vanilla').for_classes(names)."
            )
        if not listed:
            raise ValueError(f"prompts of class {len(order)} are empty; every class needs at least one.")
        order.append(class_means.add(listed))
        total += len(listed)
    if not order:
        raise ValueError("prompts is empty; at least one class is needed.")
    rows = class_means.rows(order)
    cut = int(rows[:, -1].sum())
    if cut:
        warn_truncated(cut, total, encoder.text_length)
    return ClassTexts(encoder.finish_prototypes(rows[:, :-1], templates), total, cut)


class _ClassMeans:
    """Means of prompts by their digest: from the store, or encoded together with those of other classes."""

    def __init__(self, encoder: Encoder, cache: Path | None, progress: ClassProgress) -> None:
        self.encoder, self.progress = encoder, progress
        self.store = None
        if cache is not None:
            self.store = FeatureStore(settings_folder(cache, "text", encoder.key()), check=True)
        self.done: dict[bytes, np.ndarray] = {}
        self.pending: dict[bytes, list[str]] = {}

    def add(self, prompts: Sequence[str]) -> bytes:
        """Add the prompts of a class; returns their key for `rows`."""
        key = _digest(prompts)
        if key in self.done or key in self.pending or (self.store is not None and key in self.store):
            self.progress(1)
            return key
        self.pending[key] = list(prompts)
        if sum(map(len, self.pending.values())) >= PART_PROMPTS:
            self.encode()
        return key

    def encode(self) -> None:
        """Encode all pending prompts, and write their means as one part of the store."""
        if not self.pending:
            return
        prompts = [prompt for listed in self.pending.values() for prompt in listed]
        too_long = np.array(self.encoder.count_tokens(prompts)) > self.encoder.text_length
        rows = self.encoder.encode_texts(prompts, warn=False).astype(np.float64)
        ends = np.cumsum([len(listed) for listed in self.pending.values()])[:-1]
        # The last column counts truncated prompts, so that a later run can also warn about them.
        means = [
            np.append(part.mean(axis=0), cut.sum()).astype(np.float32)
            for part, cut in zip(np.split(rows, ends), np.split(too_long, ends), strict=True)
        ]
        if self.store is None:
            self.done.update(zip(self.pending, means, strict=True))
        else:
            self.store.add(list(self.pending), np.stack(means))
        self.progress(len(self.pending))
        self.pending.clear()

    def rows(self, keys: Sequence[bytes]) -> np.ndarray:
        self.encode()
        return np.stack([self.done[key] for key in keys]) if self.store is None else self.store.rows(keys)


def _digest(prompts: Sequence[str]) -> bytes:
    digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
    for prompt in prompts:
        written = prompt.encode()
        digest.update(len(written).to_bytes(4, "little") + written)
    return digest.digest()


def encode_prompts(
    encoder: Encoder,
    prompts: Iterable[Sequence[str]],
    *,
    templates: Sequence[str] | None = None,
    cache: str | os.PathLike[str] | None = None,
    progress: ClassProgress | None = None,
) -> np.ndarray:
    """(K, P, d) unit rows, one per prompt, for methods that weight prompts (Frolic, TIMO, Histo-TransCLIP).

    P is the smallest number of prompts of a class; other classes keep their first P. `progress` counts prompts; the
    other parameters are those of `encode_classes`.
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
