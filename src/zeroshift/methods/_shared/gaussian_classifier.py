"""Gaussians with one mean per class and one shared covariance, fitted to labelled samples: a linear classifier."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from zeroshift.adapt.statistics import discriminant, linear_head
from zeroshift.arrays import Array, Backend
from zeroshift.linalg import residual_precision

__all__ = ["ClassGroups", "LinearDiscriminant", "linear_discriminant"]


class ClassBlock(NamedTuple):
    """Consecutive rows: the first sample of each of these classes, then the second of each, and so on."""

    rows: slice
    classes: np.ndarray
    shots: int


class ClassGroups:
    """Sums and means of labelled samples per class, with the samples in an `order` that makes them sums along an axis.

    Classes with the same number of samples form a block, sorted by shot. A product with one-hot labels would cost K
    times as much, and not every array library can add row by row. Inputs and outputs are in this `order`. The sum of
    a class without samples is zero.

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
        self._blocks: list[ClassBlock] = []
        start = 0
        for shots in np.unique(self.counts[self.counts > 0]).tolist():
            members = np.flatnonzero(self.counts == shots)
            self._blocks.append(ClassBlock(slice(start, start + shots * len(members)), members, shots))
            start += shots * len(members)

    def sums(self, values: Array) -> Array:
        """Sums (K, m) per class of the rows of values (n, m)."""
        backend = Backend.of(values)
        sums = backend.zeros((len(self.counts), values.shape[1]), values.dtype)
        for block in self._blocks:
            shots = values[block.rows].reshape(block.shots, len(block.classes), -1)
            sums[backend.index(block.classes)] = backend.xp.sum(shots, axis=0)
        return sums

    def means(self, values: Array) -> Array:
        """Means (K, m) per class of the rows of values (n, m)."""
        backend = Backend.of(values)
        counts = backend.xp.asarray(np.maximum(self.counts, 1), dtype=values.dtype, device=backend.device)
        return self.sums(values) / counts[:, None]

    def subtract(self, values: Array, means: Array) -> None:
        """Subtract the class mean, a row of (K, m), from each row of values (n, m), in place to save memory."""
        backend = Backend.of(values)
        for block in self._blocks:
            shots = values[block.rows].reshape(block.shots, len(block.classes), -1)  # a view
            shots -= means[backend.index(block.classes)]


class LinearDiscriminant(NamedTuple):
    """A fitted classifier, in float64."""

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
    """Fit means, ridge precision of the pooled residuals and linear head to features (n, d) with class indices (n,).

    The labels are a NumPy array. A class without samples gets the mean of the other classes' means, so that it is
    neither favoured nor excluded.

    >>> fit = linear_discriminant(np.array([[0.8, 0.6], [1.0, 0.0], [0.0, 1.0]]), np.array([0, 0, 1]), classes=2)
    >>> fit.means
    array([[0.9, 0.3],
           [0. , 1. ]])
    >>> int(fit.scores(np.array([[1.0, 0.0]])).argmax())
    0
    """
    backend = Backend.of(features)
    groups = ClassGroups(labels, classes)
    # Indexing by number makes a copy, so it can be changed in place.
    ordered = backend.asarray(features[backend.index(groups.order)], backend.xp.float64)
    means = groups.means(ordered)
    groups.subtract(ordered, means)
    precision = residual_precision(ordered)
    present = np.flatnonzero(groups.counts)
    if len(present) < classes:
        means[backend.index(np.flatnonzero(groups.counts == 0))] = backend.xp.mean(
            means[backend.index(present)], axis=0
        )
    weights, offsets = linear_head(means, precision)
    return LinearDiscriminant(weights, offsets - math.log(classes), means, precision)
