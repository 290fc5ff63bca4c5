"""Woodbury's formula on power series: a low-rank update of C(rho) for all ridges near rho0.

With C0 = rho0 (S + rho0 I)^-1 and the ridge rho = rho0 (1 - h), R(h) = C0 + h C0^2 + h^2 C0^3 + ... is
rho0 (S + rho I)^-1. After S' = S + U^T diag(s) U,

    R'(h) = R(h) - R(h) U^T E(h) U R(h),   E(h) = (rho0 diag(1/s) + U R(h) U^T)^-1,

and the coefficient of h^(t-1) of mu^T R'(h) mu is the new moment mu^T C0'^t mu. Only the inner products U C0^t U^T
are needed: small matrices, processed on the host. A product of two series with matrix coefficients is a product with a
block Toeplitz matrix, which keeps the number of steps small.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np

from zeroshift.arrays import Array, namespace

__all__ = ["PrecisionUpdate", "compute_update", "moment_decrease", "rows_and_sample"]


class PrecisionUpdate(NamedTuple):
    """The small matrices of an update by r rows, with q powers of C0."""

    inverse: np.ndarray
    """E(0) (r, r): C0' = C0 - C0 U^T E(0) U C0."""
    spread: np.ndarray
    """(q r, q r): E(h) as a block Toeplitz matrix. With c the products of a class mean with the rows' powers and
    w = spread c, moment t + 1 decreases by the sum of c_i . w_(t - i)."""
    sample_coefficients: np.ndarray
    """(q (r + 1),): C(rho') x as a combination of the powers, ordered by power, then rows and sample."""
    own_moments: np.ndarray
    """(q,): moments of the new mean of the class that the sample entered."""
    own_cross: float
    """mu'^T C(rho') x for that mean."""


@cache
def _toeplitz_indices(q: int) -> tuple[np.ndarray, np.ndarray]:
    """Index of the coefficient at (t, i) of a Toeplitz matrix (q: zero), and (q q, q) summing over i + j = t."""
    t, i, j = np.arange(q)[:, None, None], np.arange(q)[None, :, None], np.arange(q)[None, None, :]
    toeplitz = np.where(t[..., 0] >= i[..., 0], t[..., 0] - i[..., 0], q)
    return toeplitz, (i + j == t).astype(np.float64).reshape(q, q * q).T


def compute_update(
    inner: np.ndarray, signs: np.ndarray, new_row: int, rho0: float, polynomial: np.ndarray
) -> PrecisionUpdate:
    """`inner` (r + 1, (q + 1)(r + 1)): products of rows and sample with C0^0, C0^1, ..., C0^q times the same."""
    r, q = len(signs), len(polynomial)
    toeplitz, diagonals = _toeplitz_indices(q)
    powers = inner.reshape(r + 1, q + 1, r + 1).transpose(1, 0, 2)[1:]
    # E(h) from the block Toeplitz matrix of its inverse: only the first block column is needed.
    series = np.concatenate([powers[:, :r, :r], np.zeros((1, r, r))])
    series[0] += np.diag(rho0 / signs)
    first = np.zeros((q * r, r))
    first[:r] = np.eye(r)
    e = np.linalg.solve(_assemble(series[toeplitz]), first).reshape(q, r, r)
    e = np.concatenate([e, np.zeros((1, r, r))])
    # The products of the sample and of the new mean, which is the sample minus the row x - mu'.
    sample = powers[:, :r, r]
    mean = sample - powers[:, :r, new_row]
    spread = _assemble(e[toeplitz])
    solved = (spread @ np.stack([sample.ravel(), mean.ravel()], axis=1)).reshape(q, r, 2)
    solved_sample, solved_mean = solved[:, :, 0], solved[:, :, 1]
    mean_mean = powers[:, r, r] - 2 * powers[:, r, new_row] + powers[:, new_row, new_row]
    mean_sample = powers[:, r, r] - powers[:, new_row, r]
    own_moments = mean_mean - (mean @ solved_mean.T).ravel() @ diagonals
    own_cross = mean_sample - (mean @ solved_sample.T).ravel() @ diagonals
    # C(rho') x = sum_t polynomial_t C0'^t x; each power of C0 receives contributions from all higher terms.
    shifted = np.append(polynomial, 0.0)[_term_indices(q)]
    coefficients = np.concatenate([-shifted @ solved_sample, polynomial[:, None]], axis=1)
    return PrecisionUpdate(
        e[0],
        spread,
        coefficients.ravel(),
        own_moments,
        float(own_cross @ polynomial),
    )


@cache
def _term_indices(q: int) -> np.ndarray:
    """At (i, l): the term i + l, or q if there is none."""
    return np.minimum(np.arange(q)[:, None] + np.arange(q), q)


def _assemble(tiles: np.ndarray) -> np.ndarray:
    """(a, b, r, r) tiles as one (a r, b r) matrix."""
    a, b, r, _ = tiles.shape
    return tiles.transpose(0, 2, 1, 3).reshape(a * r, b * r)


def rows_and_sample(powers: Array, coefficients: Array, rank: int) -> Array:
    """(q r + 1, d): the powers of the rows, then C(rho) x of the sample, from all powers (q (r + 1), d)."""
    xp = namespace(powers)
    d = powers.shape[1]
    rows = xp.reshape(xp.reshape(powers, (-1, rank + 1, d))[:, :rank, :], (-1, d))
    return xp.concat([rows, (coefficients @ powers)[None, :]])


def moment_decrease(steps: Array, spread: Array, degree: int) -> Array:
    """(q, K): decrease of all moments; `steps` (q r, K) are the products of the means with the rows' powers."""
    xp = namespace(steps)
    rank = steps.shape[0] // degree
    reversed_solutions = xp.reshape(
        xp.flip(xp.reshape(spread @ steps, (degree, rank, -1)), axis=0), (degree * rank, -1)
    )
    # The sum of c_i . w_(t - i) over i <= t; with the second factor reversed, both are contiguous slices.
    decrease = [
        xp.sum(steps[: (t + 1) * rank] * reversed_solutions[(degree - 1 - t) * rank :], axis=0) for t in range(degree)
    ]
    return xp.stack(decrease)
