"""Metrics that are updated as samples arrive and can be merged across shards of a stream."""

from __future__ import annotations

from zeroshift.evaluate.metrics.accuracy import Accuracy, ClassAccuracy, ConfusionMatrix, worst_share
from zeroshift.evaluate.metrics.base import Metric, Predictions
from zeroshift.evaluate.metrics.calibration import Brier, Calibration, LogLoss
from zeroshift.evaluate.metrics.gain import PairedGain
from zeroshift.evaluate.metrics.reject import RejectCurve
from zeroshift.evaluate.metrics.scorecard import Scorecard, score_run, uncertainty

__all__ = [
    "Accuracy",
    "Brier",
    "Calibration",
    "ClassAccuracy",
    "ConfusionMatrix",
    "LogLoss",
    "Metric",
    "PairedGain",
    "Predictions",
    "RejectCurve",
    "Scorecard",
    "score_run",
    "uncertainty",
    "worst_share",
]
