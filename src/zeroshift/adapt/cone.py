"""Knowing without touching the bank that none of its cosines is negative.

Keep for every class how far its entries are from their weighted mean c: x.x_j = x.c + x.(x_j - c). Image features of a
dual encoder share one large direction m, so the distance is split along and across it: with x = a m + x', a >= 0, every

    x.(x_j - c) >= a min_j m.(x_j - c) - |x'| max_j |(x_j - c)'|.

Without m, by the angle of a cone about c alone, several times as many pairs of CLIP features stay in doubt.
"""

from __future__ import annotations

from typing import NamedTuple

from zeroshift.arrays import Array, namespace

__all__ = ["Cones", "cones", "doubtful", "shared_direction"]

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
