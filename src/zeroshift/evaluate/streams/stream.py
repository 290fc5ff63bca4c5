"""What every stream is: row numbers in the order they come, and nothing else of the data."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from zeroshift.arrays import to_numpy

__all__ = ["Stream"]


@dataclass(frozen=True)
class Stream:
    """Rows of a set in the order a method sees them, each at most once; lists and tensors become arrays.

    >>> Stream(np.array([2, 0, 1])).rows.tolist()
    [2, 0, 1]
    """

    rows: np.ndarray
    """(n,) row numbers."""
    groups: np.ndarray | None = None
    """(n,) which group each position belongs to (a domain, or the head of a long tail); None where there are none."""
    group_names: tuple[str, ...] = ()
    """What the groups are called, by number."""

    def __post_init__(self) -> None:
        rows = _numbers("rows", self.rows, "different row numbers, integers of at least 0")
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
        groups = _numbers("groups", self.groups, f"the group of each of the {len(rows)} rows, as its number")
        if len(groups) != len(rows):
            raise ValueError(f"groups must be {len(rows)} numbers, one a row; got {len(groups)}. Fix: one for each.")
        if len(groups) and groups.max() >= len(names):
            raise ValueError(
                f"groups must be below {len(names)}, the number of group_names; got {groups.max()}. "
                "Fix: a name for every group."
            )
        object.__setattr__(self, "groups", groups)

    def __len__(self) -> int:
        return len(self.rows)


def _numbers(name: str, values: object, allowed: str) -> np.ndarray:
    """A vector of integers of at least 0; an empty one holds nothing that could be wrong."""
    try:
        found = to_numpy(values)
    except ValueError:  # lists of unequal length
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
