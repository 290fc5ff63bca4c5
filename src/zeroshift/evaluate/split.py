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
    validation: np.ndarray | None = None
    """Labelled rows given beforehand to choose parameters by."""
    unlabelled: np.ndarray | None = None
    """Rows given beforehand without their labels."""


def split(
    labels: np.ndarray,
    *,
    seed: int | None,
    shuffled: bool,
    shots: int | None = None,
    validated: bool = False,
    halved: bool = False,
    order: np.ndarray | None = None,
) -> Split:
    """Draw from the rows with `seed`; without one, all rows in their stored order.

    Parameters
    ----------
    labels : (N,) class indices.
    seed : of the order and of the draws; the same seed gives the same rows.
    shuffled : whether the scored rows come in a random order.
    shots : labelled rows of each class to be given beforehand, never more than half of a class.
    validated : whether every other labelled row of a class is for validation: the same number of labels in all.
    halved : whether a random half of the remaining rows is given beforehand without labels.
    order : the rows that come, in this order, in place of all of them; what is given beforehand is left out of it.

    >>> parts = split(np.array([0, 0, 0, 1, 1, 1, 1, 1]), seed=0, shuffled=False, shots=2)
    >>> parts.support.tolist(), parts.scored.tolist()
    ([1, 3, 7], [0, 2, 4, 5, 6])
    """
    if seed is None:
        return Split(np.arange(len(labels)) if order is None else order)
    draw = np.random.default_rng([seed, DRAWING])
    # The whole set is put in order and what was drawn is left out: without a draw it is the plain random order.
    if order is None:
        order = np.random.default_rng(seed).permutation(len(labels)) if shuffled else np.arange(len(labels))
    free = np.ones(len(labels), bool)
    support = validation = unlabelled = None
    if shots is not None:
        support = _support(labels, shots, draw)
        free[support] = False
        if validated:
            second = _places(labels[support]) % 2 == 1
            support, validation = support[~second], support[second]
    if halved:
        left = draw.permutation(np.flatnonzero(free))
        unlabelled = np.sort(left[: len(left) // 2])
        free[unlabelled] = False
    return Split(order[free[order]], support, validation, unlabelled)


def _support(labels: np.ndarray, shots: int, draw: np.random.Generator) -> np.ndarray:
    mixed = draw.permutation(len(labels))
    by_class = mixed[np.argsort(labels[mixed], kind="stable")]
    taken = np.minimum(shots, np.bincount(labels) // 2)
    return by_class[_places(labels[by_class]) < taken[labels[by_class]]]


def _places(labels: np.ndarray) -> np.ndarray:
    """Where each row stands within its class, from 0 on, for labels in order."""
    counts = np.bincount(labels)
    return np.arange(len(labels)) - (np.cumsum(counts) - counts)[labels]
