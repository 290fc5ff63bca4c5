"""Woodbury's formula on power series: a low-rank update of C(rho) for every ridge near rho0 at once.

With C0 = rho0 (S + rho0 I)^-1 and the ridge rho = rho0 (1 - h), R(h) = C0 + h C0^2 + h^2 C0^3 + ... is
rho0 (S + rho I)^-1. After S' = S + U^T diag(s) U,

    R'(h) = R(h) - R(h) U^T E(h) U R(h),   E(h) = (rho0 diag(1/s) + U R(h) U^T)^-1,

and the coefficient of h^(t-1) of mu^T R'(h) mu is the new moment mu^T C0'^t mu. All that is needed of C0 are the inner
products U C0^t U^T: small matrices, worked on by the host. A series with matrix coefficients times another is a product
with a block Toeplitz matrix, which keeps the number of steps small.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np

from zeroshift.arrays import Array, namespace

__all__ = ["Update", "moments_lost", "rows_and_sample", "update_series"]


class Update(NamedTuple):
    """What an insertion does, in small numbers: r rows, q powers of C0."""

    inverse: np.ndarray
    """E(0) (r, r): C0' = C0 - C0 U^T E(0) U C0."""
    spread: np.ndarray
    """(q r, q r): E(h) as a block Toeplitz matrix. With c a class's products with the rows' powers and w = spread c,
    moment t + 1 falls by the sum of c_i . w_(t - i)."""
    sample_coefficients: np.ndarray
    """(q (r + 1),): C(rho') x as a combination of the powers, which go power by power, rows then sample."""
    own_moments: np.ndarray
    """(q,): moments of the new mean of the class entered."""
    own_cross: float
    """mu'^T C(rho') x for that mean."""


@cache
def _places(q: int) -> tuple[np.ndarray, np.ndarray]:
    """The coefficient at (t, i) of a series' Toeplitz matrix (q: none), and (q q, q) summing a table over i + j = t."""
    t, i, j = np.arange(q)[:, None, None], np.arange(q)[None, :, None], np.arange(q)[None, None, :]
    toeplitz = np.where(t[..., 0] >= i[..., 0], t[..., 0] - i[..., 0], q)
    return toeplitz, (i + j == t).astype(np.float64).reshape(q, q * q).T


def update_series(inner: np.ndarray, signs: np.ndarray, newcomer: int, rho0: float, polynomial: np.ndarray) -> Update:
    """`inner` (r + 1, (q + 1)(r + 1)): products of rows and sample with C0^0, C0^1, ..., C0^q times the same."""
    r, q = len(signs), len(polynomial)
    toeplitz, diagonals = _places(q)
    powers = inner.reshape(r + 1, q + 1, r + 1).transpose(1, 0, 2)[1:]
    # E(h) from the block Toeplitz matrix of its inverse: only the first block column is needed.
    series = np.concatenate([powers[:, :r, :r], np.zeros((1, r, r))])
    series[0] += np.diag(rho0 / signs)
    first = np.zeros((q * r, r))
    first[:r] = np.eye(r)
    e = np.linalg.solve(_blocks(series[toeplitz]), first).reshape(q, r, r)
    e = np.concatenate([e, np.zeros((1, r, r))])
    # The products of the sample, and of the new mean, which is the sample less the row x - mu'.
    sample = powers[:, :r, r]
    mean = sample - powers[:, :r, newcomer]
    spread = _blocks(e[toeplitz])
    after = (spread @ np.stack([sample.ravel(), mean.ravel()], axis=1)).reshape(q, r, 2)
    after_sample, after_mean = after[:, :, 0], after[:, :, 1]
    mean_mean = powers[:, r, r] - 2 * powers[:, r, newcomer] + powers[:, newcomer, newcomer]
    mean_sample = powers[:, r, r] - powers[:, newcomer, r]
    own_moments = mean_mean - (mean @ after_mean.T).ravel() @ diagonals
    own_cross = mean_sample - (mean @ after_sample.T).ravel() @ diagonals
    # C(rho') x = sum_t polynomial_t C0'^t x: each power of C0 gets what all higher terms leave to it.
    shares = np.append(polynomial, 0.0)[_reach(q)]
    coefficients = np.concatenate([-shares @ after_sample, polynomial[:, None]], axis=1)
    return Update(
        e[0],
        spread,
        coefficients.ravel(),
        own_moments,
        float(own_cross @ polynomial),
    )


@cache
def _reach(q: int) -> np.ndarray:
    """At (i, l): the term i + l, or q where there is none."""
    return np.minimum(np.arange(q)[:, None] + np.arange(q), q)


def _blocks(tiles: np.ndarray) -> np.ndarray:
    """(a, b, r, r) tiles as one (a r, b r) matrix."""
    a, b, r, _ = tiles.shape
    return tiles.transpose(0, 2, 1, 3).reshape(a * r, b * r)


def rows_and_sample(powers: Array, coefficients: Array, rank: int) -> Array:
    """(q r + 1, d): the powers of an update's rows, and the sample's C(rho) x, out of all powers (q (r + 1), d)."""
    xp = namespace(powers)
    d = powers.shape[1]
    rows = xp.reshape(xp.reshape(powers, (-1, rank + 1, d))[:, :rank, :], (-1, d))
    return xp.concat([rows, (coefficients @ powers)[None, :]])


def moments_lost(steps: Array, spread: Array, degree: int) -> Array:
    """(q, K): what an update takes from all moments; `steps` (q r, K) are the means' products with the rows' powers."""
    xp = namespace(steps)
    rank = steps.shape[0] // degree
    answers = xp.reshape(xp.flip(xp.reshape(spread @ steps, (degree, rank, -1)), axis=0), (degree * rank, -1))
    # The sum of c_i . w_(t - i) over i <= t; with the answers backwards both factors are whole slices.
    lost = [xp.sum(steps[: (t + 1) * rank] * answers[(degree - 1 - t) * rank :], axis=0) for t in range(degree)]
    return xp.stack(lost)
