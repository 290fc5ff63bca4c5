"""Streams that hold every row once, and differ only in the order."""

from __future__ import annotations

import numpy as np

from zeroshift.evaluate.streams.stream import Stream

__all__ = ["random_order"]


def random_order(n_rows: int, seed: int) -> Stream:
    """Every row once, in an order `seed` draws.

    >>> random_order(4, seed=0).rows.tolist()
    [2, 0, 1, 3]
    """
    return Stream(np.random.default_rng(seed).permutation(n_rows))
