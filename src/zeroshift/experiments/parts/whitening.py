"""Samples brought to mean 0 and covariance I: where tests of multivariate normality begin."""

from __future__ import annotations

import numpy as np

__all__ = ["whitened"]

FLAT = 1e-10
"""A direction whose variance is so small a share of the largest has none: the covariance is singular."""


def whitened(samples: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """S^(-1/2) (x - mean) of every set of samples (R, n, d), with S's divisor n and its symmetric root.

    Also whether S can be inverted (R,); where it cannot, the answer holds zeros.

    >>> z, regular = whitened(np.random.default_rng(0).normal(3.0, 2.0, (1, 50, 2)))
    >>> np.allclose(z[0].T @ z[0] / 50, np.eye(2)), regular
    (True, array([ True]))
    """
    centred = samples - samples.mean(axis=1, keepdims=True)
    covariances = np.matmul(centred.transpose(0, 2, 1), centred) / samples.shape[1]
    values, vectors = np.linalg.eigh(covariances)
    regular = values[:, 0] > FLAT * values[:, -1]
    safe = np.where(regular[:, None], values, 1.0)
    roots = np.matmul(vectors / np.sqrt(safe)[:, None, :], vectors.transpose(0, 2, 1))
    return np.matmul(centred, roots) * regular[:, None, None], regular
