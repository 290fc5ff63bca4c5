"""The largest entries of every row, and the nearest neighbours of features."""

from __future__ import annotations

from zeroshift.arrays import Array, Backend, namespace

__all__ = ["nearest", "top_k"]

WORK_NUMBERS = 8_000_000
"""Cosines in memory together."""

FEW = 8
"""Up to this many are found one after the other, which is faster than a partition in NumPy."""


def top_k(scores: Array, k: int) -> tuple[Array, Array]:
    """Values and columns (n, k) of the k largest entries of each row, largest first; equal ones in order of columns.

    If several entries equal the k-th largest, the array library chooses among them, always in the same way.

    >>> import numpy as np
    >>> values, columns = top_k(np.array([[0.1, 0.9, 0.5]]), 2)
    >>> columns
    array([[1, 2]])
    """
    xp = namespace(scores)
    k = min(k, scores.shape[-1])
    if hasattr(scores, "topk"):
        values, columns = scores.topk(k, dim=-1)
    elif 0 < k <= FEW and k < scores.shape[-1] and (found := _one_by_one(scores, k)) is not None:
        return found
    else:
        import numpy as np

        columns = np.argpartition(-scores, k - 1, axis=-1)[..., :k] if k < scores.shape[-1] else None
        columns = np.broadcast_to(np.arange(scores.shape[-1]), scores.shape) if columns is None else columns
        values = np.take_along_axis(scores, columns, axis=-1)
    by_column = xp.argsort(columns, axis=-1, stable=True)
    columns, values = xp.take_along_axis(columns, by_column, axis=-1), xp.take_along_axis(values, by_column, axis=-1)
    by_value = xp.argsort(-values, axis=-1, stable=True)
    return xp.take_along_axis(values, by_value, axis=-1), xp.take_along_axis(columns, by_value, axis=-1)


def _one_by_one(scores: Array, k: int) -> tuple[Array, Array] | None:
    """`top_k` of a NumPy array; None if a row has fewer than k finite entries, since -inf marks those already found."""
    import numpy as np

    rest, values, columns = scores.copy(), [], []
    for _ in range(k):
        columns.append(rest.argmax(axis=-1)[..., None])
        values.append(np.take_along_axis(rest, columns[-1], axis=-1))
        np.put_along_axis(rest, columns[-1], -np.inf, axis=-1)
    best = np.concatenate(values, axis=-1)
    return (best, np.concatenate(columns, axis=-1)) if bool(np.all(best > -np.inf)) else None


def nearest(features: Array, others: Array, k: int, *, exclude_self: bool = False) -> tuple[Array, Array]:
    """Cosines and indices (n, k) of the k rows of `others` nearest to each feature, nearest first; computed in blocks.

    With `exclude_self`, row i of `features` is row i of `others` and not a neighbour of itself.

    >>> import numpy as np
    >>> nearest(np.eye(2), np.array([[0.8, 0.6], [0.6, 0.8]]), 1)[1]
    array([[0],
           [1]])
    """
    xp = namespace(features)
    device = Backend.of(features).device
    size = max(1, WORK_NUMBERS // others.shape[0])
    k = min(k, others.shape[0] - exclude_self)
    values, columns = [], []
    for start in range(0, features.shape[0], size):
        cosines = features[start : start + size, :] @ others.T
        if exclude_self:
            rows = xp.arange(cosines.shape[0], device=device)
            cosines[rows, rows + start] = -xp.inf
        best = top_k(cosines, k)
        values.append(best[0])
        columns.append(best[1])
    return xp.concat(values, axis=0), xp.concat(columns, axis=0)
