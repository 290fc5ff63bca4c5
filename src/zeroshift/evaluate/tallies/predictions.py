"""Probabilities and labels, checked once for however many tallies count them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from zeroshift.arrays import Array, check_labels, to_numpy

__all__ = ["Predictions"]

ROW_SUM_TOLERANCE = 1e-2
"""How far a row of probabilities may be from summing to 1: loose enough for half precision, too tight for scores."""


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

    @classmethod
    def of(cls, probabilities: Array, labels: Array) -> Predictions:
        """From NumPy arrays or tensors; refuses what is no matrix, or not finite, and labels that do not fit it."""
        matrix = to_numpy(probabilities)
        if matrix.ndim != 2 or 0 in matrix.shape or matrix.dtype.kind != "f":
            raise ValueError(
                "probabilities must be a floating-point matrix (N, K) with at least one row and one column; "
                f"got shape {matrix.shape} of {matrix.dtype}."
            )
        faulty = ~np.isfinite(matrix).all(axis=1)
        if faulty.any():
            raise ValueError(f"probabilities row {int(np.argmax(faulty))} holds NaN or an infinite value.")
        return cls(matrix, check_labels("labels", labels, rows=matrix.shape[0], classes=matrix.shape[1]))

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
        sums = self.matrix.sum(axis=1, dtype=np.float64)
        faulty = (self.matrix < 0).any(axis=1) | (np.abs(sums - 1) > ROW_SUM_TOLERANCE)
        if faulty.any():
            row = int(np.argmax(faulty))
            raise ValueError(
                f"probabilities row {row} sums to {sums[row]:.4g} with {self.matrix[row].min():.4g} as its smallest "
                "entry; calibration needs probabilities. Fix: pass what adapt() or predict() returned, not scores."
            )
        return self.matrix

    @cached_property
    def confidence(self) -> np.ndarray:
        """(n,) the largest probability, in float64."""
        return np.asarray(self.probabilities.max(axis=1), np.float64)

    @cached_property
    def at_label(self) -> np.ndarray:
        """(n,) the probability of the true class, in float64."""
        return np.take_along_axis(self.probabilities, self.labels[:, None], axis=1)[:, 0].astype(np.float64)
