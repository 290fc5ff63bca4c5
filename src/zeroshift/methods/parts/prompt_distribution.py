"""What Frolic takes a class's prompts for: samples of a Gaussian, whose covariance unlabelled features tell."""

from __future__ import annotations

from zeroshift.arrays import Array, Home, namespace
from zeroshift.methods.parts.rows import unit_rows

__all__ = ["mean_prompts", "moment_covariance", "pooled_variance", "prompt_logits", "shrunken_precision"]

BLOCK_ROWS = 4096


def mean_prompts(prompts: Array) -> Array:
    """Unit means (K, d) of prompts (K, P, d)."""
    return unit_rows(namespace(prompts).mean(prompts, axis=1))


def pooled_variance(features: Array, prompts: Array) -> Array:
    """Unbiased variance (d,) of every dimension over features (N, d) and prompts (K, P, d) taken together, float64.

    Images and texts lie apart, so the gap between them counts as spread.

    >>> import numpy as np
    >>> pooled_variance(np.array([[1.0, 0.0], [1.0, 0.0]]), np.array([[[0.0, 1.0]]]))
    array([0.33333333, 0.33333333])
    """
    home, xp = Home.of(features), namespace(features)
    texts = home.bring(prompts.reshape(-1, prompts.shape[2]), xp.float64)
    blocks = [slice(start, start + BLOCK_ROWS) for start in range(0, features.shape[0], BLOCK_ROWS)]
    count = features.shape[0] + texts.shape[0]
    total = xp.sum(texts, axis=0)
    for rows in blocks:
        total = total + xp.sum(home.bring(features[rows], xp.float64), axis=0)
    mean = total / count
    squares = xp.sum((texts - mean) ** 2, axis=0)
    for rows in blocks:
        squares = squares + xp.sum((home.bring(features[rows], xp.float64) - mean) ** 2, axis=0)
    return squares / (count - 1)


def shrunken_precision(variance: Array, shrinkage: float) -> Array:
    """1 / ((1 - l) v + l): variances (d,) drawn towards 1.

    >>> import numpy as np
    >>> shrunken_precision(np.array([0.0, 1.0]), 0.5)
    array([2., 1.])
    """
    return 1 / ((1 - shrinkage) * variance + shrinkage)


def prompt_logits(features: Array, means: Array, precision: Array) -> Array:
    """-1/2 (x - m_k)^T L (x - m_k), (N, K), with a diagonal precision L (d,).

    >>> import numpy as np
    >>> prompt_logits(np.array([[1.0, 0.0]]), np.eye(2), np.array([2.0, 4.0]))
    array([[ 0., -3.]])
    """
    xp = namespace(features)
    weighted = means * precision
    logits = features @ weighted.T
    logits -= 0.5 * xp.sum(weighted * means, axis=1)
    # A product with a vector, not a sum of squares: it needs no second array of the features' size.
    logits -= (0.5 * ((features**2) @ precision))[:, None]
    return logits


def moment_covariance(features: Array, means: Array, ridge: float) -> tuple[Array, float]:
    """mean x x^T - mean m m^T (d, d) of features (N, d) and class means (K, d), in float64, and what was added to it.

    Texts and images lie apart, so the difference of their second moments has negative eigenvalues. As much of the
    identity is added as lifts the smallest eigenvalue to `ridge` times the largest in size.

    >>> import numpy as np
    >>> covariance, added = moment_covariance(np.array([[1.0, 0.0]]), np.array([[0.0, 1.0]]), 1.0)
    >>> covariance, added
    (array([[3., 0.],
           [0., 1.]]), 2.0)
    """
    home, xp = Home.of(features), namespace(features)
    wide = home.bring(means, xp.float64)
    d = features.shape[1]
    second = home.zeros((d, d))
    for start in range(0, features.shape[0], BLOCK_ROWS):
        block = features[start : start + BLOCK_ROWS]
        second = second + home.bring(block.T @ block, xp.float64)
    covariance = second / features.shape[0] - wide.T @ wide / wide.shape[0]
    covariance = (covariance + covariance.T) / 2
    eigenvalues = xp.linalg.eigvalsh(covariance)
    largest = float(xp.max(xp.abs(eigenvalues)))
    # Features equal to the means have no spread at all: the identity then.
    added = max(ridge * largest - float(eigenvalues[0]), 0.0) if largest > 0 else 1.0
    return covariance + added * xp.eye(d, dtype=xp.float64, device=home.device), added
