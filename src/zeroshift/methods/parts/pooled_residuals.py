"""Samples about their class means, all classes pooled: a running sum of squares that follows what comes and goes."""

from __future__ import annotations

from typing import NamedTuple

from zeroshift.arrays import Array, Home, namespace

__all__ = ["PooledResiduals"]


class PooledResiduals(NamedTuple):
    """Scatter (d, d) of residuals about their mean, their sum (d,) and how many they are. Never changed in place.

    >>> import numpy as np
    >>> pooled = PooledResiduals.of(np.array([[1.0, 0.0], [-1.0, 0.0], [0.0, 3.0]]))
    >>> pooled.scatter
    array([[2., 0.],
           [0., 6.]])
    >>> pooled.exchanged(np.array([[0.0, 3.0]]), np.array([[0.0, 0.0]])).scatter.round(12)
    array([[2., 0.],
           [0., 0.]])
    """

    scatter: Array
    total: Array
    size: int

    @classmethod
    def none(cls, home: Home, dimension: int) -> PooledResiduals:
        return cls(home.zeros((dimension, dimension)), home.zeros((dimension,)), 0)

    @classmethod
    def of(cls, residuals: Array) -> PooledResiduals:
        """Of residuals (n, d); exact even where they hardly differ, which `exchanged` is not."""
        xp = namespace(residuals)
        centred = residuals - xp.mean(residuals, axis=0)
        return cls(centred.T @ centred, xp.sum(residuals, axis=0), residuals.shape[0])

    def exchanged(self, old: Array, new: Array) -> PooledResiduals:
        """With the residuals `old` (a, d) taken out and `new` (b, d) put in."""
        xp = namespace(new)
        total = self.total + xp.sum(new, axis=0) - xp.sum(old, axis=0)
        size = self.size - old.shape[0] + new.shape[0]
        # The scatter about the mean is the sum of squares less that of the mean.
        added = xp.concat([new, self.total[None, :] / self.size**0.5])
        taken = xp.concat([old, total[None, :] / size**0.5])
        scatter = self.scatter + added.T @ added
        scatter -= taken.T @ taken
        return PooledResiduals(scatter, total, size)

    def trace(self) -> float:
        """Of the scatter."""
        return float(namespace(self.scatter).linalg.trace(self.scatter))
