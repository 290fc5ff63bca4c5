"""Gaussian classes with diagonal covariance, fitted to soft assignments: statistics, densities, variances.

Everything is matrix products: no array of samples by classes by dimensions is ever made. Statistics are summed, and
subtracted, in float64.
"""

from __future__ import annotations

from typing import NamedTuple

from zeroshift.arrays import Array, Home, namespace
from zeroshift.methods.parts.rows import unit_rows

__all__ = [
    "Gaussians",
    "Statistics",
    "floored",
    "log_densities",
    "mean_directions",
    "shared_variance",
    "statistics",
    "sum_of_squares",
]

FLOOR = 1e-6
"""Variances are kept above this share of 1/d, the variance of a unit vector's coordinate: samples that do not differ at
all would leave nothing to divide by."""

ZERO_MASS = 1e-30
"""A class whose samples together weigh less says nothing."""


class Gaussians(NamedTuple):
    means: Array
    """(K, d)."""
    variances: Array
    """(d,), shared by all classes, or (K, d)."""


class Statistics(NamedTuple):
    """What samples weighted by their assignments add up to."""

    mass: Array
    """sum_i z_ik, (K,)."""
    sums: Array
    """sum_i z_ik x_i, (K, d)."""
    squares: Array
    """sum_ik z_ik x_i^2, (d,)."""

    def plus(self, other: Statistics, weight: float) -> Statistics:
        return Statistics(*(own + weight * added for own, added in zip(self, other, strict=True)))

    def times(self, factor: float) -> Statistics:
        return Statistics(*(own * factor for own in self))


def sum_of_squares(features: Array) -> Array:
    """sum_i x_i^2, (d,), in float64."""
    xp = namespace(features)
    return xp.sum(features * features, axis=0, dtype=xp.float64)


def statistics(features: Array, z: Array, squares: Array | None = None) -> Statistics:
    """Of features (N, d) and assignments (N, K) whose rows sum to 1, in float64; `squares` where they are known."""
    xp = namespace(features)
    sums = xp.astype(z.T @ features, xp.float64, copy=False)
    return Statistics(
        xp.sum(z, axis=0, dtype=xp.float64), sums, sum_of_squares(features) if squares is None else squares
    )


def mean_directions(mass: Array, sums: Array, otherwise: Array) -> Array:
    """Class means at unit length (K, d); `otherwise` for a class without mass.

    >>> import numpy as np
    >>> mean_directions(np.array([2.0, 0.0]), np.array([[1.2, 1.6], [0.0, 0.0]]), np.eye(2))
    array([[0.6, 0.8],
           [0. , 1. ]])
    """
    xp = namespace(sums)
    held = (mass > ZERO_MASS)[:, None]
    return xp.where(held, unit_rows(sums / xp.where(held, mass[:, None], 1.0)), otherwise)


def shared_variance(gathered: Statistics, means: Array) -> Array:
    """sum_ik z_ik (x_i - mu_k)^2 / sum_ik z_ik, (d,).

    >>> import numpy as np
    >>> shared_variance(statistics(np.eye(2), np.eye(2)), np.array([[1.0, 0.0], [0.0, 0.0]]))
    array([5.e-07, 5.e-01])
    """
    xp = namespace(means)
    mass, sums, squares = gathered
    spread = squares - 2 * xp.sum(means * sums, axis=0) + mass @ (means * means)
    return floored(spread / xp.sum(mass))


def floored(variances: Array) -> Array:
    """Large enough to divide by; see `FLOOR`."""
    xp = namespace(variances)
    least = FLOOR / variances.shape[-1]
    return xp.where(variances > least, variances, least)


def log_densities(features: Array, gaussians: Gaussians) -> Array:
    """log N(x_i; mu_k, diag v_k) up to a constant a row, (n, K), in the features' precision.

    With a shared variance all of -x^2 / 2v is such a constant, and one product remains.

    >>> import numpy as np
    >>> x, means = np.array([[0.8, 0.6]]), np.eye(2)
    >>> log_densities(x, Gaussians(means, np.array([0.5, 0.5]))) @ np.array([1.0, -1.0])
    array([0.4])
    >>> log_densities(x, Gaussians(means, np.full((2, 2), 0.5))) @ np.array([1.0, -1.0])
    array([0.4])
    """
    xp, home = namespace(features), Home.of(features)
    means, variances = gaussians
    slopes = means / variances
    offsets = -0.5 * xp.sum(means * slopes, axis=1)
    densities = features @ home.bring(slopes, features.dtype).T
    if len(variances.shape) == 2:
        offsets = offsets - 0.5 * xp.sum(xp.log(variances), axis=1)
        densities += (features * features) @ home.bring(-0.5 / variances, features.dtype).T
    # Only differences between classes count; small offsets lose less in the features' precision.
    densities += home.bring(offsets - xp.mean(offsets), features.dtype)
    return densities
