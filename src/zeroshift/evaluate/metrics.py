"""Accuracy, accuracy over a stream, and calibration, as pure functions of NumPy arrays or torch tensors."""

from __future__ import annotations

import numpy as np

from zeroshift.arrays import Array, check_labels, to_numpy
from zeroshift.parameters import Number

__all__ = ["accuracy", "class_accuracy", "expected_calibration_error", "running_accuracy"]

ROW_SUM_TOLERANCE = 1e-2
"""How far a row of probabilities may be from summing to 1: loose enough for half precision, too tight for scores."""


def accuracy(probabilities: Array, labels: Array) -> float:
    """Fraction of rows whose largest entry is at the label; of equal entries the first counts.

    >>> accuracy(np.array([[0.9, 0.1], [0.4, 0.6]]), np.array([0, 0]))
    0.5
    """
    matrix, truth = _checked(probabilities, labels)
    return float(np.mean(np.argmax(matrix, axis=1) == truth))


def class_accuracy(probabilities: Array, labels: Array) -> np.ndarray:
    """Accuracy (K,) over the samples of each class (its recall); NaN for a class without samples.

    >>> class_accuracy(np.array([[0.9, 0.1, 0.0], [0.4, 0.6, 0.0], [0.2, 0.8, 0.0]]), np.array([0, 0, 1]))
    array([0.5, 1. , nan])
    """
    matrix, truth = _checked(probabilities, labels)
    samples = np.bincount(truth, minlength=matrix.shape[1])
    right = np.bincount(truth[np.argmax(matrix, axis=1) == truth], minlength=matrix.shape[1])
    return np.divide(right, samples, out=np.full(matrix.shape[1], np.nan), where=samples > 0)


def running_accuracy(correct: Array, window: int | None = None) -> np.ndarray:
    """Accuracy (N,) over the stream so far, or over the last `window` samples (fewer at the start).

    >>> running_accuracy(np.array([True, False, True, True]))
    array([1.        , 0.5       , 0.66666667, 0.75      ])
    >>> running_accuracy(np.array([True, False, True, True]), window=2)
    array([1. , 0.5, 0.5, 1. ])
    """
    hits = to_numpy(correct)
    if hits.ndim != 1 or len(hits) == 0 or hits.dtype != bool:
        raise ValueError(
            f"correct must be a vector of True and False, one for each sample; got shape {hits.shape} of {hits.dtype}. "
            "Fix: correct = probabilities.argmax(axis=1) == labels."
        )
    # Sums of whole numbers, divided once: no rounding builds up, however long the stream.
    seen = np.arange(1, len(hits) + 1)
    total = np.cumsum(hits)
    if window is not None:
        window = int(Number(1, integer=True).check("window", window))
        total[window:] = total[window:] - total[:-window]
        seen = np.minimum(seen, window)
    return np.asarray(total / seen)


def expected_calibration_error(probabilities: Array, labels: Array, bins: int = 15) -> float:
    """How far confidence is from accuracy: their mean gap over equal-width bins of the largest probability.

    Bin b of B holds confidences in ((b - 1) / B, b / B]; each bin counts with its share of the samples. 0 is perfect.

    >>> round(expected_calibration_error(np.array([[0.8, 0.2], [0.8, 0.2]]), np.array([0, 1])), 6)
    0.3
    """
    matrix, truth = _checked(probabilities, labels)
    _check_probabilities(matrix)
    bins = int(Number(1, integer=True).check("bins", bins))
    confidence = matrix.max(axis=1).astype(np.float64)
    right = np.argmax(matrix, axis=1) == truth
    # `right=True` closes each bin above; clipping keeps a confidence that rounding put past 1 in the last bin.
    edges = np.linspace(0.0, 1.0, bins + 1)
    place = np.clip(np.digitize(confidence, edges, right=True) - 1, 0, bins - 1)
    # Share of samples x |mean accuracy - mean confidence| is |sum of differences| / N: no division by an empty bin.
    gaps = np.bincount(place, weights=right - confidence, minlength=bins)
    return float(np.abs(gaps).sum() / len(truth))


def _checked(probabilities: Array, labels: Array) -> tuple[np.ndarray, np.ndarray]:
    matrix = to_numpy(probabilities)
    if matrix.ndim != 2 or 0 in matrix.shape or matrix.dtype.kind != "f":
        raise ValueError(
            "probabilities must be a floating-point matrix (N, K) with at least one row and one column; "
            f"got shape {matrix.shape} of {matrix.dtype}."
        )
    faulty = ~np.isfinite(matrix).all(axis=1)
    if faulty.any():
        raise ValueError(f"probabilities row {int(np.argmax(faulty))} holds NaN or an infinite value.")
    return matrix, check_labels("labels", labels, rows=matrix.shape[0], classes=matrix.shape[1])


def _check_probabilities(matrix: np.ndarray) -> None:
    sums = matrix.sum(axis=1, dtype=np.float64)
    faulty = (matrix < 0).any(axis=1) | (np.abs(sums - 1) > ROW_SUM_TOLERANCE)
    if faulty.any():
        row = int(np.argmax(faulty))
        raise ValueError(
            f"probabilities row {row} sums to {sums[row]:.4g} with {matrix[row].min():.4g} as its smallest entry; "
            "calibration needs probabilities. Fix: pass what adapt() or predict() returned, not scores."
        )
