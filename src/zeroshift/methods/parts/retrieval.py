"""What RA-TTA looks up: the descriptions most views of an image are like, the classes they speak for, and images of an
index like those. Banks and indices are read in blocks, so that their size is no one's memory."""

from __future__ import annotations

import math
from typing import NamedTuple

from zeroshift.arrays import Array, Home, namespace
from zeroshift.methods.parts.rows import unit_rows
from zeroshift.methods.parts.top_k import top_k

__all__ = ["Candidates", "candidates", "largest_cosines", "quantile_cosines"]

WORK_NUMBERS = 4_000_000
"""Cosines, or coordinates of rows, held at once."""


def quantile_cosines(views: Array, bank: Array, level: float) -> Array:
    """For each image of views (B, V, d) and row of a bank (R, d), a quantile of the views' cosines with it: (B, R).

    Between two views it is interpolated linearly.

    >>> import numpy as np
    >>> quantile_cosines(np.array([[[1.0, 0.0], [0.6, 0.8], [0.0, 1.0]]]), np.eye(2), 0.75)
    array([[0.8, 0.9]])
    """
    xp = namespace(views)
    images, n_views, dimension = views.shape
    position = level * (n_views - 1)
    below = math.floor(position)
    above, share = min(below + 1, n_views - 1), position - below
    size = max(1, WORK_NUMBERS // max(images * n_views, dimension))
    found = []
    for start in range(0, bank.shape[0], size):
        block = Home.of(views).bring(bank[start : start + size], views.dtype)
        cosines = xp.sort(block[None, :, :] @ xp.matrix_transpose(views), axis=-1)
        found.append(cosines[..., below] + share * (cosines[..., above] - cosines[..., below]))
    return xp.concat(found, axis=1)


def largest_cosines(queries: Array, index: Array, k: int) -> Array:
    """Of each query (L, d) with the k rows of an index (n, d) nearest to it, nearest first: (L, k). Exact.

    >>> import numpy as np
    >>> largest_cosines(np.eye(2), np.array([[0.8, 0.6], [0.0, 1.0], [1.0, 0.0]]), 2)
    array([[1. , 0.8],
           [1. , 0.6]])
    """
    xp = namespace(queries)
    best = None
    size = max(1, WORK_NUMBERS // max(queries.shape))
    for start in range(0, index.shape[0], size):
        block = Home.of(queries).bring(index[start : start + size], queries.dtype)
        found, _ = top_k(queries @ block.T, k)
        best = found if best is None else top_k(xp.concat([best, found], axis=1), k)[0]
    return best


class Candidates(NamedTuple):
    """The classes enough of an image's n descriptions speak for, L in all, of B images."""

    images: Array
    """(L,), whose candidate it is."""
    places: Array
    """(L,), which of the image's descriptions is the first of the class."""
    prototypes: Array
    """(B, n, d), at each description's place the direction of all the image's descriptions of that class."""
    shared: Array
    """(B, d), the direction of all candidates' descriptions together; zero where there is none."""


def candidates(descriptions: Array, classes: Array, least: int) -> Candidates:
    """The classes (B, n) of which at least `least` are among each image's n descriptions (B, n, d).

    >>> import numpy as np
    >>> found = candidates(np.eye(3)[None], np.array([[4, 7, 4]]), 2)
    >>> found.images, found.places, found.shared.round(3)
    (array([0]), array([0]), array([[0.707, 0.   , 0.707]]))
    """
    xp = namespace(descriptions)
    same = classes[:, :, None] == classes[:, None, :]
    enough = xp.sum(xp.astype(same, xp.int64), axis=-1) >= least
    order = xp.arange(classes.shape[1], device=Home.of(classes).device)
    first = ~xp.any(same & (order[None, :] < order[:, None]), axis=-1)
    images, places = xp.nonzero(enough & first)
    kept = xp.astype(enough, descriptions.dtype)[:, :, None]
    return Candidates(
        images,
        places,
        unit_rows(xp.astype(same, descriptions.dtype) @ descriptions),
        unit_rows(xp.sum(kept * descriptions, axis=1)),
    )
