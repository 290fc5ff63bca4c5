"""Accuracy within each class, and its mean: what counts where some classes have many samples and others few."""

from __future__ import annotations

from typing import Any

import numpy as np

from zeroshift.evaluate.tallies.base import PredictionTally
from zeroshift.evaluate.tallies.checks import class_count
from zeroshift.evaluate.tallies.predictions import Predictions

__all__ = ["ClassAccuracy"]


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
