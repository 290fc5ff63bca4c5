"""Which samples may have a negative cosine with a bank entry, told from a few numbers a sample and an entry.

r_k = sum_j max(0, x.x_j) p_j is the plain product x.(sum_j p_j x_j) unless some x.x_j is negative. Two tests clear
nearly all of them, the first for one product with a single vector:

1. All entries lie in a cone about their centre; a sample within 90 degrees minus its half-angle is clear of them all.
2. With q the coordinates in the subspace where the bank is large and u, v what is left of sample and entry outside it,
   x.x_j >= q(x).q(x_j) - |u| |v|, which is one thin product of extended coordinates.

On real CLIP features the cone alone leaves a tenth to three quarters of the rows in doubt, the subspace hardly any.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from zeroshift.arrays import Array, Home, namespace, to_numpy

__all__ = ["Sketch", "against", "coordinates", "subspace"]

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
