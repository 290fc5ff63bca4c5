"""The Henze-Zirkler test of multivariate normality, of many sets of samples at once.

Its statistic is a weighted distance between the empirical characteristic function of the whitened samples and the
standard normal's; of a normal sample it is nearly log-normal, with a mean and a variance known in closed form.
N. Henze and B. Zirkler, *A class of invariant consistent tests for multivariate normality*, 1990.
"""

from __future__ import annotations

import numpy as np

from zeroshift.experiments.parts.whitening import whitened

__all__ = ["henze_zirkler", "null_moments", "smoothing"]

PAIRS_AT_ONCE = 2_000_000
"""Distances between two samples held at once: 16 MB."""


def smoothing(n: int, d: int) -> float:
    """The authors' beta: how wide a kernel compares the samples.

    >>> round(smoothing(n=100, d=2), 4)
    1.5811
    """
    return float(((2 * d + 1) * n / 4) ** (1 / (d + 4)) / np.sqrt(2))


def null_moments(n: int, d: int) -> tuple[float, float]:
    """Mean and variance of the statistic where the samples are normal, in the limit of many."""
    square = smoothing(n, d) ** 2
    a = 1 + 2 * square
    w = (1 + square) * (1 + 3 * square)
    pairs = d * (d + 2)
    mean = 1 - a ** (-d / 2) * (1 + d * square / a + pairs * square**2 / (2 * a**2))
    variance = 2 * (1 + 4 * square) ** (-d / 2)
    variance += 2 * a**-d * (1 + 2 * d * square**2 / a**2 + 3 * pairs * square**4 / (4 * a**4))
    variance -= 4 * w ** (-d / 2) * (1 + 3 * d * square**2 / (2 * w) + pairs * square**4 / (2 * w**2))
    return float(mean), float(variance)


def henze_zirkler(samples: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Statistics (R,) and p-values (R,) of R sets of n samples in d dimensions (R, n, d).

    Samples whose covariance cannot be inverted have the statistic 4 n, as the authors set it, and are rejected.

    >>> draws = np.random.default_rng(0)
    >>> normal, skewed = draws.normal(size=(1, 200, 2)), draws.exponential(size=(1, 200, 2))
    >>> bool(henze_zirkler(normal)[1][0] > 0.05), bool(henze_zirkler(skewed)[1][0] < 1e-6)
    (True, True)
    """
    from scipy.special import ndtr

    _, n, d = samples.shape
    white, regular = whitened(samples)
    at_once = max(1, PAIRS_AT_ONCE // n**2)
    blocks = [_statistics(white[start : start + at_once]) for start in range(0, len(white), at_once)]
    statistics = np.where(regular, np.concatenate(blocks), 4.0 * n)
    mean, variance = null_moments(n, d)
    log_variance = np.log1p(variance / mean**2)
    log_mean = np.log(mean) - log_variance / 2
    return statistics, ndtr((log_mean - np.log(statistics)) / np.sqrt(log_variance))


def _statistics(white: np.ndarray) -> np.ndarray:
    _, n, d = white.shape
    square = smoothing(n, d) ** 2
    lengths = np.sum(white**2, axis=2)
    distances = np.matmul(white, white.transpose(0, 2, 1))
    distances *= square
    distances -= 0.5 * square * lengths[:, :, None]
    distances -= 0.5 * square * lengths[:, None, :]
    pairs = np.exp(distances, out=distances).sum(axis=(1, 2)) / n
    singles = np.exp(-0.5 * square / (1 + square) * lengths).sum(axis=1)
    return np.asarray(pairs - 2 * (1 + square) ** (-d / 2) * singles + n * (1 + 2 * square) ** (-d / 2))
