"""Small functions on similarities that several methods share: kernel, inner products, normalisation of rows."""

from __future__ import annotations

import numpy as np

from zeroshift.arrays import Array, Backend, namespace, to_numpy
from zeroshift.frozen import Expression
from zeroshift.parameters import Number

__all__ = [
    "SHARPNESS",
    "exponential_kernel",
    "frozen_votes",
    "inner_products",
    "normalize_rows",
    "one_hot",
    "unit_rows",
]

TINY = 1e-12

SHARPNESS = Number(low=0, high=1000)
"""What `beta` of the kernel may be. Rows may be 1% longer than 1, so cosines reach 1.02, and exp(1000 * 0.02) is still
finite. At 1000 a sample with a cosine of 0.99 has a weight of 5e-5."""


def exponential_kernel(cosines: Array, beta: float) -> Array:
    """exp(-beta (1 - cosine)): 1 for the sample itself, less for samples further away.

    >>> import numpy as np
    >>> exponential_kernel(np.array([1.0, 0.96]), 5.0).round(6)
    array([1.      , 0.818731])
    """
    return namespace(cosines).exp(beta * (cosines - 1.0))


def frozen_votes(x: Expression, keys: Array, weights: Array, beta: float) -> Expression:
    """Votes (n, K) of samples kept for each class, (K, M, d): their kernels, times weights (K, M), added up.

    Slots that hold no sample have the weight 0; those that hold none in any class are left out.
    """
    keys, weights = to_numpy(keys), to_numpy(weights)
    used = (weights != 0).any(axis=0)
    used[0] |= not used.any()  # one is needed for the shape
    kernels = (x.to_each(beta * keys[:, used].astype(np.float64)) - beta).exp()
    return (kernels * weights[:, None, used]).sum().columns()


def inner_products(features: Array, rows: Array) -> Array:
    """(n, m) for features (n, d) and rows (m, d). One sample takes a matrix-vector product, much faster on a GPU."""
    return features @ rows.T if features.shape[0] > 1 else (rows @ features[0])[None, :]


def normalize_rows(weights: Array) -> Array:
    """Each row of non-negative weights divided by its sum; a row of zeros becomes uniform.

    >>> import numpy as np
    >>> normalize_rows(np.array([[1.0, 3.0], [0.0, 0.0]]))
    array([[0.25, 0.75],
           [0.5 , 0.5 ]])
    """
    xp = namespace(weights)
    total = xp.sum(weights, axis=-1, keepdims=True)
    empty = total <= 0
    return xp.where(empty, 1 / weights.shape[-1], weights / xp.where(empty, xp.ones_like(total), total))


def one_hot(classes: Array, n_classes: int) -> Array:
    """Class indices (..., n) as float64 rows (..., n, K) of zeros and a one.

    >>> one_hot(np.array([2, 0]), 3)
    array([[0., 0., 1.],
           [1., 0., 0.]])
    """
    xp = namespace(classes)
    columns = xp.arange(n_classes, device=Backend.of(classes).device)
    return xp.astype(classes[..., None] == columns, xp.float64)


def unit_rows(rows: Array) -> Array:
    """Each row (the last axis) scaled to unit length; a zero row stays zero.

    >>> import numpy as np
    >>> unit_rows(np.array([[3.0, 4.0], [0.0, 0.0]]))
    array([[0.6, 0.8],
           [0. , 0. ]])
    """
    xp = namespace(rows)
    lengths = xp.linalg.vector_norm(rows, axis=-1, keepdims=True)
    return rows / xp.where(lengths > TINY, lengths, xp.ones_like(lengths))
