"""A linear classifier fitted in float64 that answers in the features' own precision."""

from __future__ import annotations

from zeroshift.arrays import Array, Home, is_double

__all__ = ["LinearHead"]


class LinearHead:
    """Scores x.w_k + b_k of weights (K, d) and offsets (K,).

    Kept in float64 and in float32: to convert it for every sample would cost as much as the product itself.

    >>> import numpy as np
    >>> LinearHead(np.eye(2), np.array([0.5, 0.0])).scores(np.array([[0.8, 0.6]]))
    array([[1.3, 0.6]])
    """

    def __init__(self, weights: Array, offsets: Array) -> None:
        home = Home.of(weights)
        self.weights, self.offsets = home.bring(weights, home.xp.float64), home.bring(offsets, home.xp.float64)
        self._single = (home.bring(weights, home.xp.float32), home.bring(offsets, home.xp.float32))

    def scores(self, features: Array) -> Array:
        """(n, K) for features (n, d) in float32 or float64."""
        weights, offsets = (self.weights, self.offsets) if is_double(features) else self._single
        scores = features @ weights.T
        scores += offsets
        return scores
