"""The space pictures and names meet in: what the classifier's weights say of it, without a single picture."""

from __future__ import annotations

import numpy as np
from scipy.special import ndtr

from zeroshift.arrays import normalize

__all__ = ["DIMENSION", "class_directions", "principal_axes", "source_mean"]

DIMENSION = 256
"""Principal axes kept, of the 1280 dimensions of the pooled features; as in the bundled packs."""

RELU6_TOP = 6.0

AXIS_SIGNS = "c3400c085555f8aa6fd43c6637675bd131f721b46241e27bebfbba22c4053b0b"
"""A bit an axis, the first axis first: 1 where its entry of largest magnitude is positive.

A principal axis has no sign of its own. In the run that made the bundled packs it was whatever LAPACK gave; these bits
are read off the packs, so that what is encoded now can be compared with what is in them. (`views_cifar10c_fog_5` is
from another run, in which axis 235 came out the other way round.)
"""


def class_directions(weights: np.ndarray) -> np.ndarray:
    """(C, p): the classifier's weights less their mean, each scaled to unit length.

    >>> class_directions(np.array([[3.0, 4.0], [-3.0, -4.0]]))
    array([[ 0.6,  0.8], [-0.6, -0.8]])
    """
    wide = weights.astype(np.float64)
    return np.asarray(normalize(wide - wide.mean(axis=0)))


def principal_axes(directions: np.ndarray) -> np.ndarray:
    """(256, p) orthonormal rows: along the first the directions differ most, and so on. In float64, because the
    closest two of the spectrum are a ten-thousandth apart."""
    _, vectors = np.linalg.eigh(directions.T @ directions)
    axes = vectors[:, ::-1][:, :DIMENSION].T
    largest = np.abs(axes).argmax(axis=1)
    positive = axes[np.arange(DIMENSION), largest] > 0
    wanted = np.unpackbits(np.frombuffer(bytes.fromhex(AXIS_SIGNS), np.uint8)).astype(bool)
    return np.where((positive == wanted)[:, None], axes, -axes)


def source_mean(gamma: np.ndarray, beta: np.ndarray) -> np.ndarray:
    """Mean of the pooled features over the data the network was trained on, which nobody needs to have.

    The last BatchNorm leaves each channel with mean beta and standard deviation |gamma|; taken as normal, and through
    the ReLU6 behind it, the mean is the integral of P(channel > u) for u from 0 to 6.

    >>> source_mean(np.array([1.0, 1e-9]), np.array([0.0, 2.0])).round(4)  # half a normal; no spread at all
    array([0.3989, 2.    ])
    """
    spread = np.abs(gamma.astype(np.float64))
    middle = beta.astype(np.float64)
    return np.asarray(spread * (_mean_above_zero(middle / spread) - _mean_above_zero((middle - RELU6_TOP) / spread)))


def _mean_above_zero(mean: np.ndarray) -> np.ndarray:
    """E[max(0, z)] of a normal z with this mean and variance 1."""
    return np.asarray(mean * ndtr(mean) + np.exp(-(mean**2) / 2) / np.sqrt(2 * np.pi))
