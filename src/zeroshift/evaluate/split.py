"""Which rows of a set a method is given beforehand, which it is scored on, and in which order."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

__all__ = ["Split", "split"]

DRAWING = 1
"""Kept apart from the seed of the order, so that the draw does not repeat the order's random numbers."""


@dataclass(frozen=True)
class Split:
    """Row numbers; no row is in two of them."""

    scored: np.ndarray
    """In the order of the stream."""
    support: np.ndarray | None = None
    """Labelled rows given beforehand, class by class."""
    unlabelled: np.ndarray | None = None
    """Rows given beforehand without their labels."""


def split(
    labels: np.ndarray, *, seed: int | None, shuffled: bool, shots: int | None = None, halved: bool = False
) -> Split:
    """Draw from the rows with `seed`; without one, all rows in their stored order.

    Parameters
    ----------
    labels : (N,) class indices.
    seed : of the order and of the draws; the same seed gives the same rows.
    shuffled : whether the scored rows come in a random order.
    shots : labelled rows of each class to be given beforehand, never more than half of a class.
    halved : whether a random half of the remaining rows is given beforehand without labels.

    >>> parts = split(np.array([0, 0, 0, 1, 1, 1, 1, 1]), seed=0, shuffled=False, shots=2)
    >>> parts.support.tolist(), parts.scored.tolist()
    ([2, 7, 4], [0, 1, 3, 5, 6])
    """
    if seed is None:
        return Split(np.arange(len(labels)))
    draw = np.random.default_rng([seed, DRAWING])
    # The whole set is put in order and what was drawn is left out: without a draw it is the plain random order.
    order = np.random.default_rng(seed).permutation(len(labels)) if shuffled else np.arange(len(labels))
    free = np.ones(len(labels), bool)
    support = unlabelled = None
    if shots is not None:
        support = _support(labels, shots, draw)
        free[support] = False
    if halved:
        left = draw.permutation(np.flatnonzero(free))
        unlabelled = np.sort(left[: len(left) // 2])
        free[unlabelled] = False
    return Split(order[free[order]], support, unlabelled)


def _support(labels: np.ndarray, shots: int, draw: np.random.Generator) -> np.ndarray:
    mixed = draw.permutation(len(labels))
    by_class = mixed[np.argsort(labels[mixed], kind="stable")]
    counts = np.bincount(labels)
    starts = np.cumsum(counts) - counts
    place = np.arange(len(labels)) - starts[labels[by_class]]
    return by_class[place < np.minimum(shots, counts // 2)[labels[by_class]]]
