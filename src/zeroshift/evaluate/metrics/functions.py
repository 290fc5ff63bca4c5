"""Metrics of a whole set of predictions, as pure functions of NumPy arrays or torch tensors; counted by the tallies."""

from __future__ import annotations

import numpy as np

from zeroshift.arrays import Array, to_numpy
from zeroshift.evaluate.metrics.accuracy import Accuracy, ClassAccuracy, running_accuracy
from zeroshift.evaluate.metrics.base import Predictions, number_list, whole
from zeroshift.evaluate.metrics.calibration import BINS, Brier, Calibration, LogLoss
from zeroshift.evaluate.metrics.reject import TRUE_POSITIVE_RATE, RejectCurve

__all__ = [
    "accuracy",
    "auroc",
    "brier_score",
    "class_accuracy",
    "expected_calibration_error",
    "false_positive_rate",
    "negative_log_likelihood",
    "running_accuracy",
    "top_k_accuracy",
]


def accuracy(probabilities: Array, labels: Array) -> float:
    """Fraction of rows whose largest entry is at the label; of equal entries the first counts.

    >>> accuracy(np.array([[0.9, 0.1], [0.4, 0.6]]), np.array([0, 0]))
    0.5
    """
    tally = Accuracy()
    tally.update(probabilities, labels)
    return tally.value


def top_k_accuracy(probabilities: Array, labels: Array, k: int = 5) -> float:
    """Fraction of rows with the label among the `k` largest entries; of equal entries the first count.

    >>> top_k_accuracy(np.array([[0.5, 0.3, 0.2], [0.5, 0.3, 0.2]]), np.array([1, 2]), k=2)
    0.5
    """
    tally = Accuracy(whole("k", k, fix="k=5"))
    tally.update(probabilities, labels)
    return tally.value


def class_accuracy(probabilities: Array, labels: Array) -> np.ndarray:
    """Accuracy (K,) over the samples of each class (its recall); NaN for a class without samples.

    >>> class_accuracy(np.array([[0.9, 0.1, 0.0], [0.4, 0.6, 0.0], [0.2, 0.8, 0.0]]), np.array([0, 0, 1]))
    array([0.5, 1. , nan])
    """
    said = Predictions.of(probabilities, labels)
    tally = ClassAccuracy(said.classes)
    tally.count(said)
    return tally.values


def expected_calibration_error(probabilities: Array, labels: Array, bins: int = BINS) -> float:
    """How far confidence is from accuracy: their mean gap over equal-width bins of the largest probability.

    Bin b of B holds confidences in ((b - 1) / B, b / B]; each bin counts with its share of the samples. 0 is perfect.

    >>> round(expected_calibration_error(np.array([[0.8, 0.2], [0.8, 0.2]]), np.array([0, 1])), 6)
    0.3
    """
    tally = Calibration(bins)
    tally.update(probabilities, labels)
    return tally.error


def negative_log_likelihood(probabilities: Array, labels: Array) -> float:
    """Mean of -log p(true class), in nats; a probability below `LEAST_PROBABILITY` (1e-15) counts as that.

    >>> round(negative_log_likelihood(np.array([[0.5, 0.5]]), np.array([0])), 6)
    0.693147
    """
    tally = LogLoss()
    tally.update(probabilities, labels)
    return tally.value


def brier_score(probabilities: Array, labels: Array) -> float:
    """Mean squared distance of a row from the one that is 1 at the label and 0 elsewhere: from 0 to 2.

    >>> brier_score(np.array([[0.5, 0.5], [0.0, 1.0]]), np.array([0, 0]))
    1.25
    """
    tally = Brier()
    tally.update(probabilities, labels)
    return tally.value


def auroc(scores: Array, positive: Array) -> float:
    """Chance that a sample that is `positive` (n,) has the higher score (n,) than one that is not; a tie counts half.

    >>> auroc(np.array([0.9, 0.4, 0.4, 0.1]), np.array([True, True, False, False]))
    0.875
    """
    return _of_both_kinds(_ranked(scores, positive).auroc, positive)


def false_positive_rate(scores: Array, positive: Array, tpr: float = TRUE_POSITIVE_RATE) -> float:
    """Share of the samples that are not `positive` (n,) at or above the threshold on `scores` (n,) that at least `tpr`
    of the positive ones reach.

    >>> false_positive_rate(np.array([0.9, 0.4, 0.4, 0.1]), np.array([True, True, False, False]))
    0.5
    """
    return _of_both_kinds(_ranked(scores, positive).false_positive_rate(tpr), positive)


def _ranked(scores: Array, positive: Array) -> RejectCurve:
    found = number_list("scores", scores, each="sample")
    if len(found) == 0:
        raise ValueError(
            "scores must hold a number for each sample, and at least two samples; got none. "
            "Fix: scores of samples that are positive, and of some that are not."
        )
    tally = RejectCurve()
    tally.update(found, positive)
    return tally


def _of_both_kinds(value: float | None, positive: Array) -> float:
    if value is None:
        only = bool(to_numpy(positive)[0])
        raise ValueError(
            f"positive must hold both True and False; got only {only}: there is nothing to tell apart. "
            f"Fix: add samples that are {not only}."
        )
    return value
