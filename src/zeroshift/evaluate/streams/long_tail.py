"""A stream whose classes are of very unequal size: few with many samples (the head), many with few (the tail)."""

from __future__ import annotations

from typing import Any

import numpy as np

from zeroshift.arrays import Array
from zeroshift.evaluate.streams.checks import checked_classes, checked_seed
from zeroshift.evaluate.streams.stream import Stream
from zeroshift.parameters import Constraint, Number, Optional

__all__ = ["CONSTRAINTS", "GROUPS", "group_of_size", "long_tail", "long_tail_counts"]

GROUPS = ("head", "medium", "tail")

HEAD, TAIL = 0.8, 0.2
"""Of the greatest size: a class with at least so much is of the head, with at most so much of the tail. The paper's 40
and 10 of 50."""

IMBALANCE = 50.0
"""The greatest class against the smallest: what fits the paper's counts."""

FEWEST = 2
"""Rows of the greatest class: with one, all classes have one, and there is no tail."""


class _Most(Optional):
    def check(self, name: str, value: Any) -> Any:
        try:
            return super().check(name, value)
        except (TypeError, ValueError) as error:
            fix = f"Fix: {name}=None, which is the size of the smallest class."
            raise type(error)(f"{error} With one row a class there is no tail. {fix}") from None


CONSTRAINTS: dict[str, Constraint] = {"imbalance": Number(1), "most": _Most(Number(FEWEST, integer=True))}


def long_tail_counts(n_classes: int, most: int, imbalance: float = IMBALANCE) -> np.ndarray:
    """Sizes of the classes from the greatest, `most`, down to `most / imbalance`, by equal factors; at least 1 each.

    Where `most` is below `imbalance`, the stated ratio is not reached: the smallest class then has one row, and the
    ratio is `most`.

    The paper says "power law" and gives counts alone: 61 classes with 40 or more (2,719 images), 338 between (7,396)
    and 601 with 10 or fewer (2,416). What gives just these is an exponential from 50 down to 1:

    >>> counts = long_tail_counts(1000, most=50, imbalance=50)
    >>> [(int(part.sum()), len(part)) for part in (counts[counts >= 40], counts[counts <= 10])], int(counts.sum())
    ([(2719, 61), (2416, 601)], 12531)
    """
    n_classes = int(Number(1, integer=True).check("n_classes", n_classes))
    most = int(CONSTRAINTS["most"].check("most", most))
    imbalance = float(CONSTRAINTS["imbalance"].check("imbalance", imbalance))
    ranks = np.arange(n_classes) / max(1, n_classes - 1)
    return np.maximum(1, np.rint(most * imbalance**-ranks)).astype(int)


def group_of_size(counts: np.ndarray, most: int) -> np.ndarray:
    """Which of `GROUPS` a class of each size belongs to.

    >>> group_of_size(np.array([50, 40, 39, 10]), most=50).tolist()
    [0, 0, 1, 2]
    """
    return np.where(counts >= HEAD * most, 0, np.where(counts <= TAIL * most, 2, 1))


def long_tail(labels: Array, seed: int, *, imbalance: float = IMBALANCE, most: int | None = None) -> Stream:
    """So many rows of each class as `long_tail_counts` says; `seed` draws which class has which rank, which rows stay
    and the order.

    Parameters
    ----------
    labels : (N,) class indices; classes without a row do not count.
    seed : of every draw.
    imbalance : the greatest class against the smallest; where `most` is below it, the ratio is `most`.
    most : size of the greatest class; by default that of the smallest class in `labels`, which is the most that leaves
        every class free to have any rank. At least 2.

    >>> stream = long_tail(np.repeat(np.arange(5), 10), seed=0, imbalance=10)
    >>> len(stream), np.bincount(stream.groups).tolist(), stream.group_names
    (22, [10, 9, 3], ('head', 'medium', 'tail'))
    """
    labels = checked_classes("labels", labels)
    classes, members, sizes = np.unique(labels, return_inverse=True, return_counts=True)
    most = CONSTRAINTS["most"].check("most", most)
    if sizes.min() < FEWEST:
        raise ValueError(
            f"the smallest class has {sizes.min()} row; for a long tail every class needs at least {FEWEST}. "
            "Fix: leave out the classes with fewer."
        )
    if most is None:
        most = int(sizes.min())
    if most > sizes.min():
        raise ValueError(
            f"most must be at most {sizes.min()}, the size of the smallest class; got {most}. "
            f"Fix: most={sizes.min()}, or None."
        )
    draw = np.random.default_rng(checked_seed(seed))
    counts = draw.permutation(long_tail_counts(len(classes), most, imbalance))
    mixed = draw.permutation(len(labels))
    taken = [mixed[members[mixed] == k][:count] for k, count in enumerate(counts)]
    rows = draw.permutation(np.concatenate(taken))
    return Stream(rows, group_of_size(counts, most)[members[rows]], GROUPS)
