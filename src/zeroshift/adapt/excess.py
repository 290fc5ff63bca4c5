"""What the plain product x.s_k, s_k = sum_j p_j x_j, lacks of the bank term where some cosine is negative.

sum_j max(0, c_j) p_j = sum_j c_j p_j + sum_j max(0, -c_j) p_j: the plain product plus an excess, which needs the bank
itself and is therefore only summed where no certificate rules it out.
"""

from __future__ import annotations

import numpy as np

from zeroshift.adapt.statistics import bank_term
from zeroshift.arrays import Array, Home, namespace, to_numpy

__all__ = ["WORK_NUMBERS", "add_excess"]

WORK_NUMBERS = 4_000_000
"""Cosines between samples and bank entries held at once: 32 MB in float64."""

SCATTERED = 64
"""On a GPU one large product beats gathering single pairs until it computes this many values for every one needed."""

DENSE = 0.25
"""On a processor it beats going class by class from this share of pairs in doubt."""

FEW_CLASSES = 64
"""Up to this many classes they are looked at where they are, one by one: a copy of their banks takes longer."""


def add_excess(
    term: Array, x: Array, bank_features: Array, weights: Array, doubtful: Array, work_numbers: int = WORK_NUMBERS
) -> None:
    """Add sum_j max(0, -x.x_j) p_j wherever `doubtful` (n, K); elsewhere it may be added too.

    `term` (n, K) may hold anything that contains x.s as a summand. At most `work_numbers` cosines are held at once.
    """
    xp = namespace(x)
    count = int(xp.sum(xp.astype(doubtful, xp.int64)))
    if count == 0:
        return
    rows = xp.nonzero(xp.any(doubtful, axis=1))[0]
    classes = xp.nonzero(xp.any(doubtful, axis=0))[0]
    pairs = int(rows.shape[0] * classes.shape[0])
    if Home.of(x).on_gpu:
        if pairs > SCATTERED * count:
            _pair_by_pair(term, x, bank_features, weights, doubtful, work_numbers)
            return
    elif count < DENSE * pairs or classes.shape[0] <= FEW_CLASSES:
        _class_by_class(term, x, bank_features, weights, doubtful)
        return
    if 2 * classes.shape[0] < bank_features.shape[0]:
        bank_features, weights = bank_features[classes], weights[classes]
    else:
        # All of the bank is less work than a copy of most of it, and less memory.
        classes = xp.arange(bank_features.shape[0], device=Home.of(x).device)
    at_once = max(1, work_numbers // (weights.shape[0] * weights.shape[1]))
    for start in range(0, rows.shape[0], at_once):
        some = rows[start : start + at_once]
        # The excess of x is the bank term of -x.
        term[some[:, None], classes[None, :]] += bank_term(-x[some], bank_features, weights)


def _class_by_class(term: Array, x: Array, bank_features: Array, weights: Array, doubtful: Array) -> None:
    """Each class with the samples concerned."""
    xp = namespace(x)
    by_class = to_numpy(doubtful).T
    for k in np.flatnonzero(by_class.any(axis=1)).tolist():
        rows = Home.of(x).index(np.flatnonzero(by_class[k]))
        cosines = x[rows] @ bank_features[k].T
        term[rows, k] += xp.where(cosines < 0, -cosines, xp.zeros_like(cosines)) @ weights[k]


def _pair_by_pair(
    term: Array, x: Array, bank_features: Array, weights: Array, doubtful: Array, work_numbers: int
) -> None:
    xp = namespace(x)
    rows, classes = xp.nonzero(doubtful)
    at_once = max(1, work_numbers // (weights.shape[1] * x.shape[1]))
    for start in range(0, rows.shape[0], at_once):
        i, k = rows[start : start + at_once], classes[start : start + at_once]
        cosines = xp.matmul(bank_features[k], x[i][:, :, None])[:, :, 0]
        term[i, k] += xp.sum(xp.clip(-cosines, min=0.0) * weights[k], axis=1)
