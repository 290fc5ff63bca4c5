"""Streams that hold every row once, and differ only in the order."""

from __future__ import annotations

import numpy as np

from zeroshift.arrays import Array
from zeroshift.evaluate.streams.checks import checked_classes, checked_confidences, checked_seed
from zeroshift.evaluate.streams.stream import Stream
from zeroshift.parameters import Number
from zeroshift.zero_shot import graded

__all__ = ["class_sorted", "easy_to_hard", "hard_to_easy", "random_order"]


def random_order(n_rows: int, seed: int) -> Stream:
    """Every row once, in an order `seed` draws.

    >>> random_order(4, seed=0).rows.tolist()
    [2, 0, 1, 3]
    """
    n_rows = int(Number(1, integer=True).check("n_rows", n_rows))
    return Stream(np.random.default_rng(checked_seed(seed)).permutation(n_rows))


def easy_to_hard(confidences: Array, seed: int) -> Stream:
    """The surest rows first; equally sure ones in an order `seed` draws.

    >>> easy_to_hard(np.array([-0.7, -0.1, -0.4]), seed=0).rows.tolist()
    [1, 2, 0]
    """
    return _sorted(-graded(checked_confidences(confidences)), seed)


def hard_to_easy(confidences: Array, seed: int) -> Stream:
    """The least sure rows first; equally sure ones in an order `seed` draws.

    >>> hard_to_easy(np.array([-0.7, -0.1, -0.4]), seed=0).rows.tolist()
    [0, 2, 1]
    """
    return _sorted(graded(checked_confidences(confidences)), seed)


def class_sorted(labels: Array, seed: int) -> Stream:
    """One class after the other; `seed` draws the order of the classes, and of the rows inside each.

    >>> labels = np.array([0, 1, 0, 1, 2])
    >>> labels[class_sorted(labels, seed=1).rows].tolist()
    [0, 0, 1, 1, 2]
    """
    labels = checked_classes("labels", labels)
    draw = np.random.default_rng(checked_seed(seed))
    classes, members = np.unique(labels, return_inverse=True)
    places = draw.permutation(len(classes))
    mixed = draw.permutation(len(labels))
    return Stream(mixed[np.argsort(places[members[mixed]], kind="stable")])


def _sorted(keys: np.ndarray, seed: int) -> Stream:
    mixed = np.random.default_rng(checked_seed(seed)).permutation(len(keys))
    return Stream(mixed[np.argsort(keys[mixed], kind="stable")])
