"""Sinkhorn iterations, which scale the rows and columns of one or many matrices in turn until they have given sums.

They give soft labels whose classes have given shares, and entropic optimal transport.
"""

from __future__ import annotations

from collections.abc import Callable

from zeroshift.arrays import Array, namespace
from zeroshift.parameters import Number
from zeroshift.zero_shot import softmax

Stop = Callable[[int, Array, Array, Array], Array]
"""Which problems are done, as an array that broadcasts over the factors. Its arguments are the number of rounds so far,
the row factors before the last round and after it, and the sums of the plan's rows."""

REGULARISATION = Number(low=0.01)
"""Regularisation of a transport with costs of at most 2, as between unit vectors: exp(-200) does not underflow."""

CHECK_EVERY = 10
"""The library POT checks the marginals after the first of every ten rounds."""


def mean_over_plan(
    values: Array, kernel: Array, row_sums: Array, column_sums: Array, *, iterations: int, done: Stop
) -> Array:
    """Means (...) of values (..., m, n) over transport plans: kernels exp(-cost / regularisation) whose rows and
    columns are multiplied by factors so that they have the sums given.

    Rows are scaled before columns, so the column sums are exact. A problem that is `done` keeps its factors.

    >>> import numpy as np
    >>> cost, half = 1 - np.eye(2), np.array([0.5, 0.5])
    >>> mean_over_plan(cost, np.exp(-cost / 0.5), half, half, iterations=100, done=small_change(1e-9)).round(3)
    np.float64(0.119)
    """
    xp = namespace(kernel)
    transposed = xp.matrix_transpose(kernel)
    rows, columns = xp.ones_like(kernel[..., 0]), xp.ones_like(kernel[..., 0, :])
    active = xp.ones_like(rows[..., :1], dtype=xp.bool)
    products = _times(kernel, columns)
    for rounds in range(1, iterations + 1):
        before, rows = rows, xp.where(active, row_sums / products, rows)
        columns = xp.where(active, column_sums / _times(transposed, rows), columns)
        products = _times(kernel, columns)
        active = active & ~done(rounds, before, rows, rows * products)
        if not bool(xp.any(active)):
            break
    return xp.sum(rows * _times(kernel * values, columns), axis=-1)


def small_change(tolerance: float, axes: tuple[int, ...] = (-1,)) -> Stop:
    """Done where the mean change of the row factors over these `axes` is less than `tolerance`."""

    def done(rounds: int, before: Array, rows: Array, sums: Array) -> Array:
        xp = namespace(rows)
        return xp.mean(xp.abs(rows - before), axis=axes, keepdims=True) < tolerance

    return done


def marginal_met(row_sums: Array, tolerance: float) -> Stop:
    """POT's rule: done where the norm of the plan's row sums minus `row_sums` is less than `tolerance`."""

    def done(rounds: int, before: Array, rows: Array, sums: Array) -> Array:
        error = namespace(sums).linalg.vector_norm(sums - row_sums, axis=-1, keepdims=True)
        return (error < tolerance) & (rounds % CHECK_EVERY == 1)

    return done


def _times(kernel: Array, factors: Array) -> Array:
    """The kernel (..., m, n) times factors (..., n)."""
    return (kernel @ factors[..., None])[..., 0]


def sinkhorn(scores: Array, *, temperature: float = 0.01, gamma: float = 1.0, iterations: int = 20) -> Array:
    """Soft labels (N, K), rows summing to 1, from scores (N, K), as InMaP makes them.

    They start as the softmax of `scores / temperature`. The share of each class is its share of that softmax to the
    power of `gamma`: 1 keeps it, 0 makes all classes equally frequent. Columns are scaled before rows, so the class
    shares are met only as well as `iterations` allow.

    >>> import numpy as np
    >>> labels = sinkhorn(np.array([[3.0, 0.0], [1.0, 0.0]]), temperature=1.0, gamma=0.0, iterations=50)
    >>> labels.round(3), labels.sum(axis=0).round(3)
    (array([[0.731, 0.269],
           [0.269, 0.731]]), array([1., 1.]))
    """
    xp = namespace(scores)
    labels = softmax(scores / temperature)
    sums = xp.sum(labels, axis=0)
    shares = (sums / xp.sum(sums)) ** gamma
    for _ in range(iterations):
        # Divided first: a factor shares / sums of a class with very little weight would overflow in float32.
        sums = xp.sum(labels, axis=0)
        labels /= xp.where(sums > 0, sums, xp.ones_like(sums))
        labels *= shares
        labels /= xp.sum(labels, axis=1, keepdims=True)
    return labels
