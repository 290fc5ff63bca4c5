"""What every tally is: settings, a count that grows sample by sample, and a sum of two counts."""

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
    "PredictionTally",
    "Predictions",
    "Tally",
    "class_count",
    "class_labels",
    "flags",
    "number_list",
    "plain_array",
    "probability_rows",
    "score_rows",
    "share",
    "whole",
]


# What tallies take, checked in one set of words: the argument, what was given, what is allowed, the fix.


ROW_SUM_TOLERANCE = 1e-2
"""How far a row of probabilities may be from summing to 1: loose enough for half precision, too tight for scores."""

MOST_CLASSES = 10_000_000
"""More than any list of names; counts of as many classes take 80 MB a vector."""


def whole(name: str, value: Any, *, fix: str, most: float = math.inf, why: str = "") -> int:
    """An integer of at least 1, as `Number` takes them: 5.0 is 5. More than `most` is refused for the reason `why`.

    >>> whole("bins", 15.0, fix="bins=15")
    15
    """
    number = Number(1, integer=True)
    try:
        found = int(number.accept(value))
    except (TypeError, ValueError) as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(f"{name} must be {number.describe()}; got {_shown(value)}. Fix: {fix}.") from None
    if found > most:
        raise ValueError(f"{name} must be at most {most:,}; got {_shown(value)}: {why}. Fix: {fix}.")
    return found


def class_count(classes: Any, *, most: int = MOST_CLASSES, why: str = "every class has counts of 8 bytes") -> int:
    """How many classes there are."""
    fix = "as many classes as probabilities has columns"
    return whole("classes", classes, fix=fix, most=most, why=why)


def share(name: str, value: Any, *, usual: float) -> float:
    """A number above 0, and 1 at most."""
    number = Number(0, 1, above=True)
    try:
        return float(number.accept(value))
    except (TypeError, ValueError) as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(
            f"{name} must be a number above 0, and 1 at most; got {_shown(value)}. Fix: {name}={usual}."
        ) from None


def number_list(name: str, values: Any, *, each: str = "run") -> np.ndarray:
    """Finite numbers in float64, one for each run or sample; there may be none."""
    wanted = f"{name} must be a list of finite numbers, one for each {each}"
    if is_array(values) or (isinstance(values, Iterable) and not isinstance(values, (str, bytes))):
        found = plain_array(wanted, values if is_array(values) else list(values))
        if found.ndim == 1 and (found.dtype.kind in "fiu" or len(found) == 0):
            if not np.isfinite(found).all():
                place = int(np.argmin(np.isfinite(found)))
                raise ValueError(f"{wanted}; got {found[place]} at place {place}. Fix: leave it out.")
            return found.astype(np.float64)
        raise ValueError(
            f"{wanted}; got shape {found.shape} of {found.dtype}. Fix: a flat list, such as {name}=[0.75, 0.5]."
        )
    fix = f"{name}=[{values!r}]" if isinstance(values, (int, float, np.number)) else f"{name}=[0.75, 0.5]"
    raise TypeError(f"{wanted}; got {_shown(values)}. Fix: {fix}.")


def flags(name: str, values: Array, *, rows: int | None = None, of: str = "") -> np.ndarray:
    """A vector of True and False; as long as the argument `of` where `rows` is given."""
    wanted = f"{name} must be a vector of True and False, one for each sample"
    found = plain_array(wanted, values)
    if found.shape == (0,):
        found = found.astype(bool)  # an empty list has no kind of its own
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


def score_rows(name: str, values: Array) -> np.ndarray:
    """A floating-point matrix of finite numbers, a row for each sample and a column for each class."""
    wanted = f"{name} must be a floating-point matrix (N, K) with at least one row and one column"
    found = plain_array(wanted, values)
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


def probability_rows(name: str, matrix: np.ndarray) -> np.ndarray:
    """The matrix, once its rows are known to be probabilities."""
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


def class_labels(labels: Array, matrix: np.ndarray, name: str) -> np.ndarray:
    """The true class of every row of the matrix, which is the argument `name`."""
    rows, classes = matrix.shape
    wanted = f"labels must be a vector of class indices, one for each row of {name}"
    if not is_array(labels) and not isinstance(labels, (list, tuple)):
        raise TypeError(f"{wanted}; got {_shown(labels)}. Fix: labels=[0] for one sample of the first class.")
    if not isinstance(labels, np.ma.MaskedArray):
        found = plain_array(wanted, labels)
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


def plain_array(wanted: str, values: Any) -> np.ndarray:
    """In NumPy; what is no array is answered with what is wanted."""
    try:
        return to_numpy(values)
    except (TypeError, ValueError, OverflowError):  # rows of different lengths, and what is no number
        raise ValueError(
            f"{wanted}; got {_shown(values)}, which is no array. Fix: rows of one length, numbers only."
        ) from None


def _shown(value: Any) -> str:
    """As it was given, short enough for a message."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


# Probabilities and labels, checked once for however many tallies count them.


@dataclass(frozen=True)
class Predictions:
    """What a method said of some samples, and what they are.

    >>> said = Predictions.of(np.array([[0.9, 0.1], [0.4, 0.6]]), np.array([0, 0]))
    >>> said.predicted.tolist(), said.right.tolist(), said.rank.tolist()
    ([0, 1], [True, False], [0, 1])
    """

    matrix: np.ndarray
    """(n, K) probabilities, or scores where only their order counts."""
    labels: np.ndarray
    """(n,) true classes."""
    name: str = "probabilities"
    """What the caller calls the matrix, for messages."""

    @classmethod
    def of(cls, probabilities: Array, labels: Array, *, name: str = "probabilities") -> Predictions:
        """From NumPy arrays or tensors; refuses what is no matrix, or not finite, and labels that do not fit it."""
        matrix = score_rows(name, probabilities)
        return cls(matrix, class_labels(labels, matrix, name), name)

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def classes(self) -> int:
        return int(self.matrix.shape[1])

    @cached_property
    def predicted(self) -> np.ndarray:
        """(n,) the class of the largest entry, of equal ones the first."""
        return np.argmax(self.matrix, axis=1)

    @cached_property
    def right(self) -> np.ndarray:
        """(n,) whether that is the label."""
        return self.predicted == self.labels

    @cached_property
    def rank(self) -> np.ndarray:
        """(n,) how many classes come before the true one: those with a larger entry, and the first of equal ones."""
        own = np.take_along_axis(self.matrix, self.labels[:, None], axis=1)
        earlier = np.arange(self.classes) < self.labels[:, None]
        return np.count_nonzero((self.matrix > own) | ((self.matrix == own) & earlier), axis=1)

    @cached_property
    def probabilities(self) -> np.ndarray:
        """The matrix, once its rows are known to be probabilities."""
        return probability_rows(self.name, self.matrix)

    @cached_property
    def confidence(self) -> np.ndarray:
        """(n,) the largest probability, in float64."""
        return np.asarray(self.probabilities.max(axis=1), np.float64)

    @cached_property
    def at_label(self) -> np.ndarray:
        """(n,) the probability of the true class, in float64."""
        return np.take_along_axis(self.probabilities, self.labels[:, None], axis=1)[:, 0].astype(np.float64)


class Tally(ABC):
    """A metric as it is counted. Merging what shards counted gives the whole's count: exactly where whole numbers are
    counted, to rounding where floats are summed, in any order."""

    n_samples: int = 0
    """Samples counted so far."""

    @property
    def settings(self) -> dict[str, Any]:
        """What two tallies must share to be merged."""
        return {}

    def merge(self, other: Tally) -> None:
        """Add what `other` counted; it is left as it is."""
        if type(other) is not type(self):
            given = "None" if other is None else _a(type(other))
            raise TypeError(f"other must be {_a(type(self))}; got {given}. Fix: merge tallies of one kind.")
        if other.settings != self.settings:
            raise ValueError(
                f"other was counted with {_told(other.settings)}, this {type(self).__name__} with "
                f"{_told(self.settings)}; such counts do not add up. Fix: the same settings for every shard."
            )
        self._add(other)
        self.n_samples += other.n_samples

    @abstractmethod
    def _add(self, other: Any) -> None:
        """Add the counts of a tally of the same kind and settings; `n_samples` is added for it."""

    def _some(self) -> int:
        """Samples counted, of which there must be one."""
        if self.n_samples == 0:
            raise ValueError(f"this {type(self).__name__} has counted no sample yet. Fix: update() it first.")
        return self.n_samples


class PredictionTally(Tally):
    """A tally of probabilities against labels."""

    def update(self, probabilities: Array, labels: Array) -> None:
        """Count some samples: probabilities (n, K), true classes (n,)."""
        self.count(Predictions.of(probabilities, labels))

    def count(self, said: Predictions) -> None:
        """`update` with what is checked already; nothing is counted where it is refused."""
        if not isinstance(said, Predictions):
            raise TypeError(f"said must be Predictions; got {type(said).__name__}. Fix: update(probabilities, labels).")
        classes = self.settings.get("classes", said.classes)
        if classes != said.classes:
            raise ValueError(
                f"probabilities must have {classes} columns, one for each class; got {said.classes}. "
                f"Fix: {type(self).__name__}(classes={said.classes})."
            )
        self._count(said)
        self.n_samples += len(said)

    @abstractmethod
    def _count(self, said: Predictions) -> None:
        """Add these samples to the counts; `n_samples` is added for it."""


def _a(kind: type) -> str:
    return f"{'an' if kind.__name__[0] in 'AEIOUaeiou' else 'a'} {kind.__name__}"


def _told(settings: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in settings.items()) or "no settings"
