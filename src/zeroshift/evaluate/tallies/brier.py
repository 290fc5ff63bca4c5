"""The Brier score of several classes."""

from __future__ import annotations

import numpy as np

from zeroshift.evaluate.tallies.base import PredictionTally
from zeroshift.evaluate.tallies.predictions import Predictions

__all__ = ["Brier"]


class Brier(PredictionTally):
    """Mean over the samples of the sum over the classes of (probability - 1 for the true class, or 0)^2.

    This is Brier's own, multi-class definition, from 0 to 2; for two classes it is twice what is often meant, the
    squared difference of one class alone.

    >>> tally = Brier()
    >>> tally.update(np.array([[0.5, 0.5], [0.0, 1.0]]), np.array([0, 0]))
    >>> tally.value
    1.25
    """

    def __init__(self) -> None:
        self.total = 0.0

    def _count(self, said: Predictions) -> None:
        # sum_k p_k^2 - 2 p_true + 1: no matrix of ones and zeros is made.
        squares = np.einsum("nk,nk->n", said.probabilities, said.probabilities, dtype=np.float64)
        self.total += float(np.maximum(squares - 2 * said.at_label + 1, 0).sum())

    def _add(self, other: Brier) -> None:
        self.total += other.total

    @property
    def value(self) -> float:
        return self.total / self._some()
