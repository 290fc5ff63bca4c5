"""Gaussians with one mean per class and one shared covariance, fitted to labelled samples: a linear classifier."""

from __future__ import annotations

import math

import numpy as np

from zeroshift.adapt.statistics import Gaussians, linear_head
from zeroshift.arrays import Array, Backend
from zeroshift.linalg import residual_precision
from zeroshift.methods._shared.similarity import unit_rows


def class_means(features: Array, labels: np.ndarray, classes: int, *, unit: bool = False) -> Array:
    """Mean feature (K, d) of every class; a class without samples gets the mean of the others. With `unit`, means are
    scaled to unit length.

    >>> class_means(np.array([[0.8, 0.6], [1.0, 0.0], [0.0, 1.0]]), np.array([0, 0, 2]), classes=3)
    array([[0.9 , 0.3 ],
           [0.45, 0.65],
           [0.  , 1.  ]])
    """
    backend = Backend.of(features)
    xp, scaled = backend.xp, unit_rows if unit else lambda rows: rows
    present = np.unique(labels)
    members = [backend.index(np.flatnonzero(labels == k)) for k in present]
    found = scaled(xp.stack([xp.mean(features[rows], axis=0) for rows in members]))
    means = backend.zeros((classes, features.shape[1])) + xp.mean(found, axis=0)
    means[backend.index(present)] = found
    return scaled(means)


def fit_gaussians(features: Array, labels: np.ndarray, classes: int) -> Gaussians:
    """Gaussians with equal priors, fitted to float64 features (n, d) with class indices (n,).

    >>> fit = fit_gaussians(np.array([[0.8, 0.6], [1.0, 0.0], [0.0, 1.0]]), np.array([0, 0, 1]), classes=2)
    >>> fit.means
    array([[0.9, 0.3],
           [0. , 1. ]])
    """
    means = class_means(features, labels, classes)
    precision = residual_precision(features - means[Backend.of(features).index(labels)])
    directions, offsets = linear_head(means, precision)
    return Gaussians(means, precision, directions, offsets - math.log(classes))
