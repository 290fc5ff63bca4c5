"""How many samples have their true class among the most probable ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from zeroshift.arrays import Array
from zeroshift.evaluate.metrics.base import Predictions, PredictionTally, Tally, class_count, flags, number_list, whole
from zeroshift.evaluate.metrics.base import share as checked_share

__all__ = [
    "MOST_CLASSES",
    "WORST_SHARE",
    "Accuracy",
    "ClassAccuracy",
    "Confusion",
    "Runs",
    "running_accuracy",
    "worst_share",
]


class Accuracy(PredictionTally):
    """Top-`top` accuracy. Of equal entries the first counts; with fewer classes than `top` every sample is right.

    >>> import numpy as np
    >>> tally = Accuracy(top=2)
    >>> tally.update(np.array([[0.5, 0.3, 0.2], [0.5, 0.3, 0.2]]), np.array([1, 2]))
    >>> tally.value
    0.5
    """

    def __init__(self, top: int = 1) -> None:
        self.top = whole("top", top, fix="top=1")
        self.n_right = 0

    @property
    def settings(self) -> dict[str, Any]:
        return {"top": self.top}

    def _count(self, said: Predictions) -> None:
        right = said.right if self.top == 1 else said.rank < self.top
        self.n_right += int(right.sum())

    def _add(self, other: Accuracy) -> None:
        self.n_right += other.n_right

    @property
    def value(self) -> float:
        """Fraction of samples, 0 to 1."""
        return self.n_right / self._some()


# Accuracy within each class, and its mean: what counts where some classes have many samples and others few.


class ClassAccuracy(PredictionTally):
    """Accuracy of each of `classes` classes (its recall).

    >>> tally = ClassAccuracy(classes=3)
    >>> tally.update(np.array([[0.9, 0.1, 0.0], [0.4, 0.6, 0.0], [0.2, 0.8, 0.0]]), np.array([0, 0, 1]))
    >>> tally.values, tally.mean
    (array([0.5, 1. , nan]), 0.75)
    """

    def __init__(self, classes: int) -> None:
        self.classes = class_count(classes)
        self.n_right = np.zeros(self.classes, np.int64)
        self.n_of_class = np.zeros(self.classes, np.int64)

    @property
    def settings(self) -> dict[str, Any]:
        return {"classes": self.classes}

    def _count(self, said: Predictions) -> None:
        self.n_of_class += np.bincount(said.labels, minlength=self.classes)
        self.n_right += np.bincount(said.labels[said.right], minlength=self.classes)

    def _add(self, other: ClassAccuracy) -> None:
        self.n_right += other.n_right
        self.n_of_class += other.n_of_class

    @property
    def values(self) -> np.ndarray:
        """(K,) fractions; NaN for a class without samples."""
        self._some()
        blank = np.full(self.classes, np.nan)
        return np.divide(self.n_right, self.n_of_class, out=blank, where=self.n_of_class > 0)

    @property
    def mean(self) -> float:
        """Over the classes that have samples, each counting the same."""
        return float(np.nanmean(self.values))


# Which classes are taken for which.


MOST_CLASSES = 25_000
"""Room for ImageNet-21k; the matrix takes 5 GB by then, and grows with the square."""


class Confusion(PredictionTally):
    """Counts (K, K) by true class (row) and predicted class (column).

    >>> tally = Confusion(classes=2)
    >>> tally.update(np.array([[0.9, 0.1], [0.4, 0.6], [0.3, 0.7]]), np.array([0, 0, 1]))
    >>> tally.counts.tolist()
    [[1, 1], [0, 1]]
    """

    def __init__(self, classes: int) -> None:
        self.classes = class_count(classes, most=MOST_CLASSES, why="every pair of classes has a count of 8 bytes")
        self.counts = np.zeros((self.classes, self.classes), np.int64)

    @property
    def settings(self) -> dict[str, Any]:
        return {"classes": self.classes}

    def _count(self, said: Predictions) -> None:
        places = said.labels * self.classes + said.predicted
        self.counts += np.bincount(places, minlength=self.classes**2).reshape(self.counts.shape)

    def _add(self, other: Confusion) -> None:
        self.counts += other.counts

    @property
    def fractions(self) -> np.ndarray:
        """(K, K) the counts as fractions of each true class; rows of classes without samples are 0."""
        self._some()
        of_class = self.counts.sum(axis=1, keepdims=True)
        return np.asarray(self.counts / np.maximum(of_class, 1))


# Accuracy over a stream as it goes by.


def running_accuracy(correct: Array, window: int | None = None) -> np.ndarray:
    """Accuracy (N,) over the stream so far, or over the last `window` samples (fewer at the start).

    >>> running_accuracy(np.array([True, False, True, True]))
    array([1.        , 0.5       , 0.66666667, 0.75      ])
    >>> running_accuracy(np.array([True, False, True, True]), window=2)
    array([1. , 0.5, 0.5, 1. ])
    """
    hits = flags("correct", correct)
    if len(hits) == 0:
        raise ValueError(
            "correct must be a vector of True and False of at least one sample; got none. "
            "Fix: correct = probabilities.argmax(axis=1) == labels."
        )
    # Sums of whole numbers, divided once: no rounding builds up, however long the stream.
    seen = np.arange(1, len(hits) + 1)
    total = np.cumsum(hits)
    if window is not None:
        window = min(whole("window", window, fix="window=100, or None for the stream so far"), len(hits))
        total[window:] = total[window:] - total[:-window]
        seen = np.minimum(seen, window)
    return np.asarray(total / seen)


# Many runs of one thing: their mean, and the worst of them.


WORST_SHARE = 0.1


def worst_share(values: Sequence[float], share: float = WORST_SHARE) -> float:
    """Mean of the lowest `share` of the values: as many whole runs as that is, and at least one.

    >>> worst_share([0.9, 0.7, 0.8])
    0.7
    >>> worst_share([0.75, 0.5, 1.0, 0.25], share=0.5)
    0.375
    """
    found = np.sort(number_list("values", values))
    if len(found) == 0:
        raise ValueError("values must hold the number of at least one run; got none. Fix: values=[0.75].")
    share = checked_share("share", share, usual=WORST_SHARE)
    taken = max(1, int(share * len(found) + 1e-9))  # 0.1 of 30 is 3, whatever the product rounds to
    return float(found[:taken].mean())


class Runs(Tally):
    """A number of each run; all are kept, there are few of them.

    >>> runs = Runs()
    >>> runs.update([0.75, 0.5])
    >>> runs.mean, runs.least, runs.greatest, runs.worst()
    (0.625, 0.5, 0.75, 0.5)
    """

    def __init__(self) -> None:
        self.values: list[float] = []

    def update(self, values: Sequence[float]) -> None:
        found = number_list("values", values).tolist()
        self.values += found
        self.n_samples += len(found)

    def _add(self, other: Runs) -> None:
        self.values += other.values

    @property
    def mean(self) -> float:
        self._some()
        return float(np.mean(self.values))

    @property
    def least(self) -> float:
        self._some()
        return min(self.values)

    @property
    def greatest(self) -> float:
        self._some()
        return max(self.values)

    def worst(self, share: float = WORST_SHARE) -> float:
        """See `worst_share`."""
        self._some()
        return worst_share(self.values, share)
