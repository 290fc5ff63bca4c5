"""Labels that spread over a graph: links scaled by the degrees of their ends, and where the labels come to rest.

ZLaP's graph has no link from a node to itself and is solved; ECALP's keeps them and is followed for a few rounds.
"""

from __future__ import annotations

from zeroshift.arrays import Array, Home, namespace
from zeroshift.methods.parts.sparse import SparseMatrix

__all__ = ["degree_factors", "settled", "without_self"]

TOLERANCE = 1e-10
"""Length of the residual, relative to that of the right-hand side, at which a solution is taken as found."""

MOST_ITERATIONS = 1000

WORK_NUMBERS = 8_000_000
"""Entries of a solution found together."""


def without_self(nodes: Array, weights: Array) -> Array:
    """The weights (n, k) of lists of neighbours (n, k) with none for the node whose list it is.

    >>> import numpy as np
    >>> without_self(np.array([[0, 1], [0, 1]]), np.array([[0.9, 0.5], [0.5, 0.9]]))
    array([[0. , 0.5],
           [0.5, 0. ]])
    """
    xp = namespace(weights)
    own = xp.arange(nodes.shape[0], dtype=nodes.dtype, device=Home.of(weights).device)[:, None]
    return xp.where(nodes == own, xp.zeros_like(weights), weights)


def degree_factors(degrees: Array, softening: float = 0.0) -> Array:
    """1 / (sqrt(D) + softening): a link's weight is multiplied by the factors of both its ends. 1 for a lone node.

    >>> import numpy as np
    >>> degree_factors(np.array([4.0, 0.0]))
    array([0.5, 1. ])
    """
    xp = namespace(degrees)
    roots = xp.sqrt(degrees) + softening
    return 1.0 / xp.where(roots > 0, roots, xp.ones_like(roots))


def settled(links: SparseMatrix, alpha: float, n_labelled: int) -> Array:
    """Where labels come to rest that the first nodes hold, each its own: those columns of (I - alpha W)^-1.

    `links` W (n, n) is symmetric with eigenvalues between -1 and 1. Conjugate gradients, many columns at once.

    >>> import numpy as np
    >>> pair = SparseMatrix(np.array([0, 1]), np.array([1, 0]), np.array([1.0, 1.0]), (2, 2))
    >>> settled(pair, 0.5, 1).round(6)
    array([[1.333333],
           [0.666667]])
    """
    n = links.shape[0]
    together = max(1, WORK_NUMBERS // n)
    parts = [
        _solved(links, alpha, _unit_columns(links.home, n, start, min(start + together, n_labelled)))
        for start in range(0, n_labelled, together)
    ]
    return parts[0] if len(parts) == 1 else links.home.xp.concat(parts, axis=1)


def _unit_columns(home: Home, n: int, start: int, stop: int) -> Array:
    columns = home.zeros((n, stop - start))
    numbers = home.xp.arange(stop - start, device=home.device)
    columns[numbers + start, numbers] = 1.0
    return columns


def _solved(links: SparseMatrix, alpha: float, right: Array) -> Array:
    """(I - alpha W) X = `right` (n, m), each column with its own step lengths; none of the columns is zero."""
    xp = namespace(right)
    x = xp.zeros_like(right)
    residual, direction = right, links.home.copy(right)
    squared = xp.sum(residual * residual, axis=0)
    enough = TOLERANCE**2 * squared
    for _ in range(MOST_ITERATIONS):
        image = links @ direction
        image *= -alpha
        image += direction
        curvature = xp.sum(direction * image, axis=0)
        # A column that is solved exactly has no direction left to go.
        step = squared / xp.where(curvature > 0, curvature, xp.ones_like(curvature))
        x += step * direction
        residual -= step * image
        before, squared = squared, xp.sum(residual * residual, axis=0)
        if bool(xp.all(squared <= enough)):
            break
        direction *= squared / xp.where(before > 0, before, xp.ones_like(before))
        direction += residual
    # Labels that only spread are nowhere negative; rounding leaves a trace below zero where none arrives.
    return xp.where(x > 0, x, xp.zeros_like(x))
