"""How far the text features of the classes lie from their mean, and its gradient: what C-TPT keeps large."""

from __future__ import annotations

from zeroshift.arrays import Array, namespace

__all__ = ["dispersion"]

ON_THE_MEAN = 1e-12
"""A class no further than this from the mean is on it: what is left is the rounding of a sum, and has no direction."""


def dispersion(text: Array) -> tuple[Array, Array]:
    """The mean distance of the rows (K, d) from their mean, and its gradient (K, d).

    A row on the mean has no direction away from it: it adds nothing to the gradient.

    >>> import numpy as np
    >>> value, gradient = dispersion(np.array([[0.0, 1.0], [0.0, -1.0], [0.0, 0.0]]))
    >>> round(float(value), 4), gradient.round(4)
    (0.6667, array([[ 0.    ,  0.3333],
           [ 0.    , -0.3333],
           [ 0.    ,  0.    ]]))
    """
    xp = namespace(text)
    away = text - xp.mean(text, axis=0, keepdims=True)
    distances = xp.linalg.vector_norm(away, axis=1, keepdims=True)
    apart = distances > ON_THE_MEAN
    directions = xp.where(apart, away / xp.where(apart, distances, xp.ones_like(distances)), xp.zeros_like(away))
    # Moving a row moves the mean as well, and with it the distances of all rows.
    gradient = (directions - xp.mean(directions, axis=0, keepdims=True)) / text.shape[0]
    return xp.mean(distances), gradient
