"""Gaussians with one mean a class and one shared covariance, fitted to labelled samples: a linear classifier."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from zeroshift.adapt.statistics import discriminant, linear_head
from zeroshift.arrays import Array, Home
from zeroshift.methods.parts.class_groups import ClassGroups
from zeroshift.ridge import residual_precision

__all__ = ["LinearDiscriminant", "linear_discriminant"]


class LinearDiscriminant(NamedTuple):
    """What `linear_discriminant` fits, in float64."""

    weights: Array
    """(K, d): P mu_k."""
    offsets: Array
    """(K,): -log K - 1/2 mu_k^T P mu_k."""
    means: Array
    """(K, d), not normalised."""
    precision: Array
    """(d, d): P, proportional to the inverse covariance."""

    def scores(self, features: Array) -> Array:
        """x.w_k + b_k, (n, K)."""
        return discriminant(features, self.weights, self.offsets)


def linear_discriminant(features: Array, labels: np.ndarray, classes: int) -> LinearDiscriminant:
    """Fit features (n, d) with class indices (n,) on the host: means, ridge precision of the pooled residuals, head.

    A class without a sample is given the mean of the other classes' means: its Gaussian expects an average image, so
    that it is neither favoured nor ruled out by having been left out.

    >>> fit = linear_discriminant(np.array([[0.8, 0.6], [1.0, 0.0], [0.0, 1.0]]), np.array([0, 0, 1]), classes=2)
    >>> fit.means
    array([[0.9, 0.3],
           [0. , 1. ]])
    >>> int(fit.scores(np.array([[1.0, 0.0]])).argmax())
    0
    """
    home = Home.of(features)
    groups = ClassGroups(labels, classes)
    # Picked by number it is a copy, which may be written to.
    ordered = home.bring(features[home.index(groups.order)], home.xp.float64)
    means = groups.means(ordered)
    groups.subtract(ordered, means)
    precision = residual_precision(ordered)
    present = np.flatnonzero(groups.counts)
    if len(present) < classes:
        means[home.index(np.flatnonzero(groups.counts == 0))] = home.xp.mean(means[home.index(present)], axis=0)
    weights, offsets = linear_head(means, precision)
    return LinearDiscriminant(weights, offsets - math.log(classes), means, precision)
