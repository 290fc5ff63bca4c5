"""Every metric of a method's predictions at once, and what a record holds of them."""

from __future__ import annotations

from typing import Any

from zeroshift.evaluate.tallies.accuracy import Accuracy
from zeroshift.evaluate.tallies.base import PredictionTally
from zeroshift.evaluate.tallies.brier import Brier
from zeroshift.evaluate.tallies.calibration import BINS, Calibration
from zeroshift.evaluate.tallies.checks import class_count
from zeroshift.evaluate.tallies.class_accuracy import ClassAccuracy
from zeroshift.evaluate.tallies.confusion import Confusion
from zeroshift.evaluate.tallies.doubt import doubt
from zeroshift.evaluate.tallies.log_loss import LogLoss
from zeroshift.evaluate.tallies.predictions import Predictions
from zeroshift.evaluate.tallies.reject_curve import RejectCurve

__all__ = ["MAX_CONFUSED_CLASSES", "TOP", "Scorecard"]

TOP = 5

MAX_CONFUSED_CLASSES = 30
"""Beyond this a record holds no confusion matrix: nobody could read it, and it would be most of the file."""


class Scorecard(PredictionTally):
    """Accuracy (top 1, top 5, mean of the classes), calibration, log loss, Brier score and how well one less the
    largest probability tells wrong predictions from right ones.

    >>> import numpy as np
    >>> card = Scorecard(classes=2)
    >>> card.update(np.array([[0.9, 0.1], [0.4, 0.6]]), np.array([0, 0]))
    >>> card.record()["accuracy"], card.record()["error_auroc"]
    (0.5, 1.0)
    """

    def __init__(self, classes: int, bins: int = BINS) -> None:
        self.classes = class_count(classes)
        self.top1, self.top5 = Accuracy(), Accuracy(TOP)
        self.by_class = ClassAccuracy(self.classes)
        self.calibration = Calibration(bins)
        self.log_loss, self.brier = LogLoss(), Brier()
        self.errors = RejectCurve()
        """Scores for "this prediction is wrong"."""
        self.confusion = Confusion(self.classes) if self.classes <= MAX_CONFUSED_CLASSES else None

    @property
    def settings(self) -> dict[str, Any]:
        return {"classes": self.classes, "bins": self.calibration.bins}

    @property
    def _tallies(self) -> list[PredictionTally]:
        found = [self.top1, self.top5, self.by_class, self.calibration, self.log_loss, self.brier]
        return found if self.confusion is None else [*found, self.confusion]

    def _count(self, said: Predictions) -> None:
        doubts = doubt(said.probabilities)  # refuses what are no probabilities before any tally has counted them
        for tally in self._tallies:
            tally.count(said)
        self.errors.update(doubts, ~said.right)

    def _add(self, other: Scorecard) -> None:
        for tally, others in zip(self._tallies, other._tallies, strict=True):
            tally.merge(others)
        self.errors.merge(other.errors)

    def record(self) -> dict[str, float | None]:
        """The scalars, by the names records have. `top5_accuracy` is 1 with five classes or fewer; the last two are
        None where all predictions are right, or all wrong."""
        return {
            "accuracy": self.top1.value,
            "top5_accuracy": self.top5.value,
            "class_mean_accuracy": self.by_class.mean,
            "calibration_error": self.calibration.error,
            "nll": self.log_loss.value,
            "brier": self.brier.value,
            "error_auroc": self.errors.auroc,
            "error_fpr95": self.errors.false_positive_rate(),
        }

    def detail(self) -> dict[str, Any]:
        """What figures are drawn from."""
        return {
            "reliability": self.calibration.reliability,
            "confusion": None if self.confusion is None else self.confusion.counts.tolist(),
        }
