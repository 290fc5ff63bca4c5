"""Rows of non-negative weights as probabilities, and rows of unit length."""

from __future__ import annotations

from zeroshift.arrays import Array, namespace

__all__ = ["normalize_rows", "unit_rows"]

TINY = 1e-12


def normalize_rows(weights: Array) -> Array:
    """Each row divided by its sum; a row without any weight becomes a guess.

    >>> import numpy as np
    >>> normalize_rows(np.array([[1.0, 3.0], [0.0, 0.0]]))
    array([[0.25, 0.75],
           [0.5 , 0.5 ]])
    """
    xp = namespace(weights)
    total = xp.sum(weights, axis=-1, keepdims=True)
    empty = total <= 0
    return xp.where(empty, 1 / weights.shape[-1], weights / xp.where(empty, xp.ones_like(total), total))


def unit_rows(rows: Array) -> Array:
    """Each row (the last axis) at unit length; a zero row stays zero.

    >>> import numpy as np
    >>> unit_rows(np.array([[3.0, 4.0], [0.0, 0.0]]))
    array([[0.6, 0.8],
           [0. , 0. ]])
    """
    xp = namespace(rows)
    lengths = xp.linalg.vector_norm(rows, axis=-1, keepdims=True)
    return rows / xp.where(lengths > TINY, lengths, xp.ones_like(lengths))
