"""Gaussians with one precision matrix for all classes, as OGA fits them: ridge or pseudo-inverse, the quicker way."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from zeroshift.adapt.statistics import linear_head
from zeroshift.arrays import Array, Home, namespace
from zeroshift.methods.parts.pooled_residuals import PooledResiduals
from zeroshift.methods.parts.positive import add_to_diagonal, invert_positive, pseudo_inverse
from zeroshift.ridge import ZERO_TRACE

__all__ = ["SharedGaussians", "dual_head", "fit", "isotropic", "precision_of"]

HARDLY_ANY_SPREAD = 1e-8
"""A mean squared residual below which a scatter that was followed is too coarse."""
DUAL_SHARE = 0.5
"""Up to so many samples a dimension, inner products of samples are quicker than a matrix over the dimensions."""
RIDGE_UP_TO = 4
"""With "auto", samples a dimension up to which the ridge is used."""


class SharedGaussians(NamedTuple):
    means: Array
    head: tuple[Array, Array]
    """Directions P mu_k (K, d) and offsets -1/2 mu_k^T P mu_k (K,)."""
    pooled: PooledResiduals | None = None
    """Where following it from fit to fit is quicker than making it anew."""
    age: int = 0
    """Fits since `pooled` was made anew."""


def isotropic(means: Array) -> SharedGaussians:
    """With the precision matrix d I."""
    d = means.shape[1]
    return SharedGaussians(means, (d * means, -0.5 * d * namespace(means).sum(means * means, axis=1)))


def fit(
    means: Array, residuals: Callable[[], Array], size: int, covariance: str, pooled: PooledResiduals | None, age: int
) -> SharedGaussians:
    """About `means`, with the covariance of `size` residuals, which are made only where `pooled` does not do."""
    if pooled is not None and pooled.trace() < HARDLY_ANY_SPREAD * size:
        pooled = None
    if pooled is None:
        rows, age = residuals(), 0
        if _is_ridge(covariance, size, means.shape[1]) and size <= DUAL_SHARE * means.shape[1]:
            return SharedGaussians(means, dual_head(means, rows))
        pooled = PooledResiduals.of(rows)
    return SharedGaussians(means, linear_head(means, precision_of(pooled, covariance)), pooled, age)


def _is_ridge(covariance: str, size: int, dimension: int) -> bool:
    return covariance == "ridge" or (covariance == "auto" and size <= RIDGE_UP_TO * dimension)


def precision_of(pooled: PooledResiduals, covariance: str) -> Array:
    """d ((n - 1) M + tr(M) I)^-1 or the pseudo-inverse of M, the covariance of the residuals; zero without any spread.

    >>> import numpy as np
    >>> pooled = PooledResiduals.of(np.array([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]]))
    >>> precision_of(pooled, "pinv"), precision_of(pooled, "ridge").round(2)
    (array([[1.5, 0. ],
           [0. , 1.5]]), array([[0.6, 0. ],
           [0. , 0.6]]))
    """
    home, d = Home.of(pooled.scatter), pooled.scatter.shape[0]
    trace = pooled.trace() / (pooled.size - 1)
    if trace <= ZERO_TRACE:
        return home.xp.zeros_like(pooled.scatter)
    if _is_ridge(covariance, pooled.size, d):
        return d * invert_positive(add_to_diagonal(home.copy(pooled.scatter), trace))
    return pseudo_inverse(pooled.scatter / (pooled.size - 1))


def dual_head(means: Array, residuals: Array) -> tuple[Array, Array]:
    """Directions P mu_k (K, d) and offsets -1/2 mu_k^T P mu_k (K,) with the ridge precision P = d (S + rho I)^-1, S the
    scatter of the residuals (n, d) about their mean and rho its trace / (n - 1), by an n x n matrix:

        rho (S + rho I)^-1 = I - R^T (R R^T + rho I)^-1 R.

    >>> import numpy as np
    >>> directions, offsets = dual_head(np.eye(2), np.array([[0.2, 0.0], [0.0, 0.0]]))  # S = diag(0.02, 0), rho = 0.02
    >>> directions, offsets
    (array([[ 50.,   0.],
           [  0., 100.]]), array([-25., -50.]))
    """
    xp = namespace(residuals)
    n, d = residuals.shape
    centred = residuals - xp.mean(residuals, axis=0)
    gram = centred @ centred.T
    ridge = float(xp.linalg.trace(gram)) / (n - 1)
    if ridge <= ZERO_TRACE:
        return xp.zeros_like(means), xp.zeros_like(means[:, 0])
    directions = means - ((means @ centred.T) @ invert_positive(add_to_diagonal(gram, ridge))) @ centred
    directions *= d / ridge
    return directions, -0.5 * xp.sum(directions * means, axis=1)
