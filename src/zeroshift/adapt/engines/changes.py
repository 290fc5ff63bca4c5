"""What one insertion changes: the class's sums and mean, and a few squares added to and taken from the scatter."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from zeroshift.arrays import Array, namespace

__all__ = ["Change", "scatter_rows"]


class Change(NamedTuple):
    """Sample x entered class k, which had `held` entries of plain mean `centre`; `old` left where not None."""

    k: int
    held: int
    x: Array
    old: Array | None
    centre: Array
    mean_before: Array
    mean_after: Array
    moved: bool


def scatter_rows(change: Change) -> tuple[Array, np.ndarray, int]:
    """Rows u (r, d) and signs s with S' = S + sum s u u^T, additions first, and which row is x - mu'.

    Moving the mean of the n entries held changes their scatter by n (c - mu')(c - mu')^T - n (c - mu)(c - mu)^T; the
    newcomer then adds its square and the one it replaces takes its own away. With additions first every matrix on the
    way is positive definite.
    """
    xp = namespace(change.x)
    rows, signs = [change.x - change.mean_after], [1.0]
    if change.moved and change.held > 0:
        root = float(np.sqrt(change.held))
        rows.insert(0, root * (change.centre - change.mean_after))
        rows.append(root * (change.centre - change.mean_before))
        signs = [1.0, 1.0, -1.0]
    if change.old is not None:
        rows.append(change.old - change.mean_after)
        signs.append(-1.0)
    return xp.stack(rows), np.array(signs), signs.count(1.0) - 1
