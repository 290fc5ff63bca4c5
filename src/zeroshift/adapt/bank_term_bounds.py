"""The bank term without the bank: bounds that prove that no cosine with a bank entry is negative.

The bank term r_k = sum_j max(0, x.x_j) p_j is the plain product x.s_k, s_k = sum_j p_j x_j, unless some x.x_j is
negative. Two kinds of lower bounds on x.x_j rule that out for nearly all pairs of a sample and a class:

1. `Cones`: for every class, how far its entries are from their weighted mean c, since x.x_j = x.c + x.(x_j - c). Image
   features of a dual encoder share one large direction m, so the distance is split along and across m. With
   x = a m + x' and a >= 0,

       x.(x_j - c) >= a min_j m.(x_j - c) - |x'| max_j |(x_j - c)'|.

   A cone about c alone, without m, leaves several times as many pairs of CLIP features uncertain.
2. `CosineBounds`: all entries lie in one cone about their centre, and a sample whose angle to the centre is at most 90
   degrees minus the half-angle has no negative cosine. For the other samples, let q be the coordinates in the subspace
   where the bank is large, and u, v the rest of sample and entry outside it: x.x_j >= q(x).q(x_j) - |u| |v|, which is
   one thin product. On CLIP features the cone alone leaves a tenth to three quarters of the rows uncertain, the
   subspace hardly any.

For the remaining uncertain pairs `add_excess` adds what the plain product lacks, from the bank itself:
sum_j max(0, c_j) p_j = sum_j c_j p_j + sum_j max(0, -c_j) p_j.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from zeroshift.adapt.statistics import bank_term
from zeroshift.arrays import Array, Backend, namespace, to_numpy

__all__ = [
    "IGNORED",
    "MAX_COSINES",
    "ROUNDING",
    "Cones",
    "CosineBounds",
    "add_excess",
    "bank_cone",
    "bounding_coordinates",
    "can_matter",
    "coordinates",
    "fit_cones",
    "shared_direction",
    "subspace",
    "uncertain_pairs",
]

ROUNDING = 1e-12
"""Slack of the cone bound, relative to the weight of the class: far above rounding, far below what matters."""


SQUARE_ROUNDING = 1e-13
"""Far above the rounding of the squared distance of two unit vectors, if it is computed from their products."""


class Cones(NamedTuple):
    """Per class (K,): the largest distance across m and the largest shortfall along m, times the class's weight."""

    across: Array
    along: Array


def shared_direction(weighted_sums: Array) -> Array:
    """The unit vector m in the direction of the sum of all banks. Any m gives valid bounds; a good one tight bounds."""
    xp = namespace(weighted_sums)
    total = xp.sum(weighted_sums, axis=0)
    length = xp.linalg.vector_norm(total)
    return total / xp.where(length > 0, length, xp.ones_like(length))


def fit_cones(features: Array, occupied: Array, weighted_sums: Array, weights: Array, m: Array) -> Cones:
    """The cones of banks (..., M, d) with slots `occupied` (..., M), sums (..., d) and total weights (...)."""
    xp = namespace(features)
    centres = weighted_sums / xp.where(weights > 0, weights, xp.ones_like(weights))[..., None]
    # From products, without an array of all deviations; the rounding can only widen the cones.
    along = (features @ m - (centres @ m)[..., None]) * occupied
    distances = xp.vecdot(features, features) - 2 * xp.matmul(features, centres[..., None])[..., 0]
    distances = (distances + xp.vecdot(centres, centres)[..., None]) * occupied
    across = xp.sqrt(xp.clip(distances - along * along, min=0.0) + SQUARE_ROUNDING)
    return Cones(weights * xp.max(across, axis=-1), weights * xp.clip(-xp.min(along, axis=-1), min=0.0))


def uncertain_pairs(
    term: Array,
    x: Array,
    m: Array,
    cone: Cones,
    weights: Array,
    rounding: float = ROUNDING,
    scores: Array | None = None,
) -> Array:
    """(n, K): where x.s_k (`term`) is not proved to be the bank term. Cones and weights are (K,) or (n, K).

    With `scores` (n, K), which lack only the bank term, classes whose excess cannot matter are left out (`can_matter`).
    """
    xp = namespace(x)
    along = x @ m
    across = xp.sqrt(xp.clip(xp.sum(x * x, axis=1) - along * along, min=0.0))
    limits = across[:, None] * cone.across + along[:, None] * cone.along + rounding * weights
    limits = xp.where((along < 0)[:, None] & (weights > 0), xp.inf, limits)
    uncertain = term < limits
    if scores is not None:
        uncertain &= can_matter(scores + term, limits - term, weights)
    return uncertain


IGNORED = 1e-5
"""Change of a probability that may be ignored: a tenth of what float32 products may change."""


def can_matter(scores: Array, excess: Array, weights: Array) -> Array:
    """(n, K): where adding the excess, of which bounds are given, could change probabilities by more than `IGNORED`.

    The excess of a class is also at most its weight (K,) or (n, K), because no cosine is below -1.
    """
    xp = namespace(scores)
    least = xp.max(scores, axis=1) - math.log(scores.shape[1] / IGNORED)
    return scores + xp.minimum(excess, weights) > least[:, None]


COORDINATES = 64
"""Dimensions of the subspace."""

CONE_SLACK = 1e-12
"""Far above the rounding of float64 cosines, far below any angle that matters."""

BOUND_SLACK = 1e-2
"""Covers the rounding of float32 products, also where an accelerator rounds them to TF32 or bfloat16."""

RIDGE = 1e-10
"""Added to the Gram matrix of the subspace, relative to its trace: far above rounding."""

LEAST_RIDGE = 1e-30
"""Added in any case: entries that cancel give a Gram matrix of zeros, and then an empty subspace."""


@dataclass(frozen=True)
class CosineBounds:
    """Lower bounds on the cosines of samples with the entries of a bank (K, M, d)."""

    centre: Array
    """Unit vector (d,)."""
    limit: Array
    """Sine of the largest angle of an entry to the centre; infinite if that is a right angle or more."""
    basis: Array
    """Nearly orthonormal rows (m, d)."""
    entries: Array
    """(m + 1, M K) float32, slots outermost: coordinates and length of the rest. An empty slot holds the centre."""
    classes: int

    @classmethod
    def of(cls, features: Array, weights: Array) -> CosineBounds:
        """The bounds for bank features (K, M, d); a slot of weight 0 counts as empty."""
        xp = namespace(features)
        classes, slots, d = features.shape
        flat = xp.reshape(xp.permute_dims(features, (1, 0, 2)), (slots * classes, d))
        used = xp.reshape(weights.T, (-1,)) > 0
        centre, limit = bank_cone(flat, used)
        flat = xp.where(used[:, None], flat, centre)
        basis = subspace(flat, used, centre, COORDINATES)
        entries = xp.astype(coordinates(flat, basis), xp.float32)
        return cls(centre, limit, basis, entries.T, classes)

    def uncertain_rows(self, x: Array, block_rows: int) -> Iterator[tuple[Array, Array]]:
        """Rows of `x` that may have a negative cosine, with (n, K) for which classes. Usually yields nothing.

        Processes `block_rows` rows at a time.
        """
        xp = namespace(x)
        norms = xp.sqrt(xp.vecdot(x, x))
        outside = x @ self.centre < norms * self.limit
        rows = xp.nonzero(outside)[0]
        if rows.shape[0] == 0:
            return
        extended = xp.astype(bounding_coordinates(x, self.basis), xp.float32)[rows]
        starts = range(0, rows.shape[0], block_rows)
        space = xp.empty(
            (min(block_rows, rows.shape[0]), self.entries.shape[1]), dtype=xp.float32, device=Backend.of(x).device
        )
        lowest = []
        for start in starts:
            part = extended[start : start + block_rows]
            lowest.append(xp.min(xp.matmul(part, self.entries, out=space[: part.shape[0]])))
        del space
        # One transfer for all blocks: an accelerator would otherwise wait for each of them.
        for start, low in zip(starts, to_numpy(xp.stack(lowest)), strict=True):
            if low < BOUND_SLACK:
                block = slice(start, start + block_rows)
                uncertain = extended[block] @ self.entries < BOUND_SLACK
                uncertain = xp.any(xp.reshape(uncertain, (uncertain.shape[0], -1, self.classes)), axis=1)
                part = xp.nonzero(xp.any(uncertain, axis=1))[0]
                yield rows[block][part], uncertain[part]


def bank_cone(flat: Array, used: Array) -> tuple[Array, Array]:
    """Centre of the used entries, and the sine of the largest angle to it."""
    xp = namespace(flat)
    total = xp.astype(used, flat.dtype) @ flat
    length = xp.linalg.vector_norm(total)
    centre = total / xp.where(length > 0, length, 1.0)
    lengths = xp.where(used, xp.linalg.vector_norm(flat, axis=1), 1.0)
    narrowest = xp.min(xp.where(used, flat @ centre / lengths, 1.0))
    sine = xp.sqrt(xp.clip(1.0 - narrowest * narrowest, min=0.0)) + CONE_SLACK
    return centre, xp.where(narrowest > CONE_SLACK, sine, xp.inf)


def subspace(flat: Array, used: Array, centre: Array, wanted: int) -> Array:
    """A nearly orthonormal basis (m, d), float64, of roughly the directions in which the bank is largest.

    The bound holds for any basis Q with Q^T Q <= I, which the small ridge ensures. One step of subspace iteration and
    one Cholesky factor are therefore enough. It starts from the centre and entries spread over those `used`: others say
    nothing about the bank, and from copies of one vector only one direction follows.
    """
    xp = namespace(flat)
    wanted = min(wanted, flat.shape[1])
    device = Backend.of(flat).device
    entries = xp.nonzero(used)[0]
    if entries.shape[0] == 0:
        entries = xp.zeros((1,), dtype=xp.int64, device=device)
    spread = xp.astype(xp.linspace(0, entries.shape[0] - 1, wanted - 1, device=device), xp.int64)
    start = xp.concat([centre[None, :], flat[entries[spread]]], axis=0)
    large = xp.astype((start @ flat.T) @ flat, xp.float64, copy=False)
    gram = large @ large.T
    ridge = (RIDGE * xp.linalg.trace(gram) + LEAST_RIDGE) * xp.eye(wanted, dtype=gram.dtype, device=device)
    return xp.linalg.solve(xp.linalg.cholesky(gram + ridge), large)


def coordinates(rows: Array, basis: Array) -> Array:
    """(..., m + 1): coordinates in the subspace, and the length of the part outside it."""
    xp = namespace(rows)
    inside = rows @ basis.T
    outside = xp.sqrt(xp.clip(xp.vecdot(rows, rows) - xp.vecdot(inside, inside), min=0.0))
    return xp.concat([inside, outside[..., None]], axis=-1)


def bounding_coordinates(rows: Array, basis: Array) -> Array:
    """Like `coordinates`; their products with the `coordinates` of other rows are lower bounds on the cosines."""
    extended = coordinates(rows, basis)
    extended[..., -1] *= -1.0
    return extended


MAX_COSINES = 4_000_000
"""Cosines between samples and bank entries computed together: 32 MB in float64."""

PAIRWISE_RATIO = 64
"""On a GPU one large product is faster than single pairs up to this many computed values per needed value."""

DENSE_SHARE = 0.25
"""On a CPU one large product is faster than one product per class from this share of uncertain pairs."""

FEW_CLASSES = 64
"""Up to this many classes are processed one by one in place: copying their banks takes longer."""


def add_excess(
    term: Array, x: Array, bank_features: Array, weights: Array, uncertain: Array, max_cosines: int = MAX_COSINES
) -> None:
    """Add sum_j max(0, -x.x_j) p_j where `uncertain` (n, K); it may be added elsewhere too.

    `term` (n, K) is any sum that contains x.s. At most `max_cosines` cosines are computed together.
    """
    xp = namespace(x)
    count = int(xp.sum(xp.astype(uncertain, xp.int64)))
    if count == 0:
        return
    rows = xp.nonzero(xp.any(uncertain, axis=1))[0]
    classes = xp.nonzero(xp.any(uncertain, axis=0))[0]
    pairs = int(rows.shape[0] * classes.shape[0])
    if Backend.of(x).on_gpu:
        if pairs > PAIRWISE_RATIO * count:
            _add_by_pair(term, x, bank_features, weights, uncertain, max_cosines)
            return
    elif count < DENSE_SHARE * pairs or classes.shape[0] <= FEW_CLASSES:
        _add_by_class(term, x, bank_features, weights, uncertain)
        return
    if 2 * classes.shape[0] < bank_features.shape[0]:
        bank_features, weights = bank_features[classes], weights[classes]
    else:
        # Using the whole bank takes less time and memory than copying most of it.
        classes = xp.arange(bank_features.shape[0], device=Backend.of(x).device)
    block_rows = max(1, max_cosines // (weights.shape[0] * weights.shape[1]))
    for start in range(0, rows.shape[0], block_rows):
        part = rows[start : start + block_rows]
        # The excess of x is the bank term of -x.
        term[part[:, None], classes[None, :]] += bank_term(-x[part], bank_features, weights)


def _add_by_class(term: Array, x: Array, bank_features: Array, weights: Array, uncertain: Array) -> None:
    """One product per class, with the samples uncertain for it."""
    xp = namespace(x)
    by_class = to_numpy(uncertain).T
    for k in np.flatnonzero(by_class.any(axis=1)).tolist():
        rows = Backend.of(x).index(np.flatnonzero(by_class[k]))
        cosines = x[rows] @ bank_features[k].T
        term[rows, k] += xp.where(cosines < 0, -cosines, xp.zeros_like(cosines)) @ weights[k]


def _add_by_pair(
    term: Array, x: Array, bank_features: Array, weights: Array, uncertain: Array, max_cosines: int
) -> None:
    """One product per uncertain pair of a sample and a class."""
    xp = namespace(x)
    rows, classes = xp.nonzero(uncertain)
    block_rows = max(1, max_cosines // (weights.shape[1] * x.shape[1]))
    for start in range(0, rows.shape[0], block_rows):
        i, k = rows[start : start + block_rows], classes[start : start + block_rows]
        cosines = xp.matmul(bank_features[k], x[i][:, :, None])[:, :, 0]
        term[i, k] += xp.sum(xp.clip(-cosines, min=0.0) * weights[k], axis=1)
