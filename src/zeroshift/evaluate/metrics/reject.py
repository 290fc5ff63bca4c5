"""How well a score separates samples that belong to none of the classes from the others."""

from __future__ import annotations

import numpy as np

from zeroshift.arrays import Array
from zeroshift.evaluate.metrics.base import Metric, checked_flags, checked_fraction, checked_numbers

__all__ = ["TRUE_POSITIVE_RATE", "RejectCurve"]


TRUE_POSITIVE_RATE = 0.95
"""The usual operating point for the false positive rate."""


class RejectCurve(Metric):
    """ROC curve of scores (higher means "reject") against whether each sample should be rejected.

    All scores are stored, because exact areas and rates need their ranks.

    >>> metric = RejectCurve()
    >>> metric.update(np.array([0.9, 0.4, 0.4, 0.1]), np.array([True, True, False, False]))
    >>> metric.auroc, metric.false_positive_rate()
    (0.875, 0.5)
    """

    def __init__(self) -> None:
        self._scores: list[np.ndarray] = []
        self._positive: list[np.ndarray] = []

    def update(self, scores: Array, positive: Array) -> None:
        """Add samples: scores (n,), and whether each should be rejected, True or False (n,)."""
        values = checked_numbers("scores", scores, each="sample")
        self._positive.append(checked_flags("positive", positive, rows=len(values), of="scores").copy())
        self._scores.append(values)
        self.n_samples += len(values)

    def _merge_counts(self, other: RejectCurve) -> None:
        self._scores += other._scores
        self._positive += other._positive

    @property
    def auroc(self) -> float | None:
        """Probability that a positive sample scores higher than a negative one, a tie counting as half; None where all
        samples are of one kind."""
        hits, false = self._rejected_counts()
        if hits[-1] == 0 or false[-1] == 0:
            return None
        # Trapezoids, doubled to stay with integers.
        steps = np.diff(false, prepend=0)
        halves = int((steps * (hits + np.concatenate([[0], hits[:-1]]))).sum())
        return halves / (2 * int(hits[-1]) * int(false[-1]))

    def false_positive_rate(self, tpr: float = TRUE_POSITIVE_RATE) -> float | None:
        """Fraction of negative samples rejected at the highest threshold that rejects at least `tpr` of the positive
        ones. Samples with equal scores are rejected together. None where all samples are of one kind."""
        tpr = checked_fraction("tpr", tpr, usual=TRUE_POSITIVE_RATE)
        hits, false = self._rejected_counts()
        if hits[-1] == 0 or false[-1] == 0:
            return None
        place = int(np.argmax(hits / hits[-1] >= tpr))
        return int(false[place]) / int(false[-1])

    def _rejected_counts(self) -> tuple[np.ndarray, np.ndarray]:
        """Numbers of correctly and wrongly rejected samples at every threshold, from the highest down."""
        self._require_samples()
        scores, positive = np.concatenate(self._scores), np.concatenate(self._positive)
        order = np.argsort(-scores, kind="stable")
        scores, positive = scores[order], positive[order]
        last = np.append(np.flatnonzero(np.diff(scores)), len(scores) - 1)
        hits = np.cumsum(positive)[last]
        return hits, last + 1 - hits
