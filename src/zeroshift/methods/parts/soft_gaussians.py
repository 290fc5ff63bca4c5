"""Gaussians learned from soft labels, as DOTA defines them: what some samples leave behind.

A sample x with soft labels y changes every class k, with the mean as it was before the sample:

    S_k += y_k (x - mu_k)(x - mu_k)^T,   mu_k = (c_k mu_k + y_k x) / (c_k + y_k),   c_k += y_k,

and the shared covariance is the mean over classes of (sigma I + S_k) / c_k.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from zeroshift.arrays import Array, Home
from zeroshift.methods.parts.positive import add_to_diagonal

__all__ = ["Lesson", "SoftGaussians"]

WORK_NUMBERS, GPU_WORK_NUMBERS = 2_000_000, 100_000_000
"""Numbers of the S_k changed together."""


class Lesson(NamedTuple):
    """Samples x (n, d) with soft labels y (n, K), and the mean of class k each of them is compared with, in terms of
    the mean mu_k before the first: own[i, k] mu_k + sum_j mixed[k, i, j] x_j; no `mixed` means zeros."""

    x: Array
    y: Array
    own: Array
    mixed: Array | None
    means: Array
    """Means (K, d) afterwards."""
    counts: Array
    """Counts (K,) afterwards."""


class Part(NamedTuple):
    """How far a lesson has come: the sums of the classes before `stop` are changed, but for those of `part`, which are
    to become `sums`, unless that is None. `total` is the sum of all their S_k / c_k."""

    part: slice
    sums: Array | None
    total: Array


class Learned(NamedTuple):
    """Means (K, d), counts (K,) and the shared covariance (d, d) before the lesson under way, if there is one."""

    means: Array
    counts: Array
    shared: Array
    under_way: Part | None = None


class SoftGaussians:
    """Means (K, d), counts (K,), the sums S_k (K, d, d) in `dtype` and the shared covariance (d, d).

    >>> import numpy as np
    >>> gaussians = SoftGaussians(np.zeros((2, 2)), sigma=0.5, dtype=np.float64)
    >>> gaussians.learn(gaussians.together(np.array([[0.8, 0.6]]), np.array([[0.731059, 0.268941]])))
    >>> gaussians.means.round(6)
    array([[0.337855, 0.253391],
           [0.169553, 0.127165]])
    >>> gaussians.shared.round(6)
    array([[0.544398, 0.152222],
           [0.152222, 0.455602]])
    """

    def __init__(self, means: Array, sigma: float, dtype: Any) -> None:
        home = Home.of(means)
        classes, d = means.shape
        self.sigma = sigma
        # Without the sigma I every class starts from: zeros take no memory until they are written to.
        self.sums = home.zeros((classes, d, d), dtype)
        counts = home.zeros((classes,)) + 1.0
        self.learned = Learned(means, counts, self.averaged(home.zeros((d, d)), counts))

    @property
    def means(self) -> Array:
        return self.learned.means

    @property
    def counts(self) -> Array:
        return self.learned.counts

    @property
    def shared(self) -> Array:
        return self.learned.shared

    def averaged(self, total: Array, counts: Array) -> Array:
        """The shared covariance, `total` being the sum over classes of S_k / c_k, which becomes it."""
        total /= counts.shape[0]
        return add_to_diagonal(total, self.sigma * Home.of(total).xp.mean(1 / counts))

    def together(self, x: Array, y: Array) -> Lesson:
        """Samples learned at once, all with the present means."""
        xp = Home.of(x).xp
        counts = self.counts + xp.sum(y, axis=0)
        means = (self.counts[:, None] * self.means + y.T @ x) / counts[:, None]
        return Lesson(x, y, xp.ones_like(y), None, means, counts)

    def learn(self, lesson: Lesson) -> None:
        """Take the samples in. Where that was interrupted, the same lesson again goes on from there, and must, before
        anything else is done. Once it is learned, the same again changes nothing."""
        before = self.learned
        if before.counts is lesson.counts:
            return
        home, (classes, d) = Home.of(self.sums), before.means.shape
        size = max(1, (GPU_WORK_NUMBERS if home.on_gpu else WORK_NUMBERS) // (d * d))
        weights = home.bring(1 / lesson.counts, self.sums.dtype)
        done = before.under_way or Part(slice(0, 0), None, home.zeros((d, d)))
        while True:
            if done.sums is not None:
                self.sums[done.part] = done.sums
                done = done._replace(sums=None)  # written: the memory is needed for the next
                self.learned = before._replace(under_way=done)
            if done.part.stop >= classes:
                break
            part = slice(done.part.stop, done.part.stop + size)
            sums = self._squares(lesson, part)
            sums += self.sums[part]
            share = home.xp.reshape(weights[part] @ home.xp.reshape(sums, (-1, d * d)), (d, d))
            # From here on the part is to be written, however often it takes.
            done = Part(part, sums, done.total + share)
            self.learned = before._replace(under_way=done)
            del sums
        shared = self.averaged(home.copy(done.total), lesson.counts)
        self.learned = Learned(lesson.means, lesson.counts, shared)

    def _squares(self, lesson: Lesson, part: slice) -> Array:
        """sum_i y_ik (x_i - mu_k)(x_i - mu_k)^T of some classes (k, d, d), each sample with its own means."""
        home = Home.of(self.means)
        transpose, matmul = home.xp.matrix_transpose, home.xp.matmul
        centred = lesson.x - transpose(lesson.own[:, part])[:, :, None] * self.means[part][:, None, :]
        if lesson.mixed is not None:
            centred -= matmul(lesson.mixed[part], lesson.x)
        centred *= (transpose(lesson.y[:, part]) ** 0.5)[:, :, None]
        centred = home.bring(centred, self.sums.dtype)
        # Of single samples without a matrix product: libraries are slow at those with nothing to sum over.
        return matmul(transpose(centred), centred) if centred.shape[1] > 1 else transpose(centred) * centred
