"""Metrics that are counted as samples go by, and merged: what shards of a stream counted adds up to the whole's."""

from __future__ import annotations

from zeroshift.evaluate.metrics.accuracy import Accuracy, ClassAccuracy, Confusion, Runs, worst_share
from zeroshift.evaluate.metrics.base import Predictions, Tally
from zeroshift.evaluate.metrics.calibration import Brier, Calibration, LogLoss
from zeroshift.evaluate.metrics.gain import PairedGain
from zeroshift.evaluate.metrics.reject import RejectCurve
from zeroshift.evaluate.metrics.scorecard import Scorecard, doubt, score_sheet

__all__ = [
    "Accuracy",
    "Brier",
    "Calibration",
    "ClassAccuracy",
    "Confusion",
    "LogLoss",
    "PairedGain",
    "Predictions",
    "RejectCurve",
    "Runs",
    "Scorecard",
    "Tally",
    "doubt",
    "score_sheet",
    "worst_share",
]
