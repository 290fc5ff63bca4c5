"""The Brier score of several classes."""

from __future__ import annotations

from typing import Any

import numpy as np

from zeroshift.evaluate.metrics.base import Predictions, PredictionTally, whole

__all__ = ["BINS", "LEAST_PROBABILITY", "MOST_BINS", "Brier", "Calibration", "LogLoss"]


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


# Confidence against accuracy, in bins of confidence.


BINS = 15
"""The field's usual number of bins."""

MOST_BINS = 100_000
"""Finer bins hold a sample or none: they would measure memory, not calibration."""


class Calibration(PredictionTally):
    """Samples in equal-width bins of their largest probability; bin b of B holds those in ((b - 1) / B, b / B].

    >>> tally = Calibration()
    >>> tally.update(np.array([[0.8, 0.2], [0.8, 0.2]]), np.array([0, 1]))
    >>> round(tally.error, 6)
    0.3
    """

    def __init__(self, bins: int = BINS) -> None:
        self.bins = whole(
            "bins", bins, fix=f"bins={BINS}", most=MOST_BINS, why="finer bins would hold a sample or none"
        )
        self.counts = np.zeros(self.bins, np.int64)
        """(B,) samples in each bin."""
        self.n_right = np.zeros(self.bins, np.int64)
        self.confidence_sums = np.zeros(self.bins)

    @property
    def settings(self) -> dict[str, Any]:
        return {"bins": self.bins}

    def _count(self, said: Predictions) -> None:
        # `right=True` closes each bin above; clipping keeps a confidence that rounding put past 1 in the last bin.
        edges = np.linspace(0.0, 1.0, self.bins + 1)
        place = np.clip(np.digitize(said.confidence, edges, right=True) - 1, 0, self.bins - 1)
        self.counts += np.bincount(place, minlength=self.bins)
        self.n_right += np.bincount(place[said.right], minlength=self.bins)
        self.confidence_sums += np.bincount(place, weights=said.confidence, minlength=self.bins)

    def _add(self, other: Calibration) -> None:
        self.counts += other.counts
        self.n_right += other.n_right
        self.confidence_sums += other.confidence_sums

    @property
    def error(self) -> float:
        """Expected calibration error: the mean gap of confidence and accuracy, each bin with its share of samples."""
        # Share of samples x |mean accuracy - mean confidence| is |sum of differences| / N: no division by an empty bin.
        return float(np.abs(self.n_right - self.confidence_sums).sum() / self._some())

    @property
    def reliability(self) -> dict[str, list[float]]:
        """`count`, mean `confidence` and `accuracy` of every bin that holds samples, from the least sure on."""
        self._some()
        held = self.counts > 0
        counts = self.counts[held]
        return {
            "count": counts.tolist(),
            "confidence": (self.confidence_sums[held] / counts).tolist(),
            "accuracy": (self.n_right[held] / counts).tolist(),
        }


# The negative log-likelihood of the true classes.


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
