"""The largest entries of every row, and the nearest neighbours of features."""

from __future__ import annotations

import numpy as np

from zeroshift.arrays import Array, Backend, namespace

WORK_NUMBERS = 8_000_000
"""Cosines in memory together."""


def top_k(scores: Array, k: int) -> tuple[Array, Array]:
    """Values and columns (n, k) of the k largest entries of each row, largest first; equal ones in order of columns.

    If several entries equal the k-th largest, the array library chooses among them, always in the same way.

    >>> values, columns = top_k(np.array([[0.1, 0.9, 0.5]]), 2)
    >>> columns
    array([[1, 2]])
    """
    xp = namespace(scores)
    k = min(k, scores.shape[-1])
    columns = scores.topk(k, dim=-1)[1] if hasattr(scores, "topk") else np.argpartition(-scores, k - 1)[..., :k]
    columns = xp.sort(columns, axis=-1)
    values = xp.take_along_axis(scores, columns, axis=-1)
    order = xp.argsort(-values, axis=-1, stable=True)
    return xp.take_along_axis(values, order, axis=-1), xp.take_along_axis(columns, order, axis=-1)


def nearest(features: Array, others: Array, k: int, *, exclude_self: bool = False) -> tuple[Array, Array]:
    """Cosines and indices (n, k) of the k rows of `others` nearest to each feature, nearest first; computed in blocks.

    With `exclude_self`, row i of `features` is row i of `others` and not a neighbour of itself.

    >>> nearest(np.eye(2), np.array([[0.8, 0.6], [0.6, 0.8]]), 1)[1]
    array([[0],
           [1]])
    """
    xp = namespace(features)
    size = max(1, WORK_NUMBERS // others.shape[0])
    parts = []
    for start in range(0, features.shape[0], size):
        cosines = features[start : start + size, :] @ others.T
        if exclude_self:
            rows = xp.arange(cosines.shape[0], device=Backend.of(features).device)
            cosines[rows, rows + start] = -xp.inf
        parts.append(top_k(cosines, min(k, others.shape[0] - exclude_self)))
    values, columns = zip(*parts, strict=True)
    return xp.concat(values, axis=0), xp.concat(columns, axis=0)
