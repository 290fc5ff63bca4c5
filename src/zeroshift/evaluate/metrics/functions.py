"""Metrics of a whole set of predictions as functions of NumPy arrays or torch tensors."""

from __future__ import annotations

import numpy as np

from zeroshift.arrays import Array, to_numpy
from zeroshift.evaluate.metrics.accuracy import Accuracy, ClassAccuracy, running_accuracy
from zeroshift.evaluate.metrics.base import Predictions, checked_numbers, positive_integer
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
    """Fraction of rows whose largest entry is at the label; ties go to the lower index.

    >>> accuracy(np.array([[0.9, 0.1], [0.4, 0.6]]), np.array([0, 0]))
    0.5
    """
    metric = Accuracy()
    metric.update(probabilities, labels)
    return metric.value


def top_k_accuracy(probabilities: Array, labels: Array, k: int = 5) -> float:
    """Fraction of rows with the label among the `k` largest entries; ties go to the lower index.

    >>> top_k_accuracy(np.array([[0.5, 0.3, 0.2], [0.5, 0.3, 0.2]]), np.array([1, 2]), k=2)
    0.5
    """
    metric = Accuracy(positive_integer("k", k, fix="k=5"))
    metric.update(probabilities, labels)
    return metric.value


def class_accuracy(probabilities: Array, labels: Array) -> np.ndarray:
    """Accuracy (K,) over the samples of each class (its recall); NaN for a class without samples.

    >>> class_accuracy(np.array([[0.9, 0.1, 0.0], [0.4, 0.6, 0.0], [0.2, 0.8, 0.0]]), np.array([0, 0, 1]))
    array([0.5, 1. , nan])
    """
    predictions = Predictions.of(probabilities, labels)
    metric = ClassAccuracy(predictions.classes)
    metric.add(predictions)
    return metric.values


def expected_calibration_error(probabilities: Array, labels: Array, bins: int = BINS) -> float:
    """Mean gap between confidence and accuracy over equal-width bins of the largest probability.

    Bin b of B holds confidences in ((b - 1) / B, b / B]; bins are weighted by their number of samples. 0 is perfect.

    >>> round(expected_calibration_error(np.array([[0.8, 0.2], [0.8, 0.2]]), np.array([0, 1])), 6)
    0.3
    """
    metric = Calibration(bins)
    metric.update(probabilities, labels)
    return metric.error


def negative_log_likelihood(probabilities: Array, labels: Array) -> float:
    """Mean of -log p(true class), in nats; probabilities are clipped at `LEAST_PROBABILITY` (1e-15).

    >>> round(negative_log_likelihood(np.array([[0.5, 0.5]]), np.array([0])), 6)
    0.693147
    """
    metric = LogLoss()
    metric.update(probabilities, labels)
    return metric.value


def brier_score(probabilities: Array, labels: Array) -> float:
    """Mean squared distance of a row from the one-hot label, from 0 to 2.

    >>> brier_score(np.array([[0.5, 0.5], [0.0, 1.0]]), np.array([0, 0]))
    1.25
    """
    metric = Brier()
    metric.update(probabilities, labels)
    return metric.value


def auroc(scores: Array, positive: Array) -> float:
    """Probability that a `positive` (n,) sample has a higher score (n,) than a negative one; a tie counts as half.

    >>> auroc(np.array([0.9, 0.4, 0.4, 0.1]), np.array([True, True, False, False]))
    0.875
    """
    return _of_both_kinds(_ranked(scores, positive).auroc, positive)


def false_positive_rate(scores: Array, positive: Array, tpr: float = TRUE_POSITIVE_RATE) -> float:
    """Fraction of negative samples with `scores` (n,) at or above the highest threshold that at least `tpr` of the
    `positive` (n,) samples reach.

    >>> false_positive_rate(np.array([0.9, 0.4, 0.4, 0.1]), np.array([True, True, False, False]))
    0.5
    """
    return _of_both_kinds(_ranked(scores, positive).false_positive_rate(tpr), positive)


def _ranked(scores: Array, positive: Array) -> RejectCurve:
    found = checked_numbers("scores", scores, each="sample")
    if len(found) == 0:
        raise ValueError(
            "scores must hold one number per sample, for at least two samples; got none. "
            "Fix: scores of positive and of negative samples."
        )
    metric = RejectCurve()
    metric.update(found, positive)
    return metric


def _of_both_kinds(value: float | None, positive: Array) -> float:
    if value is None:
        only = bool(to_numpy(positive)[0])
        raise ValueError(
            f"positive must hold both True and False; got only {only}. Fix: add samples that are {not only}."
        )
    return value
