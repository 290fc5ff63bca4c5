"""Sinkhorn's scaling of rows and columns in turn, for one matrix or many: soft labels whose classes have given shares,
and entropic optimal transport. One loop; what differs is when it ends.
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
    "plan",
    "scaling_round",
    "sinkhorn",
    "small_change",
    "transport",
]

Factors = tuple[Array, Array]
"""(..., m) and (..., n): what the rows and the columns of a kernel (..., m, n) are multiplied by."""

Round = Callable[[Array], Factors]
"""From the columns' factors, the rows' and then the columns' again."""

Rule = Callable[[int, Array, Factors], "Array | None"]
"""From the number of rounds made, the rows' factors before the last and all factors after it: which problems are done,
as an array to be broadcast over the factors; None where it is not looked at."""

REGULARISATION = Number(low=0.01)
"""Of a transport whose costs are at most 2, as those between unit vectors: exp(-200) is far from float64's zero."""

CHECK_EVERY = 10
"""The library POT looks at the marginals after the first of every ten rounds."""


def alternate(one_round: Round, start: Factors, *, iterations: int, done: Rule | None = None) -> Factors:
    """The factors after `iterations` rounds, or for each of many problems those with which it was `done`.

    >>> import numpy as np
    >>> kernel, half = np.array([[2.0, 1.0], [1.0, 2.0]]), np.array([0.5, 0.5])
    >>> rows, columns = alternate(scaling_round(kernel, half, half), (half, half), iterations=9)
    >>> plan(kernel, rows, columns).round(3)
    array([[0.333, 0.167],
           [0.167, 0.333]])
    """
    rows, columns = start
    moving = None
    for rounds in range(1, iterations + 1):
        before = rows
        new_rows, new_columns = one_round(columns)
        if moving is None:
            rows, columns = new_rows, new_columns
        else:
            xp = namespace(rows)
            rows, columns = xp.where(moving, new_rows, rows), xp.where(moving, new_columns, columns)
        finished = None if done is None else done(rounds, before, (rows, columns))
        if finished is not None:
            moving = ~finished if moving is None else moving & ~finished
            if not bool(namespace(rows).any(moving)):
                break
    return rows, columns


def scaling_round(kernel: Array, row_sums: Array | float, column_sums: Array | float) -> Round:
    """The round that gives a kernel (..., m, n) these row sums, then these column sums; the latter stay exact."""
    across = namespace(kernel).matrix_transpose(kernel)

    def one_round(columns: Array) -> Factors:
        rows = _ratio(row_sums, _times(kernel, columns))
        return rows, _ratio(column_sums, _times(across, rows))

    return one_round


def small_change(tolerance: float, axes: tuple[int, ...] = (-1,)) -> Rule:
    """Done where the rows' factors, over these `axes` together, changed by less than `tolerance` on average."""

    def done(rounds: int, before: Array, factors: Factors) -> Array:
        xp = namespace(before)
        return xp.mean(xp.abs(factors[0] - before), axis=axes, keepdims=True) < tolerance

    return done


def marginal_met(kernel: Array, row_sums: Array, tolerance: float) -> Rule:
    """POT's rule: done where the row sums of the plan are within `tolerance`, as a vector's length, of `row_sums`."""

    def done(rounds: int, before: Array, factors: Factors) -> Array | None:
        if rounds % CHECK_EVERY != 1:
            return None
        rows, columns = factors
        missed = rows * _times(kernel, columns) - row_sums
        return namespace(kernel).linalg.vector_norm(missed, axis=-1, keepdims=True) < tolerance

    return done


def transport(
    cost: Array, row_sums: Array, column_sums: Array, *, regularisation: float, iterations: int, tolerance: float
) -> Array:
    """Entropic optimal transport plans (..., m, n) of costs (..., m, n), as POT's `ot.sinkhorn` computes and ends them.

    Columns are scaled before rows, whose sums are therefore exact.

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
    return xp.matrix_transpose(plan(kernel, columns, rows))


def plan(kernel: Array, rows: Array, columns: Array) -> Array:
    """The kernel with its rows and columns multiplied: how much of what goes where."""
    return rows[..., :, None] * kernel * columns[..., None, :]


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
    # The first round's columns are known; the rows come last in every round.
    start = wanted, _ratio(1.0, weights @ wanted)
    column, row = alternate(scaling_round(weights.T, wanted, 1.0), start, iterations=iterations - 1)
    weights *= column
    weights *= row[:, None]
    return weights


def _ratio(above: Array | float, below: Array) -> Array:
    """above / below, zero where there is nothing below."""
    xp = namespace(below)
    there = below > 0
    return xp.where(there, above / xp.where(there, below, xp.ones_like(below)), xp.zeros_like(below))


def _times(kernel: Array, factors: Array) -> Array:
    return kernel @ factors if len(kernel.shape) == 2 else (kernel @ factors[..., None])[..., 0]
