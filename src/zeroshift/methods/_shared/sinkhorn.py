"""Sinkhorn iterations, which scale rows and columns of one or many matrices in turn until they have given sums.

They give soft labels whose classes have given shares, and entropic optimal transport. All use one loop, `alternate`,
with different stopping rules.
"""

from __future__ import annotations

from collections.abc import Callable

from zeroshift.arrays import Array, namespace
from zeroshift.parameters import Number
from zeroshift.zero_shot import softmax

__all__ = [
    "REGULARISATION",
    "Factors",
    "Round",
    "alternate",
    "balance",
    "class_shares",
    "marginal_met",
    "scaling_round",
    "sinkhorn",
    "small_change",
    "transport",
    "transport_plan",
]

Factors = tuple[Array, Array]
"""Factors (..., m) and (..., n) that multiply the rows and the columns of a kernel (..., m, n)."""

Round = Callable[[Array], Factors]
"""One iteration: from the column factors to new row factors and new column factors."""

StoppingRule = Callable[[int, Array, Factors], "Array | None"]
"""Which problems are done, as an array that broadcasts over the factors, or None if this round is not checked.

Its arguments are the number of rounds so far, the row factors before the last round and all factors after it."""

REGULARISATION = Number(low=0.01)
"""Regularisation of a transport with costs of at most 2, as between unit vectors: exp(-200) does not underflow."""

CHECK_EVERY = 10
"""The library POT checks the marginals after the first of every ten rounds."""


def alternate(one_round: Round, start: Factors, *, iterations: int, done: StoppingRule | None = None) -> Factors:
    """The factors after `iterations` rounds; a problem that is `done` earlier keeps its factors from then on.

    >>> import numpy as np
    >>> kernel, half = np.array([[2.0, 1.0], [1.0, 2.0]]), np.array([0.5, 0.5])
    >>> rows, columns = alternate(scaling_round(kernel, half, half), (half, half), iterations=9)
    >>> transport_plan(kernel, rows, columns).round(3)
    array([[0.333, 0.167],
           [0.167, 0.333]])
    """
    rows, columns = start
    active = None
    for rounds in range(1, iterations + 1):
        before = rows
        new_rows, new_columns = one_round(columns)
        if active is None:
            rows, columns = new_rows, new_columns
        else:
            xp = namespace(rows)
            rows, columns = xp.where(active, new_rows, rows), xp.where(active, new_columns, columns)
        finished = None if done is None else done(rounds, before, (rows, columns))
        if finished is not None:
            active = ~finished if active is None else active & ~finished
            if not bool(namespace(rows).any(active)):
                break
    return rows, columns


def scaling_round(kernel: Array, row_sums: Array | float, column_sums: Array | float) -> Round:
    """A round that scales a kernel (..., m, n) to these row sums, then to these column sums, which are then exact."""
    transposed = namespace(kernel).matrix_transpose(kernel)

    def one_round(columns: Array) -> Factors:
        rows = _divide(row_sums, _product(kernel, columns))
        return rows, _divide(column_sums, _product(transposed, rows))

    return one_round


def small_change(tolerance: float, axes: tuple[int, ...] = (-1,)) -> StoppingRule:
    """Done where the mean change of the row factors over these `axes` is less than `tolerance`."""

    def done(rounds: int, before: Array, factors: Factors) -> Array:
        xp = namespace(before)
        return xp.mean(xp.abs(factors[0] - before), axis=axes, keepdims=True) < tolerance

    return done


def marginal_met(kernel: Array, row_sums: Array, tolerance: float) -> StoppingRule:
    """POT's rule: done where the norm of the plan's row sums minus `row_sums` is less than `tolerance`."""

    def done(rounds: int, before: Array, factors: Factors) -> Array | None:
        if rounds % CHECK_EVERY != 1:
            return None
        rows, columns = factors
        error = rows * _product(kernel, columns) - row_sums
        return namespace(kernel).linalg.vector_norm(error, axis=-1, keepdims=True) < tolerance

    return done


def transport(
    cost: Array, row_sums: Array, column_sums: Array, *, regularisation: float, iterations: int, tolerance: float
) -> Array:
    """Entropic optimal transport plans (..., m, n) for costs (..., m, n), with the iterations of POT's `ot.sinkhorn`.

    Columns are scaled before rows, so the row sums are exact.

    >>> import numpy as np
    >>> half = np.array([0.5, 0.5])
    >>> settings = {"regularisation": 0.5, "iterations": 100, "tolerance": 1e-9}
    >>> transport(1 - np.eye(2), half, half, **settings).round(3)
    array([[0.44, 0.06],
           [0.06, 0.44]])
    """
    xp = namespace(cost)
    kernel = xp.matrix_transpose(xp.exp(cost / -regularisation))
    columns, rows = alternate(
        scaling_round(kernel, column_sums, row_sums),
        (xp.ones_like(column_sums), xp.ones_like(row_sums)),
        iterations=iterations,
        done=marginal_met(kernel, column_sums, tolerance),
    )
    return xp.matrix_transpose(transport_plan(kernel, columns, rows))


def transport_plan(kernel: Array, rows: Array, columns: Array) -> Array:
    """The kernel with its rows and columns multiplied by their factors."""
    return rows[..., :, None] * kernel * columns[..., None, :]


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
    """Scale non-negative weights (N, K) in place to row sums of 1 and column sums of N `shares`, and return them.

    A column of zeros stays zero, whatever its share.

    >>> import numpy as np
    >>> balance(np.array([[1.0, 1.0], [1.0, 1.0]]), np.array([0.25, 0.75]), 1)
    array([[0.25, 0.75],
           [0.25, 0.75]])
    """
    if iterations == 0:
        return weights
    xp = namespace(weights)
    # Columns are first divided by their sums: the factor of a class with very little weight would overflow in float32.
    # From then on only two vectors of factors change, and each iteration reads the matrix twice.
    sums = xp.sum(weights, axis=0)
    weights /= xp.where(sums > 0, sums, xp.ones_like(sums))
    column_sums = shares * weights.shape[0]
    # The column factors of the first round are known; rows are scaled last in every round.
    start = column_sums, _divide(1.0, weights @ column_sums)
    column, row = alternate(scaling_round(weights.T, column_sums, 1.0), start, iterations=iterations - 1)
    weights *= column
    weights *= row[:, None]
    return weights


def _divide(numerator: Array | float, denominator: Array) -> Array:
    """numerator / denominator, and 0 where the denominator is not positive."""
    xp = namespace(denominator)
    positive = denominator > 0
    safe = xp.where(positive, denominator, xp.ones_like(denominator))
    return xp.where(positive, numerator / safe, xp.zeros_like(denominator))


def _product(kernel: Array, factors: Array) -> Array:
    """The kernel (..., m, n) times factors (..., n)."""
    return kernel @ factors if len(kernel.shape) == 2 else (kernel @ factors[..., None])[..., 0]
