"""Accuracy: top-k, per class, confusion counts, along a stream, and the worst of several runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from zeroshift.arrays import Array
from zeroshift.evaluate.metrics.base import (
    PredictionMetric,
    Predictions,
    checked_class_count,
    checked_flags,
    checked_fraction,
    checked_numbers,
    positive_integer,
)

__all__ = [
    "MOST_CLASSES",
    "WORST_SHARE",
    "Accuracy",
    "ClassAccuracy",
    "ConfusionMatrix",
    "running_accuracy",
    "worst_share",
]


class Accuracy(PredictionMetric):
    """Top-`top` accuracy. Ties go to the lower class index; with at most `top` classes every sample is correct.

    >>> import numpy as np
    >>> metric = Accuracy(top=2)
    >>> metric.update(np.array([[0.5, 0.3, 0.2], [0.5, 0.3, 0.2]]), np.array([1, 2]))
    >>> metric.value
    0.5
    """

    def __init__(self, top: int = 1) -> None:
        self.top = positive_integer("top", top, fix="top=1")
        self.n_right = 0

    @property
    def settings(self) -> dict[str, Any]:
        return {"top": self.top}

    def _add_predictions(self, predictions: Predictions) -> None:
        right = predictions.right if self.top == 1 else predictions.rank < self.top
        self.n_right += int(right.sum())

    def _merge_counts(self, other: Accuracy) -> None:
        self.n_right += other.n_right

    @property
    def value(self) -> float:
        """Fraction of samples, 0 to 1."""
        return self.n_right / self._require_samples()


class ClassAccuracy(PredictionMetric):
    """Accuracy of each of `classes` classes (its recall).

    >>> metric = ClassAccuracy(classes=3)
    >>> metric.update(np.array([[0.9, 0.1, 0.0], [0.4, 0.6, 0.0], [0.2, 0.8, 0.0]]), np.array([0, 0, 1]))
    >>> metric.values, metric.mean
    (array([0.5, 1. , nan]), 0.75)
    """

    def __init__(self, classes: int) -> None:
        self.classes = checked_class_count(classes)
        self.n_right = np.zeros(self.classes, np.int64)
        self.n_of_class = np.zeros(self.classes, np.int64)

    @property
    def settings(self) -> dict[str, Any]:
        return {"classes": self.classes}

    def _add_predictions(self, predictions: Predictions) -> None:
        self.n_of_class += np.bincount(predictions.labels, minlength=self.classes)
        self.n_right += np.bincount(predictions.labels[predictions.right], minlength=self.classes)

    def _merge_counts(self, other: ClassAccuracy) -> None:
        self.n_right += other.n_right
        self.n_of_class += other.n_of_class

    @property
    def values(self) -> np.ndarray:
        """(K,) fractions; NaN for a class without samples."""
        self._require_samples()
        blank = np.full(self.classes, np.nan)
        return np.divide(self.n_right, self.n_of_class, out=blank, where=self.n_of_class > 0)

    @property
    def mean(self) -> float:
        """Mean over the classes that have samples, all weighted equally."""
        return float(np.nanmean(self.values))


MOST_CLASSES = 25_000
"""Enough for ImageNet-21k, where the matrix takes 5 GB; memory grows with the square of the number of classes."""


class ConfusionMatrix(PredictionMetric):
    """Confusion counts (K, K): true class in rows, predicted class in columns.

    >>> metric = ConfusionMatrix(classes=2)
    >>> metric.update(np.array([[0.9, 0.1], [0.4, 0.6], [0.3, 0.7]]), np.array([0, 0, 1]))
    >>> metric.counts.tolist()
    [[1, 1], [0, 1]]
    """

    def __init__(self, classes: int) -> None:
        self.classes = checked_class_count(
            classes, most=MOST_CLASSES, why="every pair of classes has a count of 8 bytes"
        )
        self.counts = np.zeros((self.classes, self.classes), np.int64)

    @property
    def settings(self) -> dict[str, Any]:
        return {"classes": self.classes}

    def _add_predictions(self, predictions: Predictions) -> None:
        places = predictions.labels * self.classes + predictions.predicted
        self.counts += np.bincount(places, minlength=self.classes**2).reshape(self.counts.shape)

    def _merge_counts(self, other: ConfusionMatrix) -> None:
        self.counts += other.counts

    @property
    def fractions(self) -> np.ndarray:
        """(K, K) counts divided by the size of the true class; rows of classes without samples are 0."""
        self._require_samples()
        of_class = self.counts.sum(axis=1, keepdims=True)
        return np.asarray(self.counts / np.maximum(of_class, 1))


def running_accuracy(correct: Array, window: int | None = None) -> np.ndarray:
    """Accuracy (N,) over the stream so far, or over the last `window` samples (fewer at the start).

    >>> running_accuracy(np.array([True, False, True, True]))
    array([1.        , 0.5       , 0.66666667, 0.75      ])
    >>> running_accuracy(np.array([True, False, True, True]), window=2)
    array([1. , 0.5, 0.5, 1. ])
    """
    hits = checked_flags("correct", correct)
    if len(hits) == 0:
        raise ValueError(
            "correct must be a vector of True and False of at least one sample; got none. "
            "Fix: correct = probabilities.argmax(axis=1) == labels."
        )
    # Integer sums, divided once, so that rounding errors do not accumulate.
    seen = np.arange(1, len(hits) + 1)
    total = np.cumsum(hits)
    if window is not None:
        window = min(positive_integer("window", window, fix="window=100, or None for the stream so far"), len(hits))
        total[window:] = total[window:] - total[:-window]
        seen = np.minimum(seen, window)
    return np.asarray(total / seen)


WORST_SHARE = 0.1


def worst_share(values: Sequence[float], share: float = WORST_SHARE) -> float:
    """Mean of the lowest `share` of the values, rounded down to whole runs, at least one.

    >>> worst_share([0.9, 0.7, 0.8])
    0.7
    >>> worst_share([0.75, 0.5, 1.0, 0.25], share=0.5)
    0.375
    """
    found = np.sort(checked_numbers("values", values))
    if len(found) == 0:
        raise ValueError("values must hold the number of at least one run; got none. Fix: values=[0.75].")
    share = checked_fraction("share", share, usual=WORST_SHARE)
    taken = max(1, int(share * len(found) + 1e-9))  # 1e-9: 0.1 * 30 must be 3 despite rounding
    return float(found[:taken].mean())
