"""How well probabilities can be trusted: Brier score, expected calibration error and log loss."""

from __future__ import annotations

from typing import Any

import numpy as np

from zeroshift.evaluate.metrics.base import PredictionMetric, Predictions, positive_integer

__all__ = ["BINS", "LEAST_PROBABILITY", "MOST_BINS", "Brier", "Calibration", "LogLoss"]


class Brier(PredictionMetric):
    """Mean over samples of the sum over classes of (probability - indicator of the true class)^2.

    This is Brier's multi-class definition, from 0 to 2. For two classes it is twice the common binary score.

    >>> metric = Brier()
    >>> metric.update(np.array([[0.5, 0.5], [0.0, 1.0]]), np.array([0, 0]))
    >>> metric.value
    1.25
    """

    def __init__(self) -> None:
        self.total = 0.0

    def _add_predictions(self, predictions: Predictions) -> None:
        # sum_k p_k^2 - 2 p_true + 1, without a one-hot matrix.
        squares = np.einsum("nk,nk->n", predictions.probabilities, predictions.probabilities, dtype=np.float64)
        self.total += float(np.maximum(squares - 2 * predictions.at_label + 1, 0).sum())

    def _merge_counts(self, other: Brier) -> None:
        self.total += other.total

    @property
    def value(self) -> float:
        return self.total / self._require_samples()


BINS = 15
"""The usual number of bins."""

MOST_BINS = 100_000
"""With more bins, most would hold at most one sample."""


class Calibration(PredictionMetric):
    """Samples in equal-width bins of their largest probability; bin b of B holds those in ((b - 1) / B, b / B].

    >>> metric = Calibration()
    >>> metric.update(np.array([[0.8, 0.2], [0.8, 0.2]]), np.array([0, 1]))
    >>> round(metric.error, 6)
    0.3
    """

    def __init__(self, bins: int = BINS) -> None:
        self.bins = positive_integer(
            "bins", bins, fix=f"bins={BINS}", most=MOST_BINS, why="most bins would hold at most one sample"
        )
        self.counts = np.zeros(self.bins, np.int64)
        """(B,) samples in each bin."""
        self.n_right = np.zeros(self.bins, np.int64)
        self.confidence_sums = np.zeros(self.bins)

    @property
    def settings(self) -> dict[str, Any]:
        return {"bins": self.bins}

    def _add_predictions(self, predictions: Predictions) -> None:
        # `right=True` closes each bin above; clipping keeps a confidence just above 1 in the last bin.
        edges = np.linspace(0.0, 1.0, self.bins + 1)
        place = np.clip(np.digitize(predictions.confidence, edges, right=True) - 1, 0, self.bins - 1)
        self.counts += np.bincount(place, minlength=self.bins)
        self.n_right += np.bincount(place[predictions.right], minlength=self.bins)
        self.confidence_sums += np.bincount(place, weights=predictions.confidence, minlength=self.bins)

    def _merge_counts(self, other: Calibration) -> None:
        self.counts += other.counts
        self.n_right += other.n_right
        self.confidence_sums += other.confidence_sums

    @property
    def error(self) -> float:
        """Expected calibration error: mean gap between confidence and accuracy, bins weighted by their samples."""
        # Weight * |mean accuracy - mean confidence| equals |sum of differences| / N, which never divides by an empty
        # bin.
        return float(np.abs(self.n_right - self.confidence_sums).sum() / self._require_samples())

    @property
    def reliability(self) -> dict[str, list[float]]:
        """`count`, mean `confidence` and `accuracy` of every non-empty bin, in order of confidence."""
        self._require_samples()
        held = self.counts > 0
        counts = self.counts[held]
        return {
            "count": counts.tolist(),
            "confidence": (self.confidence_sums[held] / counts).tolist(),
            "accuracy": (self.n_right[held] / counts).tolist(),
        }


LEAST_PROBABILITY = 1e-15
"""Lower bound for the probability of the true class. A certain and wrong prediction costs 34.5 nats, not infinity, and
the same in float32, where small probabilities underflow to 0, as in float64."""


class LogLoss(PredictionMetric):
    """Mean of -log p(true class), in nats.

    >>> metric = LogLoss()
    >>> metric.update(np.array([[0.5, 0.5], [0.0, 1.0]]), np.array([0, 1]))
    >>> round(metric.value, 6)  # half of log 2
    0.346574
    """

    def __init__(self) -> None:
        self.total = 0.0

    def _add_predictions(self, predictions: Predictions) -> None:
        self.total -= float(np.log(np.clip(predictions.at_label, LEAST_PROBABILITY, 1.0)).sum())

    def _merge_counts(self, other: LogLoss) -> None:
        self.total += other.total

    @property
    def value(self) -> float:
        return abs(self.total) / self._require_samples()  # abs: never -0.0
