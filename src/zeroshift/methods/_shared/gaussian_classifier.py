"""Gaussians with one mean a class and one shared covariance, fitted to labelled samples: a linear classifier."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from zeroshift.adapt.statistics import discriminant, linear_head
from zeroshift.arrays import Array, Home
from zeroshift.linalg import residual_precision

__all__ = ["ClassGroups", "LinearDiscriminant", "linear_discriminant"]


# Labelled samples in an order in which the sums over each class are sums along an axis.


class Run(NamedTuple):
    """Neighbouring rows: the first sample of each of these classes, then the second of each, and so on."""

    rows: slice
    classes: np.ndarray
    shots: int


class ClassGroups:
    """Classes with equally many samples stand together, shot after shot: a product with one-hot labels would cost K
    times as much as the sums, and adding row by row cannot be done in every array library.

    Everything is given and returned in the `order` of the samples found here; a class without any sums to zero.

    >>> groups = ClassGroups(np.array([1, 0, 1]), classes=3)
    >>> groups.order
    array([1, 0, 2])
    >>> groups.sums(np.array([[1.0], [2.0], [3.0]])[groups.order])
    array([[2.],
           [4.],
           [0.]])
    """

    def __init__(self, labels: np.ndarray, classes: int) -> None:
        self.counts = np.bincount(labels, minlength=classes)
        by_class = np.argsort(labels, kind="stable")
        shot = np.empty_like(by_class)
        shot[by_class] = np.arange(len(labels)) - np.repeat(np.cumsum(self.counts) - self.counts, self.counts)
        self.order = np.lexsort((labels, shot, self.counts[labels]))
        self._runs: list[Run] = []
        start = 0
        for shots in np.unique(self.counts[self.counts > 0]).tolist():
            members = np.flatnonzero(self.counts == shots)
            self._runs.append(Run(slice(start, start + shots * len(members)), members, shots))
            start += shots * len(members)

    def sums(self, values: Array) -> Array:
        """The sum (K, m) of each class's rows of (n, m)."""
        home = Home.of(values)
        sums = home.zeros((len(self.counts), values.shape[1]), values.dtype)
        for run in self._runs:
            shots = values[run.rows].reshape(run.shots, len(run.classes), -1)
            sums[home.index(run.classes)] = home.xp.sum(shots, axis=0)
        return sums

    def means(self, values: Array) -> Array:
        """The mean (K, m) of each class's rows of (n, m)."""
        home = Home.of(values)
        counts = home.xp.asarray(np.maximum(self.counts, 1), dtype=values.dtype, device=home.device)
        return self.sums(values) / counts[:, None]

    def subtract(self, values: Array, means: Array) -> None:
        """Take its class's row of (K, m) from each row of (n, m), in place: support sets can be large."""
        home = Home.of(values)
        for run in self._runs:
            shots = values[run.rows].reshape(run.shots, len(run.classes), -1)  # a view
            shots -= means[home.index(run.classes)]


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
