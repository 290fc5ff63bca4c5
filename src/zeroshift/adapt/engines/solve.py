"""Many moments of the precision at once, as matrix products.

Within a block the scatter is S + the first r_i of the block's changes U^T diag(s) U. At a ridge rho, with
C = rho (S + rho I)^-1 and H = rho diag(1/s) + U C U^T = L D L^T without pivoting, the leading parts of L and D belong
to the earlier moments, so

    C_i = C - Q_i^T D_i^-1 Q_i,   Q = L^-1 U C,  of which the first r_i rows count.

Each row of features has its own r_i and its own ridge between the nodes; both become a mask and weights in one product.
Arrays may carry leading dimensions: several blocks at once, which is what a GPU wants.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from zeroshift.adapt.engines.factors import ldl_inverse, positive_inverse
from zeroshift.adapt.engines.story import Problem
from zeroshift.arrays import Array, Home

__all__ = ["solve", "solve_all"]


def solve_all(problems: Sequence[Problem]) -> list[tuple[Array, Array]]:
    """`solve` for several blocks with equally many ridges at once, made equally large by changes and rows of zeros."""
    home = Home.of(problems[0].scatter)
    bring, stack = home.bring, home.xp.stack
    n, r = max(len(p.counted) for p in problems), max(len(p.signs) for p in problems)
    k = max(p.means.shape[0] for p in problems)
    counted = home.index(np.stack([np.pad(p.counted, (0, n - len(p.counted))) for p in problems]))
    cross, quadratic = solve(
        stack([p.scatter for p in problems]),
        bring(np.stack([p.ridges for p in problems])),
        stack([_padded(p.rows, r) for p in problems]),
        bring(np.stack([np.pad(p.signs, (0, r - len(p.signs)), constant_values=1.0) for p in problems])),
        bring(np.stack([np.pad(p.weights, ((0, n - len(p.weights)), (0, 0))) for p in problems])),
        home.xp.astype(home.xp.arange(r, device=home.device) < counted[:, :, None], home.xp.float64),
        stack([_padded(p.x, n) for p in problems]),
        stack([_padded(p.means, k) for p in problems]),
    )
    return [
        (cross[i, : len(p.counted), : p.means.shape[0]], quadratic[i, : len(p.counted), : p.means.shape[0]])
        for i, p in enumerate(problems)
    ]


def _padded(rows: Array, count: int) -> Array:
    if rows.shape[0] == count:
        return rows
    home = Home.of(rows)
    return home.xp.concat([rows, home.zeros((count - rows.shape[0], rows.shape[1]))])


def solve(
    scatter: Array, ridges: Array, rows: Array, signs: Array, weights: Array, in_force: Array, x: Array, means: Array
) -> tuple[Array, Array]:
    """mu^T C_i x_i and mu^T C_i mu, both (..., n, K').

    scatter (..., d, d); ridges (..., q); rows (..., r, d), signs (..., r); the ridges' weights (..., n, q) and in_force
    (..., n, r) of 0 and 1; x (..., n, d); means (..., K', d).
    """
    home = Home.of(scatter)
    xp = home.xp
    transpose = xp.matrix_transpose
    d, r, n, q = scatter.shape[-1], rows.shape[-2], x.shape[-2], ridges.shape[-1]
    lead = tuple(scatter.shape[:-2])
    identity = xp.eye(d, dtype=xp.float64, device=home.device)
    ridge = ridges[..., None, None]
    contraction = ridge * positive_inverse(scatter[..., None, :, :] + ridge * identity)
    # At the nodes first, (..., q, *, *); the plain parts.
    turned = xp.matmul(means[..., None, :, :], contraction)
    quadratic = xp.matmul(weights, xp.sum(turned * means[..., None, :, :], axis=-1))
    turned_x = xp.matmul(x[..., None, :, :], contraction)
    solved = xp.sum(transpose(weights)[..., None] * turned_x, axis=-3)
    if r == 0:
        return xp.matmul(solved, transpose(means)), quadratic
    onto = xp.matmul(rows[..., None, :, :], contraction)
    diagonal = xp.eye(r, dtype=xp.float64, device=home.device) * (ridge / signs[..., None, None, :])
    inverse, pivots = ldl_inverse(xp.matmul(onto, transpose(rows)[..., None, :, :]) + diagonal)
    reduced = xp.reshape(xp.matmul(inverse, onto), (*lead, q * r, d))
    # ... then all nodes in one product: node weights, mask and pivots make one (n, q r) matrix.
    share = weights[..., :, :, None] * in_force[..., :, None, :] / pivots[..., None, :, :]
    share = xp.reshape(share, (*lead, n, q * r))
    along_means = xp.matmul(reduced, transpose(means))
    solved = solved - xp.matmul(share * transpose(xp.matmul(reduced, transpose(x))), reduced)
    along_means *= along_means
    quadratic = quadratic - xp.matmul(share, along_means)
    return xp.matmul(solved, transpose(means)), quadratic
