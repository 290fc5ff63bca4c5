"""How many samples have their true class among the most probable ones."""

from __future__ import annotations

from typing import Any

from zeroshift.evaluate.tallies.base import PredictionTally
from zeroshift.evaluate.tallies.checks import whole
from zeroshift.evaluate.tallies.predictions import Predictions

__all__ = ["Accuracy"]


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
