"""The negative log-likelihood of the true classes."""

from __future__ import annotations

import numpy as np

from zeroshift.evaluate.tallies.base import PredictionTally
from zeroshift.evaluate.tallies.predictions import Predictions

__all__ = ["LEAST_PROBABILITY", "LogLoss"]

LEAST_PROBABILITY = 1e-15
"""Probabilities of the true class below this count as this: a method that is certain and wrong loses 34.5 nats for it,
not infinitely many, and as many in float32, where small probabilities become 0, as in float64."""


class LogLoss(PredictionTally):
    """Mean of -log p(true class), in nats.

    >>> tally = LogLoss()
    >>> tally.update(np.array([[0.5, 0.5], [0.0, 1.0]]), np.array([0, 1]))
    >>> round(tally.value, 6)  # half of log 2
    0.346574
    """

    def __init__(self) -> None:
        self.total = 0.0

    def _count(self, said: Predictions) -> None:
        self.total -= float(np.log(np.clip(said.at_label, LEAST_PROBABILITY, 1.0)).sum())

    def _add(self, other: LogLoss) -> None:
        self.total += other.total

    @property
    def value(self) -> float:
        return abs(self.total) / self._some()  # -0.0 reads as an error
