"""What tallies take, checked in one set of words: the argument, what was given, what is allowed, the fix."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from zeroshift.arrays import Array, check_labels, is_array, to_numpy
from zeroshift.parameters import Number

__all__ = [
    "ROW_SUM_TOLERANCE",
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
