"""Metrics that are counted as samples go by, and merged: what shards of a stream counted adds up to the whole's."""

from zeroshift.evaluate.tallies.accuracy import Accuracy
from zeroshift.evaluate.tallies.base import Tally
from zeroshift.evaluate.tallies.brier import Brier
from zeroshift.evaluate.tallies.calibration import Calibration
from zeroshift.evaluate.tallies.class_accuracy import ClassAccuracy
from zeroshift.evaluate.tallies.confusion import Confusion
from zeroshift.evaluate.tallies.doubt import doubt
from zeroshift.evaluate.tallies.log_loss import LogLoss
from zeroshift.evaluate.tallies.paired_gain import PairedGain
from zeroshift.evaluate.tallies.predictions import Predictions
from zeroshift.evaluate.tallies.reject_curve import RejectCurve
from zeroshift.evaluate.tallies.runs import Runs, worst_share
from zeroshift.evaluate.tallies.scorecard import Scorecard
from zeroshift.evaluate.tallies.sheet import score_sheet

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
