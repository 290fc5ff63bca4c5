"""The base classes of all metrics, the predictions they are computed from, and the checks of their arguments."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from zeroshift.arrays import Array, check_labels, is_array, to_numpy
from zeroshift.parameters import Number

__all__ = [
    "ROW_SUM_TOLERANCE",
    "Metric",
    "PredictionMetric",
    "Predictions",
    "as_numpy",
    "checked_class_count",
    "checked_flags",
    "checked_fraction",
    "checked_labels",
    "checked_numbers",
    "checked_probabilities",
    "checked_scores",
    "positive_integer",
]


ROW_SUM_TOLERANCE = 1e-2
"""Allowed deviation of a row sum from 1: accepts half-precision probabilities, rejects scores."""

MOST_CLASSES = 10_000_000
"""More classes than any real data set has; a count vector of this length takes 80 MB."""


def positive_integer(name: str, value: Any, *, fix: str, most: float = math.inf, why: str = "") -> int:
    """Check an integer of at least 1 (5.0 counts as 5). Values above `most` are rejected with the reason `why`.

    >>> positive_integer("bins", 15.0, fix="bins=15")
    15
    """
    number = Number(1, integer=True)
    try:
        found = int(number.accept(value))
    except (TypeError, ValueError) as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(f"{name} must be {number.describe()}; got {_short_repr(value)}. Fix: {fix}.") from None
    if found > most:
        raise ValueError(f"{name} must be at most {most:,}; got {_short_repr(value)}: {why}. Fix: {fix}.")
    return found


def checked_class_count(
    classes: Any, *, most: int = MOST_CLASSES, why: str = "every class has counts of 8 bytes"
) -> int:
    """Check a number of classes."""
    fix = "as many classes as probabilities has columns"
    return positive_integer("classes", classes, fix=fix, most=most, why=why)


def checked_fraction(name: str, value: Any, *, usual: float) -> float:
    """Check a number above 0 and at most 1."""
    number = Number(0, 1, above=True)
    try:
        return float(number.accept(value))
    except (TypeError, ValueError) as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(
            f"{name} must be a number above 0 and at most 1; got {_short_repr(value)}. Fix: {name}={usual}."
        ) from None


def checked_numbers(name: str, values: Any, *, each: str = "run") -> np.ndarray:
    """Check a list of finite numbers, one per run or sample, possibly empty; returns float64."""
    wanted = f"{name} must be a list of finite numbers, one for each {each}"
    if is_array(values) or (isinstance(values, Iterable) and not isinstance(values, (str, bytes))):
        found = as_numpy(wanted, values if is_array(values) else list(values))
        if found.ndim == 1 and (found.dtype.kind in "fiu" or len(found) == 0):
            if not np.isfinite(found).all():
                place = int(np.argmin(np.isfinite(found)))
                raise ValueError(f"{wanted}; got {found[place]} at place {place}. Fix: leave it out.")
            return found.astype(np.float64)
        raise ValueError(
            f"{wanted}; got shape {found.shape} of {found.dtype}. Fix: a flat list, such as {name}=[0.75, 0.5]."
        )
    fix = f"{name}=[{values!r}]" if isinstance(values, (int, float, np.number)) else f"{name}=[0.75, 0.5]"
    raise TypeError(f"{wanted}; got {_short_repr(values)}. Fix: {fix}.")


def checked_flags(name: str, values: Array, *, rows: int | None = None, of: str = "") -> np.ndarray:
    """Check a vector of True and False; with `rows`, of the same length as the argument `of`."""
    wanted = f"{name} must be a vector of True and False, one for each sample"
    found = as_numpy(wanted, values)
    if found.shape == (0,):
        found = found.astype(bool)  # an empty list has no dtype of its own
    if found.ndim != 1 or found.dtype != bool:
        ones = found.ndim == 1 and found.dtype.kind in "iuf" and bool(np.isin(found, (0, 1)).all())
        fix = f"{name} = numpy.asarray({name}) == 1" if ones else "predicted == labels is such a vector"
        raise ValueError(f"{wanted}; got shape {found.shape} of {found.dtype}. Fix: {fix}.")
    if rows is not None and len(found) != rows:
        raise ValueError(
            f"{name} must have one entry for each of {of}, {rows} of them; got {len(found)}. "
            f"Fix: {of} and {name} of the same samples, in the same order."
        )
    return found


def checked_scores(name: str, values: Array) -> np.ndarray:
    """Check a floating-point matrix of finite numbers: one row per sample, one column per class."""
    wanted = f"{name} must be a floating-point matrix (N, K) with at least one row and one column"
    found = as_numpy(wanted, values)
    if found.ndim != 2 or 0 in found.shape or found.dtype.kind != "f":
        fix = "a row for each sample, a column for each class"
        if found.ndim == 1 and len(found) and found.dtype.kind == "f":
            fix = f"{name}[None, :] for a single sample"
        elif found.ndim == 2 and 0 not in found.shape and found.dtype.kind in "iub":
            fix = f"numpy.asarray({name}, dtype='float32')"
        raise ValueError(f"{wanted}; got shape {found.shape} of {found.dtype}. Fix: {fix}.")
    faulty = ~np.isfinite(found).all(axis=1)
    if faulty.any():
        raise ValueError(
            f"{name} row {int(np.argmax(faulty))} holds NaN or an infinite value; all must be finite. "
            "Fix: drop the row from all arguments, or predict it again."
        )
    return found


def checked_probabilities(name: str, matrix: np.ndarray) -> np.ndarray:
    """Check that every row of the matrix is a probability distribution."""
    sums = matrix.sum(axis=1, dtype=np.float64)
    faulty = (matrix < 0).any(axis=1) | (np.abs(sums - 1) > ROW_SUM_TOLERANCE)
    if faulty.any():
        row = int(np.argmax(faulty))
        raise ValueError(
            f"{name} row {row} sums to {sums[row]:.4g} with {matrix[row].min():.4g} as its smallest entry; a row of "
            f"probabilities has none below 0 and sums to 1, within {ROW_SUM_TOLERANCE:g}. "
            "Fix: pass what adapt() or predict() returned, not scores."
        )
    return matrix


def checked_labels(labels: Array, matrix: np.ndarray, name: str) -> np.ndarray:
    """Check the true class of every row of the matrix, which is the argument `name`."""
    rows, classes = matrix.shape
    wanted = f"labels must be a vector of class indices, one for each row of {name}"
    if not is_array(labels) and not isinstance(labels, (list, tuple)) and not hasattr(labels, "to_numpy"):
        raise TypeError(f"{wanted}; got {_short_repr(labels)}. Fix: labels=[0] for one sample of the first class.")
    if not isinstance(labels, np.ma.MaskedArray):
        found = as_numpy(wanted, labels)
        if found.shape != (rows,):
            raise ValueError(
                f"labels must have one entry for each row of {name}, shape ({rows},); got shape {found.shape}. "
                f"Fix: labels and {name} of the same samples, in the same order."
            )
        outside = (found < 0) | (found >= classes) if found.dtype.kind in "iu" else np.zeros(rows, bool)
        if outside.any():
            row = int(np.argmax(outside))
            raise ValueError(
                f"labels row {row} is {found[row]}; class indices go from 0 to {classes - 1}, as {name} has {classes} "
                f"columns. Fix: number the classes as the columns of {name} are, starting at 0."
            )
    return check_labels("labels", labels, rows=rows, classes=classes)


def as_numpy(wanted: str, values: Any) -> np.ndarray:
    """Convert to NumPy; the error for anything else starts with `wanted`."""
    try:
        return to_numpy(values)
    except (
        TypeError,
        ValueError,
        OverflowError,
        RuntimeError,
    ):  # rows of different lengths, and values that are not numbers
        raise ValueError(
            f"{wanted}; got {_short_repr(values)}, which is not an array. Fix: rows of one length, numbers only."
        ) from None


def _short_repr(value: Any) -> str:
    """`repr`, shortened for a message."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


@dataclass(frozen=True)
class Predictions:
    """Predictions of a method for some samples, and the true classes; checked once for all metrics that use them.

    >>> predictions = Predictions.of(np.array([[0.9, 0.1], [0.4, 0.6]]), np.array([0, 0]))
    >>> predictions.predicted.tolist(), predictions.right.tolist(), predictions.rank.tolist()
    ([0, 1], [True, False], [0, 1])
    """

    matrix: np.ndarray
    """(n, K) probabilities, or scores for metrics that use only their order."""
    labels: np.ndarray
    """(n,) true classes."""
    name: str = "probabilities"
    """Name of the matrix in error messages."""

    @classmethod
    def of(cls, probabilities: Array, labels: Array, *, name: str = "probabilities") -> Predictions:
        """From NumPy arrays or tensors; checks that the matrix is finite and that the labels fit it."""
        matrix = checked_scores(name, probabilities)
        return cls(matrix, checked_labels(labels, matrix, name), name)

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def classes(self) -> int:
        return int(self.matrix.shape[1])

    @cached_property
    def predicted(self) -> np.ndarray:
        """(n,) class of the largest entry; ties go to the lower index."""
        return np.argmax(self.matrix, axis=1)

    @cached_property
    def right(self) -> np.ndarray:
        """(n,) whether the predicted class is the label."""
        return self.predicted == self.labels

    @cached_property
    def rank(self) -> np.ndarray:
        """(n,) number of classes ranked before the true one; ties go to the lower index."""
        own = np.take_along_axis(self.matrix, self.labels[:, None], axis=1)
        earlier = np.arange(self.classes) < self.labels[:, None]
        return np.count_nonzero((self.matrix > own) | ((self.matrix == own) & earlier), axis=1)

    @cached_property
    def probabilities(self) -> np.ndarray:
        """The matrix, after checking that its rows are probabilities."""
        return checked_probabilities(self.name, self.matrix)

    @cached_property
    def confidence(self) -> np.ndarray:
        """(n,) the largest probability, in float64."""
        return np.asarray(self.probabilities.max(axis=1), np.float64)

    @cached_property
    def at_label(self) -> np.ndarray:
        """(n,) the probability of the true class, in float64."""
        return np.take_along_axis(self.probabilities, self.labels[:, None], axis=1)[:, 0].astype(np.float64)


class Metric(ABC):
    """A metric that is updated incrementally. Merging the metrics of several shards gives the metric of all samples:
    exactly for integer counts, up to rounding for sums of floats, in any order."""

    n_samples: int = 0
    """Number of samples so far."""

    @property
    def settings(self) -> dict[str, Any]:
        """Settings that two metrics must share to be merged."""
        return {}

    def merge(self, other: Metric) -> None:
        """Add the counts of `other`, which stays unchanged."""
        if type(other) is not type(self):
            given = "None" if other is None else _with_article(type(other))
            raise TypeError(
                f"other must be {_with_article(type(self))}; got {given}. Fix: merge metrics of the same class."
            )
        if other.settings != self.settings:
            raise ValueError(
                f"other has {_describe_settings(other.settings)}, this {type(self).__name__} has "
                f"{_describe_settings(self.settings)}; they cannot be merged. Fix: the same settings for every shard."
            )
        self._merge_counts(other)
        self.n_samples += other.n_samples

    @abstractmethod
    def _merge_counts(self, other: Any) -> None:
        """Add the counts of a metric with the same class and settings. `merge` updates `n_samples`."""

    def _require_samples(self) -> int:
        """Number of samples; raises where there are none."""
        if self.n_samples == 0:
            raise ValueError(f"this {type(self).__name__} has no samples yet. Fix: call update() first.")
        return self.n_samples


class PredictionMetric(Metric):
    """A metric of probabilities against labels."""

    def update(self, probabilities: Array, labels: Array) -> None:
        """Add samples: probabilities (n, K), true classes (n,)."""
        self.add(Predictions.of(probabilities, labels))

    def add(self, predictions: Predictions) -> None:
        """Add predictions that are already checked. Nothing is added if they are rejected."""
        if not isinstance(predictions, Predictions):
            raise TypeError(
                f"predictions must be Predictions; got {type(predictions).__name__}. "
                "Fix: update(probabilities, labels)."
            )
        classes = self.settings.get("classes", predictions.classes)
        if classes != predictions.classes:
            raise ValueError(
                f"probabilities must have {classes} columns, one for each class; got {predictions.classes}. "
                f"Fix: {type(self).__name__}(classes={predictions.classes})."
            )
        self._add_predictions(predictions)
        self.n_samples += len(predictions)

    @abstractmethod
    def _add_predictions(self, predictions: Predictions) -> None:
        """Add these samples to the counts. `add` updates `n_samples`."""


def _with_article(kind: type) -> str:
    return f"{'an' if kind.__name__[0] in 'AEIOUaeiou' else 'a'} {kind.__name__}"


def _describe_settings(settings: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in settings.items()) or "no settings"
