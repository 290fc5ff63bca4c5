"""The empirical-Bayes ridge precision d (S + tr I)^-1 that ADAPT, GDA-CLIP, TIMO and OGA share."""

from __future__ import annotations

from zeroshift.arrays import Array, Home, namespace

__all__ = ["ZERO_TRACE", "residual_precision", "ridge_precision"]

ZERO_TRACE = 1e-24
"""A mean squared deviation up to this is rounding noise of unit vectors, not spread: the covariance counts as zero."""


def ridge_precision(scatter: Array, trace: float) -> Array:
    """d (S + trace I)^-1 of a scatter matrix S (d, d); `trace` is that of the covariance, and must be above 0.

    >>> import numpy as np
    >>> ridge_precision(np.diag([3.0, 1.0]), 1.0)
    array([[0.5, 0. ],
           [0. , 1. ]])
    """
    xp = namespace(scatter)
    d = scatter.shape[-1]
    return d * xp.linalg.inv(scatter + trace * xp.eye(d, dtype=scatter.dtype, device=Home.of(scatter).device))


def residual_precision(residuals: Array) -> Array:
    """d pinv((n - 1) M + tr(M) I), M the unbiased covariance of the rows (n, d); zero where they do not vary.

    >>> import numpy as np
    >>> residual_precision(np.array([[0.1, 0.0], [-0.1, 0.0], [0.0, 0.2], [0.0, -0.2]])).round(4)
    array([[37.5   , 0.    ],
           [ 0.    , 17.6471]])
    """
    xp = namespace(residuals)
    n = residuals.shape[0]
    centred = residuals - xp.mean(residuals, axis=0)
    scatter = centred.T @ centred
    trace = float(xp.linalg.trace(scatter)) / max(n - 1, 1)
    # The pseudo-inverse of this matrix is its inverse unless there is no spread, and then it is zero.
    return ridge_precision(scatter, trace) if trace > ZERO_TRACE else xp.zeros_like(scatter)
