"""Soft Gaussians followed through a block of samples in order, without touching their K d^2 numbers for each.

Within a block the sums S_k stay as they were before it. The means mu_k before it and the block's samples X span
whatever the means become, so after the samples 0 to e the sum of class k is

    S_k + (X - 1 mu_k^T)^T B_k (X - 1 mu_k^T),

and with counts c_q before sample q, c = c_0, and D_q = sum over r <= q of y_r / c_r^2, all of class k,

    B[p, q] = y_p y_q (D_e - D_q - 1 / c_q) for p < q,   B[q, q] = y_q + y_q^2 (D_e - D_q),
    (B 1)[q] = y_q c (1 / c_q - (D_e - D_q)),            1^T B 1 = c^2 D_e.

The average over classes is then one product of all S_k with the block's weights, and small products a sample.
"""

from __future__ import annotations

from collections.abc import Iterator

from zeroshift.arrays import Array, Home
from zeroshift.methods.parts.soft_gaussians import Lesson, SoftGaussians

__all__ = ["SoftStream"]


class SoftStream:
    """Samples x (n, d) with soft labels y (n, K), to be learned one after the other.

    >>> import numpy as np
    >>> x, y = np.array([[0.8, 0.6], [0.6, 0.8], [1.0, 0.0]]), np.array([[0.7, 0.3], [0.2, 0.8], [0.9, 0.1]])
    >>> whole, single = (SoftGaussians(np.zeros((2, 2)), 0.5, np.float64) for _ in range(2))
    >>> stream = SoftStream(whole, x, y)
    >>> for row, (means, shared) in enumerate(stream.moments()):
    ...     single.learn(single.together(x[row : row + 1], y[row : row + 1]))
    ...     print(np.allclose(means, single.means), np.allclose(shared, single.shared))
    True True
    True True
    >>> whole.learn(stream.lesson())
    >>> single.learn(single.together(x[2:], y[2:]))
    >>> np.allclose(whole.sums, single.sums)
    True
    """

    def __init__(self, gaussians: SoftGaussians, x: Array, y: Array) -> None:
        xp = Home.of(x).xp
        self._gaussians, self._x, self._y = gaussians, x, y
        self.counts = gaussians.counts + xp.concat([y[:1] * 0, xp.cumulative_sum(y, axis=0)], axis=0)
        """Counts (n + 1, K) before each sample, and after the last."""

    def lesson(self) -> Lesson:
        """What the whole block leaves behind."""
        home, xp = Home.of(self._x), Home.of(self._x).xp
        before, after = self._gaussians.counts, self.counts[-1]
        n = self._x.shape[0]
        earlier = xp.tril(xp.ones((n, n), dtype=xp.float64, device=home.device), k=-1)
        mixed = None
        if n > 1:
            mixed = earlier * self._y.T[:, None, :] / self.counts[:-1].T[:, :, None]
        means = (before[:, None] * self._gaussians.means + self._y.T @ self._x) / after[:, None]
        return Lesson(self._x, self._y, before / self.counts[:-1], mixed, means, after)

    def moments(self) -> Iterator[tuple[Array, Array]]:
        """Means (K, d) and shared covariance (d, d) after each sample but the last."""
        home, xp = Home.of(self._x), Home.of(self._x).xp
        gaussians, x, y, counts = self._gaussians, self._x, self._y, self.counts
        n, d = x.shape
        if n == 1:
            return
        weights = 1 / counts[1:-1]
        sums = xp.reshape(gaussians.sums, (-1, d * d))
        base = xp.reshape(home.bring(weights, sums.dtype) @ sums, (n - 1, d, d))
        start, first = gaussians.means, counts[0]
        reach = xp.cumulative_sum(y / counts[:-1] ** 2, axis=0)
        near = y * (reach + 1 / counts[:-1])
        means = start
        for last in range(n - 1):
            seen, weight = slice(0, last + 1), weights[last]
            means = (counts[last][:, None] * means + y[last][:, None] * x[last]) * weight[:, None]
            ys = y[seen]
            weighted = ys * weight
            # Half of B: above the diagonal, and half the diagonal. The other half is its transpose.
            half = xp.triu((weighted * reach[last]) @ ys.T - weighted @ near[seen].T, k=1)
            own = xp.sum(weighted * (1 + ys * (reach[last] - reach[seen])), axis=1)
            half += 0.5 * own[:, None] * xp.eye(last + 1, dtype=xp.float64, device=home.device)
            along = (weighted * first * (1 / counts[seen] - reach[last] + reach[seen])) @ start
            term = half @ x[seen] - along
            spread = start * (first * (weight * reach[last]) ** 0.5)[:, None]
            # X^T term, its transpose, and the spread of the means, in one product.
            total = xp.concat([x[seen], term, spread]).T @ xp.concat([term, x[seen], spread])
            total += base[last]
            yield means, gaussians.averaged(total, counts[last + 1])
