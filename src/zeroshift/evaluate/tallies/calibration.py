"""Confidence against accuracy, in bins of confidence."""

from __future__ import annotations

from typing import Any

import numpy as np

from zeroshift.evaluate.tallies.base import PredictionTally
from zeroshift.evaluate.tallies.checks import whole
from zeroshift.evaluate.tallies.predictions import Predictions

__all__ = ["BINS", "MOST_BINS", "Calibration"]

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
