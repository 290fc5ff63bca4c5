"""Knowing without touching the bank that none of its cosines is negative.

Keep for every class how far its entries are from their weighted mean c: x.x_j = x.c + x.(x_j - c). Image features of a
dual encoder share one large direction m, so the distance is split along and across it: with x = a m + x', a >= 0, every

    x.(x_j - c) >= a min_j m.(x_j - c) - |x'| max_j |(x_j - c)'|.

Without m, by the angle of a cone about c alone, several times as many pairs of CLIP features stay in doubt.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from zeroshift.adapt.statistics import bank_term
from zeroshift.arrays import Array, Home, namespace, to_numpy

__all__ = [
    "WORK_NUMBERS",
    "Cones",
    "Sketch",
    "add_excess",
    "against",
    "cones",
    "coordinates",
    "doubtful",
    "shared_direction",
    "subspace",
]

ROUNDING = 1e-12
"""Slack of the certificate, relative to the class's weight: far above rounding, far below what matters."""


class Cones(NamedTuple):
    """Of every class (K,): the largest distance across m, the largest shortfall along it, both times its weight."""

    across: Array
    along: Array


def shared_direction(weighted_sums: Array) -> Array:
    """The unit vector m along which all banks agree. Any gives a valid certificate, a good one a tight one."""
    xp = namespace(weighted_sums)
    total = xp.sum(weighted_sums, axis=0)
    length = xp.linalg.vector_norm(total)
    return total / xp.where(length > 0, length, xp.ones_like(length))


def cones(features: Array, occupied: Array, weighted_sums: Array, weights: Array, m: Array) -> Cones:
    """The cones of banks (..., M, d) with slots `occupied` (..., M), sums (..., d) and total weights (...)."""
    xp = namespace(features)
    safe = xp.where(weights > 0, weights, xp.ones_like(weights))
    apart = features - (weighted_sums / safe[..., None])[..., None, :]
    apart = apart * occupied[..., None]
    along = apart @ m
    across = xp.sqrt(xp.clip(xp.sum(apart * apart, axis=-1) - along * along, min=0.0))
    return Cones(weights * xp.max(across, axis=-1), weights * xp.clip(-xp.min(along, axis=-1), min=0.0))


def doubtful(term: Array, x: Array, m: Array, cone: Cones, weights: Array) -> Array:
    """(n, K): where x.s_k (`term`) is not certified to be the bank term. Cones and weights (K,), or (n, K)."""
    xp = namespace(x)
    along = x @ m
    across = xp.sqrt(xp.clip(xp.sum(x * x, axis=1) - along * along, min=0.0))
    limits = across[:, None] * cone.across + along[:, None] * cone.along + ROUNDING * weights
    return (term < limits) | ((along < 0)[:, None] & (weights > 0))


# Which samples may have a negative cosine with a bank entry, done from a few numbers a sample and an entry.
#
# r_k = sum_j max(0, x.x_j) p_j is the plain product x.(sum_j p_j x_j) unless some x.x_j is negative. Two tests clear
# nearly all of them, the first for one product with a single vector:
#
# 1. All entries lie in a cone about their centre; a sample within 90 degrees minus its half-angle is clear of them
# all.
# 2. With q the coordinates in the subspace where the bank is large and u, v what is left of sample and entry outside
# it,
# x.x_j >= q(x).q(x_j) - |u| |v|, which is one thin product of extended coordinates.
#
# On real CLIP features the cone alone leaves a tenth to three quarters of the rows in doubt, the subspace hardly any.


COORDINATES = 64
"""Dimensions of the subspace."""

CONE_SLACK = 1e-12
"""Far above the rounding of float64 cosines, far below any angle that matters."""

SKETCH_SLACK = 1e-2
"""Bounds are products of float32, which an accelerator may be set to round to TF32 or bfloat16: this covers all."""

RIDGE = 1e-10
"""Of the subspace's Gram matrix, relative to its trace: far above rounding."""

LEAST_RIDGE = 1e-30
"""Entries that cancel to nothing have a Gram matrix of zeros; theirs is the empty subspace."""


@dataclass(frozen=True)
class Sketch:
    """A bank (K, M, d) reduced to what the two tests need."""

    centre: Array
    """Unit vector (d,)."""
    limit: Array
    """Sine of the largest angle of an entry to the centre; infinite where that is a right angle or more."""
    basis: Array
    """Nearly orthonormal rows (m, d)."""
    entries: Array
    """(m + 1, M K) float32, slots outermost: coordinates and length of the rest. An empty slot stands as the centre."""
    classes: int

    @classmethod
    def of(cls, features: Array, weights: Array) -> Sketch:
        """Of bank features (K, M, d); a slot of weight 0 counts as empty."""
        xp = namespace(features)
        classes, slots, d = features.shape
        flat = xp.reshape(xp.permute_dims(features, (1, 0, 2)), (slots * classes, d))
        used = xp.reshape(weights.T, (-1,)) > 0
        centre, limit = _cone(flat, used)
        flat = xp.where(used[:, None], flat, centre)
        basis = subspace(flat, centre, COORDINATES)
        entries = xp.astype(coordinates(flat, basis), xp.float32)
        return cls(centre, limit, basis, entries.T, classes)

    def doubtful(self, x: Array, at_once: int) -> Iterator[tuple[Array, Array]]:
        """(rows, (n, K) whether a class may hold an entry with a negative cosine): what neither test clears of `x`.

        Looks at `at_once` rows at a time; usually there is nothing to yield.
        """
        xp = namespace(x)
        norms = xp.sqrt(xp.vecdot(x, x))
        outside = x @ self.centre < norms * self.limit
        rows = xp.nonzero(outside)[0]
        if rows.shape[0] == 0:
            return
        extended = xp.astype(against(x, self.basis), xp.float32)[rows]
        starts = range(0, rows.shape[0], at_once)
        space = xp.empty(
            (min(at_once, rows.shape[0]), self.entries.shape[1]), dtype=xp.float32, device=Home.of(x).device
        )
        lowest = []
        for start in starts:
            some = extended[start : start + at_once]
            lowest.append(xp.min(xp.matmul(some, self.entries, out=space[: some.shape[0]])))
        del space
        # Read all together: an accelerator would wait for each of them otherwise.
        for start, low in zip(starts, to_numpy(xp.stack(lowest)), strict=True):
            if low < SKETCH_SLACK:
                block = slice(start, start + at_once)
                doubts = extended[block] @ self.entries < SKETCH_SLACK
                doubts = xp.any(xp.reshape(doubts, (doubts.shape[0], -1, self.classes)), axis=1)
                some = xp.nonzero(xp.any(doubts, axis=1))[0]
                yield rows[block][some], doubts[some]


def _cone(flat: Array, used: Array) -> tuple[Array, Array]:
    """Centre of the entries in use, and the sine of the largest angle to it."""
    xp = namespace(flat)
    total = xp.astype(used, flat.dtype) @ flat
    length = xp.linalg.vector_norm(total)
    centre = total / xp.where(length > 0, length, 1.0)
    lengths = xp.where(used, xp.linalg.vector_norm(flat, axis=1), 1.0)
    narrowest = xp.min(xp.where(used, flat @ centre / lengths, 1.0))
    sine = xp.sqrt(xp.clip(1.0 - narrowest * narrowest, min=0.0)) + CONE_SLACK
    return centre, xp.where(narrowest > CONE_SLACK, sine, xp.inf)


def subspace(flat: Array, centre: Array, wanted: int) -> Array:
    """A nearly orthonormal basis (m, d) of roughly the directions in which the bank is largest.

    The test holds for any basis Q with Q^T Q <= I, which the small ridge ensures, so one step of subspace iteration and
    one Cholesky factor do. It starts from the centre and entries spread over the bank.
    """
    xp = namespace(flat)
    count, d = flat.shape
    wanted = min(wanted, d)
    device = Home.of(flat).device
    spread = xp.astype(xp.linspace(0, count - 1, wanted - 1, device=device), xp.int64)
    start = xp.concat([centre[None, :], flat[spread]], axis=0)
    large = (start @ flat.T) @ flat
    gram = large @ large.T
    ridge = (RIDGE * xp.linalg.trace(gram) + LEAST_RIDGE) * xp.eye(wanted, dtype=flat.dtype, device=device)
    return xp.linalg.solve(xp.linalg.cholesky(gram + ridge), large)


def coordinates(rows: Array, basis: Array) -> Array:
    """(..., m + 1): coordinates in the subspace, and the length of what lies outside it."""
    xp = namespace(rows)
    inside = rows @ basis.T
    outside = xp.sqrt(xp.clip(xp.sum(rows * rows, axis=-1) - xp.sum(inside * inside, axis=-1), min=0.0))
    return xp.concat([inside, outside[..., None]], axis=-1)


def against(rows: Array, basis: Array) -> Array:
    """`coordinates` whose products with those of other rows bound the rows' own products from below."""
    extended = coordinates(rows, basis)
    extended[..., -1] *= -1.0
    return extended


# What the plain product x.s_k, s_k = sum_j p_j x_j, lacks of the bank term where some cosine is negative.
#
# sum_j max(0, c_j) p_j = sum_j c_j p_j + sum_j max(0, -c_j) p_j: the plain product plus an excess, which needs the
# bank
# itself and is therefore only summed where no certificate rules it out.


WORK_NUMBERS = 4_000_000
"""Cosines between samples and bank entries held at once: 32 MB in float64."""

SCATTERED = 64
"""On a GPU one large product beats gathering single pairs until it computes this many values for every one needed."""

DENSE = 0.25
"""On a processor it beats going class by class from this share of pairs in doubt."""

FEW_CLASSES = 64
"""Up to this many classes they are looked at where they are, one by one: a copy of their banks takes longer."""


def add_excess(
    term: Array, x: Array, bank_features: Array, weights: Array, doubtful: Array, work_numbers: int = WORK_NUMBERS
) -> None:
    """Add sum_j max(0, -x.x_j) p_j wherever `doubtful` (n, K); elsewhere it may be added too.

    `term` (n, K) may hold anything that contains x.s as a summand. At most `work_numbers` cosines are held at once.
    """
    xp = namespace(x)
    count = int(xp.sum(xp.astype(doubtful, xp.int64)))
    if count == 0:
        return
    rows = xp.nonzero(xp.any(doubtful, axis=1))[0]
    classes = xp.nonzero(xp.any(doubtful, axis=0))[0]
    pairs = int(rows.shape[0] * classes.shape[0])
    if Home.of(x).on_gpu:
        if pairs > SCATTERED * count:
            _pair_by_pair(term, x, bank_features, weights, doubtful, work_numbers)
            return
    elif count < DENSE * pairs or classes.shape[0] <= FEW_CLASSES:
        _class_by_class(term, x, bank_features, weights, doubtful)
        return
    if 2 * classes.shape[0] < bank_features.shape[0]:
        bank_features, weights = bank_features[classes], weights[classes]
    else:
        # All of the bank is less work than a copy of most of it, and less memory.
        classes = xp.arange(bank_features.shape[0], device=Home.of(x).device)
    at_once = max(1, work_numbers // (weights.shape[0] * weights.shape[1]))
    for start in range(0, rows.shape[0], at_once):
        some = rows[start : start + at_once]
        # The excess of x is the bank term of -x.
        term[some[:, None], classes[None, :]] += bank_term(-x[some], bank_features, weights)


def _class_by_class(term: Array, x: Array, bank_features: Array, weights: Array, doubtful: Array) -> None:
    """Each class with the samples concerned."""
    xp = namespace(x)
    by_class = to_numpy(doubtful).T
    for k in np.flatnonzero(by_class.any(axis=1)).tolist():
        rows = Home.of(x).index(np.flatnonzero(by_class[k]))
        cosines = x[rows] @ bank_features[k].T
        term[rows, k] += xp.where(cosines < 0, -cosines, xp.zeros_like(cosines)) @ weights[k]


def _pair_by_pair(
    term: Array, x: Array, bank_features: Array, weights: Array, doubtful: Array, work_numbers: int
) -> None:
    xp = namespace(x)
    rows, classes = xp.nonzero(doubtful)
    at_once = max(1, work_numbers // (weights.shape[1] * x.shape[1]))
    for start in range(0, rows.shape[0], at_once):
        i, k = rows[start : start + at_once], classes[start : start + at_once]
        cosines = xp.matmul(bank_features[k], x[i][:, :, None])[:, :, 0]
        term[i, k] += xp.sum(xp.clip(-cosines, min=0.0) * weights[k], axis=1)
