"""Soft labels of a whole set whose classes have a given share of it: Sinkhorn's scaling of rows and columns in turn."""

from __future__ import annotations

from zeroshift.arrays import Array, namespace
from zeroshift.zero_shot import softmax

__all__ = ["balance", "class_shares", "sinkhorn"]


def sinkhorn(scores: Array, *, temperature: float = 0.01, gamma: float = 1.0, iterations: int = 20) -> Array:
    """Soft labels (N, K), rows summing to 1, from scores (N, K), as InMaP makes them.

    They begin as the softmax of `scores / temperature`. The share of a class is its share of that softmax to the power
    of `gamma`: 1 leaves it as it was, 0 makes all classes equally common. The columns, scaled before the rows, have
    their shares as nearly as `iterations` allow.

    >>> import numpy as np
    >>> labels = sinkhorn(np.array([[3.0, 0.0], [1.0, 0.0]]), temperature=1.0, gamma=0.0, iterations=50)
    >>> labels.round(3), labels.sum(axis=0).round(3)
    (array([[0.731, 0.269],
           [0.269, 0.731]]), array([1., 1.]))
    """
    weights = softmax(scores / temperature)
    return balance(weights, class_shares(weights, gamma), iterations)


def class_shares(weights: Array, gamma: float) -> Array:
    """Each class's share (K,) of the weights (N, K), to the power of `gamma`, summing to 1.

    >>> import numpy as np
    >>> class_shares(np.array([[0.8, 0.2], [0.8, 0.2]]), 0.5).round(3)
    array([0.667, 0.333])
    """
    xp = namespace(weights)
    sums = xp.sum(weights, axis=0)
    shares = (sums / xp.sum(sums)) ** gamma
    return shares / xp.sum(shares)


def balance(weights: Array, shares: Array, iterations: int) -> Array:
    """Non-negative weights (N, K) scaled by rows and columns, in place, to row sums of 1 and column sums of N `shares`.

    A column of zeros stays one, whatever its share.

    >>> import numpy as np
    >>> balance(np.array([[1.0, 1.0], [1.0, 1.0]]), np.array([0.25, 0.75]), 1)
    array([[0.25, 0.75],
           [0.25, 0.75]])
    """
    if iterations == 0:
        return weights
    xp = namespace(weights)
    # Columns of sum 1 first, by division: a class of hardly any weight needs a factor no float32 can hold. From then on
    # two vectors of factors say everything, and an iteration only reads the matrix, twice.
    sums = xp.sum(weights, axis=0)
    weights /= xp.where(sums > 0, sums, xp.ones_like(sums))
    wanted = shares * weights.shape[0]
    column = wanted
    row = _ratio(1.0, weights @ column)
    for _ in range(iterations - 1):
        column = _ratio(wanted, row @ weights)
        row = _ratio(1.0, weights @ column)
    weights *= column
    weights *= row[:, None]
    return weights


def _ratio(above: Array | float, below: Array) -> Array:
    """above / below, zero where there is nothing below."""
    xp = namespace(below)
    there = below > 0
    return xp.where(there, above / xp.where(there, below, xp.ones_like(below)), xp.zeros_like(below))
