"""What every stream is: row numbers in the order they come, and nothing else of the data."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

__all__ = ["Stream"]


@dataclass(frozen=True)
class Stream:
    """Rows of a set in the order a method sees them, each at most once.

    >>> Stream(np.array([2, 0, 1])).rows.tolist()
    [2, 0, 1]
    """

    rows: np.ndarray
    """(n,) row numbers."""
    groups: np.ndarray | None = None
    """(n,) which group each position belongs to (a domain, or the head of a long tail); None where there are none."""
    group_names: tuple[str, ...] = ()
    """What the groups are called, by number."""

    def __len__(self) -> int:
        return len(self.rows)
