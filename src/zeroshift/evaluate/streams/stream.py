"""The `Stream` class, and the checks of arguments that all streams share."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

import numpy as np

from zeroshift.arrays import to_numpy

__all__ = ["Stream", "checked_classes", "checked_confidences", "checked_seed", "vector"]


def checked_seed(seed: Any) -> int:
    """Check an integer of at least 0 of any size.

    >>> checked_seed(np.int64(3))
    3
    """
    try:
        number = operator.index(seed)
    except TypeError:
        number = -1
    if number < 0 or isinstance(seed, (bool, np.bool_)):
        kind = ValueError if isinstance(seed, (int, np.integer)) and not isinstance(seed, bool) else TypeError
        raise kind(f"seed must be an integer of at least 0; got {seed!r}. Fix: seed=0.")
    return number


def checked_classes(name: str, classes: Any, *, rows: int | None = None, n_classes: int | None = None) -> np.ndarray:
    """Check (N,) class indices, at least one; optionally of length `rows` and below `n_classes`.

    >>> checked_classes("labels", [0, 1, 1]).tolist()
    [0, 1, 1]
    """
    found = vector(name, classes, "class indices", fix=_classes_fix(name, classes), rows=rows)
    allowed = "class indices, integers of at least 0" if n_classes is None else f"class indices, 0 to {n_classes - 1}"
    if found.dtype.kind not in "iu":
        raise TypeError(f"{name} must hold {allowed}; got {found.dtype}. Fix: {_classes_fix(name, classes, found)}.")
    outside = found < 0 if n_classes is None else (found < 0) | (found >= n_classes)
    if outside.any():
        row = int(np.argmax(outside))
        fix = "leave out the rows without a class" if found[row] < 0 else "n_classes as many as there are classes"
        raise ValueError(f"{name} must hold {allowed}; got {found[row]} in row {row}. Fix: {fix}.")
    return found.astype(np.int64)


def checked_confidences(confidences: Any) -> np.ndarray:
    """Check (N,) finite numbers, at least one; returns float64.

    >>> checked_confidences([-0.5, 0]).tolist()
    [-0.5, 0.0]
    """
    name = "confidences"
    found = vector(
        name, confidences, "numbers", fix="the confidences of one prompt mode, such as zero_shot_stats(...).confidences"
    )
    if found.dtype.kind not in "iuf":
        raise TypeError(f"{name} must hold numbers; got {found.dtype}. Fix: numpy.asarray({name}, dtype='float64').")
    wide = found.astype(np.float64)
    if not np.isfinite(wide).all():
        row = int(np.argmin(np.isfinite(wide)))
        raise ValueError(f"{name} must be finite; got {wide[row]} in row {row}. Fix: leave out such rows.")
    return wide


def vector(name: str, values: Any, of: str, *, fix: str, rows: int | None = None) -> np.ndarray:
    """Convert `values` to a NumPy vector with at least one entry."""
    length = "one per row" if rows is None else f"{rows} of them, one per row"
    if isinstance(values, np.ma.MaskedArray):
        raise TypeError(f"{name} must be a plain vector; got a masked one. Fix: leave out the masked rows.")
    try:
        found = to_numpy(values)
    except (TypeError, ValueError, RuntimeError):  # lists of unequal length; tensors that are not dense
        found = np.array(None)
    if found.ndim == 0:
        raise TypeError(f"{name} must be a vector of {of}, {length}; got {_short_repr(values)}. Fix: {fix}.")
    if found.ndim != 1:
        raise ValueError(f"{name} must be a vector of {of}, {length}; got shape {found.shape}. Fix: {fix}.")
    if len(found) == 0:
        raise ValueError(f"{name} must be a vector of {of}, at least one; got none. Fix: a set with samples.")
    if rows is not None and len(found) != rows:
        raise ValueError(f"{name} must be a vector of {of}, {length}; got {len(found)}. Fix: those of the same rows.")
    return found


def _classes_fix(name: str, given: Any, found: np.ndarray | None = None) -> str:
    if hasattr(given, "labels"):
        return f"{name}=features.labels"
    if found is not None and found.dtype.kind in "US":
        return f"[class_names.index(name) for name in {name}]"
    whole = found is not None and found.dtype.kind == "f" and bool((found == np.floor(found)).all())
    return f"numpy.asarray({name}).astype(int)" if whole else "the class index of each row"


def _short_repr(value: Any) -> str:
    return repr(value) if value is None or isinstance(value, (int, float, str)) else f"a {type(value).__name__}"


@dataclass(frozen=True)
class Stream:
    """Rows of a set in the order a method sees them, each at most once.

    >>> Stream(np.array([2, 0, 1])).rows.tolist()
    [2, 0, 1]
    """

    rows: np.ndarray
    """(n,) row numbers."""
    groups: np.ndarray | None = None
    """(n,) group of each position, such as a domain or the head of a long tail; None without groups."""
    group_names: tuple[str, ...] = ()
    """Names of the groups, by index."""

    def __post_init__(self) -> None:
        rows = _checked_integers("rows", self.rows, "different row numbers, integers of at least 0")
        values, count = np.unique(rows, return_counts=True)
        if len(values) < len(rows):
            raise ValueError(
                f"rows must be different row numbers; got row {values[np.argmax(count)]} {count.max()} times. "
                "Fix: each row at most once."
            )
        names = self.group_names
        if isinstance(names, str) or not all(isinstance(name, str) for name in names):
            raise TypeError(f"group_names must be a tuple of names; got {names!r}. Fix: group_names=('clean', 'fog').")
        object.__setattr__(self, "rows", rows)
        object.__setattr__(self, "group_names", tuple(names))
        if self.groups is None:
            return
        groups = _checked_integers("groups", self.groups, f"the group of each of the {len(rows)} rows, as its number")
        if len(groups) != len(rows):
            raise ValueError(
                f"groups must be {len(rows)} numbers, one per row; got {len(groups)}. Fix: one for each row."
            )
        if len(groups) and groups.max() >= len(names):
            raise ValueError(
                f"groups must be below {len(names)}, the number of group_names; got {groups.max()}. "
                "Fix: a name for every group."
            )
        object.__setattr__(self, "groups", groups)

    def __len__(self) -> int:
        return len(self.rows)


def _checked_integers(name: str, values: object, allowed: str) -> np.ndarray:
    """Check a vector of integers of at least 0, possibly empty."""
    try:
        found = to_numpy(values)
    except (TypeError, ValueError, RuntimeError):  # lists of unequal length; tensors that are not dense
        found = np.array(None)
    if found.shape == (0,):
        return found.astype(int)
    if found.ndim != 1 or found.dtype.kind not in "iu":
        raise TypeError(
            f"{name} must be a vector of {allowed}; got shape {found.shape} of {found.dtype}. "
            f"Fix: numpy.flatnonzero({name}) for a mask, else numpy.asarray({name}, dtype=int)."
        )
    if found.min() < 0:
        raise ValueError(f"{name} must be {allowed}; got {found.min()}. Fix: count from the first row, which is 0.")
    return found
