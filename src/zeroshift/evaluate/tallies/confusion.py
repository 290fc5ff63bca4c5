"""Which classes are taken for which."""

from __future__ import annotations

from typing import Any

import numpy as np

from zeroshift.evaluate.tallies.base import PredictionTally
from zeroshift.evaluate.tallies.checks import class_count
from zeroshift.evaluate.tallies.predictions import Predictions

__all__ = ["MOST_CLASSES", "Confusion"]

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
