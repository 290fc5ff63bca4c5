"""Shapiro and Wilk's W for many samples at once, and its generalisation to several dimensions.

Of the extensions there are we take that of J. A. Villasenor Alva and E. Gonzalez Estrada, *A generalization of
Shapiro-Wilk's test for multivariate normality*, 2009: W of each whitened coordinate, averaged. It is fully specified,
has a closed form for its p-value, and unlike Royston's H guesses no correlation between the coordinates' tests.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from zeroshift.experiments.parts.whitening import whitened

__all__ = ["FEWEST", "generalised_shapiro_wilk", "shapiro_w"]

FEWEST = 12
"""Samples below which the distribution of W is not the one Royston describes."""

LAST_WEIGHT = (0.0, 0.221157, -0.147981, -2.071190, 4.434685, -2.706056)
BUT_LAST_WEIGHT = (0.0, 0.042981, -0.293762, -1.752461, 5.682633, -3.582633)
"""Corrections to the two largest weights, in powers of n^(-1/2): Royston, 1995 (AS R94)."""

LOG_MEAN = (-1.5861, -0.31082, -0.083751, 0.0038915)
LOG_DEVIATION = (-0.4803, -0.082676, 0.0030302)
"""Mean of log(1 - W), and logarithm of its standard deviation, in powers of log n: the same, for 12 <= n <= 5000."""


def shapiro_w(samples: np.ndarray) -> np.ndarray:
    """W of every sample along the last axis (..., n), n of at least 6; not a number where all values are equal.

    >>> shapiro_w(np.arange(20.0)).round(4).tolist()
    0.9604
    """
    ordered = np.sort(samples, axis=-1)
    centred = ordered - ordered.mean(axis=-1, keepdims=True)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(np.sum(centred * _weights(samples.shape[-1]), axis=-1) ** 2 / np.sum(centred**2, axis=-1))


def generalised_shapiro_wilk(samples: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """W* (R,) and p-values (R,) of R sets of n samples in d dimensions (R, n, d), n of at least 12.

    Samples whose covariance cannot be inverted are no sample of a normal density: W* = 0, rejected.

    >>> draws = np.random.default_rng(0)
    >>> normal, skewed = draws.normal(size=(1, 200, 2)), draws.exponential(size=(1, 200, 2))
    >>> bool(generalised_shapiro_wilk(normal)[1][0] > 0.05), bool(generalised_shapiro_wilk(skewed)[1][0] < 1e-6)
    (True, True)
    """
    from scipy.special import ndtr

    _, n, d = samples.shape
    white, regular = whitened(samples)
    averages = np.where(regular, shapiro_w(white.transpose(0, 2, 1)).mean(axis=1), 0.0)
    mean, variance = _log_one_minus_w(n)
    # The mean of d independent log-normals, taken as the log-normal of the same mean and variance.
    shared = np.log1p(np.expm1(variance) / d)
    return averages, ndtr((mean + (variance - shared) / 2 - np.log1p(-averages)) / np.sqrt(shared))


def _weights(n: int) -> np.ndarray:
    """Royston's weights of the ordered samples."""
    from scipy.special import ndtri

    expected = ndtri((np.arange(1, n + 1) - 0.375) / (n + 0.25))
    length = float(np.sum(expected**2))
    last = expected[-1] / np.sqrt(length) + _power_series(LAST_WEIGHT, n**-0.5)
    but_last = expected[-2] / np.sqrt(length) + _power_series(BUT_LAST_WEIGHT, n**-0.5)
    left = (length - 2 * expected[-1] ** 2 - 2 * expected[-2] ** 2) / (1 - 2 * last**2 - 2 * but_last**2)
    weights = np.asarray(expected / np.sqrt(left))
    weights[[-1, -2, 1, 0]] = last, but_last, -but_last, -last
    return weights


def _log_one_minus_w(n: int) -> tuple[float, float]:
    """Mean and variance of log(1 - W) of n normal samples."""
    log_n = float(np.log(n))
    return _power_series(LOG_MEAN, log_n), float(np.exp(2 * _power_series(LOG_DEVIATION, log_n)))


def _power_series(coefficients: Sequence[float], x: float) -> float:
    return float(sum(c * x**power for power, c in enumerate(coefficients)))
