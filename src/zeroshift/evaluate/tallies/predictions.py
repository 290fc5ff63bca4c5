"""Probabilities and labels, checked once for however many tallies count them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from zeroshift.arrays import Array
from zeroshift.evaluate.tallies.checks import class_labels, probability_rows, score_rows

__all__ = ["Predictions"]


@dataclass(frozen=True)
class Predictions:
    """What a method said of some samples, and what they are.

    >>> said = Predictions.of(np.array([[0.9, 0.1], [0.4, 0.6]]), np.array([0, 0]))
    >>> said.predicted.tolist(), said.right.tolist(), said.rank.tolist()
    ([0, 1], [True, False], [0, 1])
    """

    matrix: np.ndarray
    """(n, K) probabilities, or scores where only their order counts."""
    labels: np.ndarray
    """(n,) true classes."""
    name: str = "probabilities"
    """What the caller calls the matrix, for messages."""

    @classmethod
    def of(cls, probabilities: Array, labels: Array, *, name: str = "probabilities") -> Predictions:
        """From NumPy arrays or tensors; refuses what is no matrix, or not finite, and labels that do not fit it."""
        matrix = score_rows(name, probabilities)
        return cls(matrix, class_labels(labels, matrix, name), name)

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def classes(self) -> int:
        return int(self.matrix.shape[1])

    @cached_property
    def predicted(self) -> np.ndarray:
        """(n,) the class of the largest entry, of equal ones the first."""
        return np.argmax(self.matrix, axis=1)

    @cached_property
    def right(self) -> np.ndarray:
        """(n,) whether that is the label."""
        return self.predicted == self.labels

    @cached_property
    def rank(self) -> np.ndarray:
        """(n,) how many classes come before the true one: those with a larger entry, and the first of equal ones."""
        own = np.take_along_axis(self.matrix, self.labels[:, None], axis=1)
        earlier = np.arange(self.classes) < self.labels[:, None]
        return np.count_nonzero((self.matrix > own) | ((self.matrix == own) & earlier), axis=1)

    @cached_property
    def probabilities(self) -> np.ndarray:
        """The matrix, once its rows are known to be probabilities."""
        return probability_rows(self.name, self.matrix)

    @cached_property
    def confidence(self) -> np.ndarray:
        """(n,) the largest probability, in float64."""
        return np.asarray(self.probabilities.max(axis=1), np.float64)

    @cached_property
    def at_label(self) -> np.ndarray:
        """(n,) the probability of the true class, in float64."""
        return np.take_along_axis(self.probabilities, self.labels[:, None], axis=1)[:, 0].astype(np.float64)
