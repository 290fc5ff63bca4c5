"""Inverses of symmetric matrices that are positive definite, or at least should be: no SVD where none is needed."""

from __future__ import annotations

import numpy as np

from zeroshift.adapt.engines.factors import positive_inverse
from zeroshift.arrays import Array, Home, namespace

__all__ = ["add_to_diagonal", "invert_positive", "pseudo_inverse"]


def add_to_diagonal(matrix: Array, value: Array | float) -> Array:
    """The matrix itself, a contiguous (d, d), changed in place.

    >>> add_to_diagonal(np.ones((2, 2)), 1.0)
    array([[2., 1.],
           [1., 2.]])
    """
    matrix.reshape(-1)[:: matrix.shape[0] + 1] += value
    return matrix


def invert_positive(matrix: Array) -> Array:
    """Inverse of a symmetric positive definite matrix (d, d), by whichever way is the library's quickest.

    >>> invert_positive(np.array([[2.0, 1.0], [1.0, 2.0]])).round(4)
    array([[ 0.6667, -0.3333],
           [-0.3333,  0.6667]])
    """
    home = Home.of(matrix)
    if home.library == "numpy":
        return positive_inverse(matrix)
    return home.xp.cholesky_inverse(home.xp.linalg.cholesky(matrix))


def pseudo_inverse(matrix: Array) -> Array:
    """Moore-Penrose inverse of a symmetric positive semidefinite matrix (d, d); the inverse wherever there is one.

    >>> pseudo_inverse(np.diag([2.0, 0.0]))
    array([[0.5, 0. ],
           [0. , 0. ]])
    """
    xp = namespace(matrix)
    return invert_positive(matrix) if _is_definite(matrix) else xp.linalg.pinv(matrix)


def _is_definite(matrix: Array) -> bool:
    """Whether no direction is lost in rounding, as the pivots of a Cholesky factor tell."""
    xp = namespace(matrix)
    try:
        factor = xp.linalg.cholesky(matrix)
    except (np.linalg.LinAlgError, RuntimeError):  # the latter is torch's
        return False
    pivots = xp.linalg.diagonal(factor) ** 2
    d = matrix.shape[-1]
    return bool(xp.min(pivots) > d * d * float(xp.finfo(matrix.dtype).eps) * xp.max(pivots))
