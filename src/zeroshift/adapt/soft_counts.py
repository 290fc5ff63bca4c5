"""The bank switched off (Table 5, upper half): every sample counts, with its soft zero-shot posterior."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from zeroshift.adapt.statistics import soft_scatter
from zeroshift.arrays import Array, Home

__all__ = ["SoftCounts"]

CANCELLATION = 1e-13
"""The scatter is a difference of moments; a trace this small beside theirs is what rounding left of zero."""


class SoftCounts:
    """Running sums of y x (K, d), y (K,) and x x^T (d, d) over all samples seen. Stands in for the knowledge bank.

    The scatter is a difference of these sums: of a stream that hardly moves (spread below about 1e-5 of unit length)
    few of its digits survive.
    """

    def __init__(self, home: Home, classes: int, dimension: int) -> None:
        self._home = home
        self.weighted_sum = home.zeros((classes, dimension))
        self.weight = home.zeros((classes,))
        self.second_moment = home.zeros((dimension, dimension))
        self.size: int = 0
        self._before = (self.weighted_sum, self.weight, self.second_moment, self.size)

    @property
    def counts(self) -> np.ndarray:
        """Nothing is kept, so every bank is empty."""
        return np.zeros(self.weight.shape[0], dtype=np.int64)

    def pin(self, features: Array, labels: np.ndarray) -> None:
        """Count labelled samples with certainty."""
        one_hot = np.eye(self.weight.shape[0])[labels]
        self._add(features, self._home.bring(one_hot))

    def offer(self, features: Array, log_posterior: Array) -> bool:
        self.forget_undo()
        self._add(features, self._home.xp.exp(log_posterior))
        return True

    def _add(self, features: Array, posterior: Array) -> None:
        self.weighted_sum = self.weighted_sum + posterior.T @ features
        self.weight = self.weight + self._home.xp.sum(posterior, axis=0)
        self.second_moment = self.second_moment + features.T @ features
        self.size += int(features.shape[0])

    def forget_undo(self) -> None:
        """What was counted so far stays: the next `undo` goes back to here."""
        self._before = (self.weighted_sum, self.weight, self.second_moment, self.size)

    def undo(self) -> None:
        """Take back the last offer."""
        self.weighted_sum, self.weight, self.second_moment, self.size = self._before

    def sums(self) -> tuple[Array, Array]:
        return self.weighted_sum, self.weight

    def sums_with(self, features: Array, posterior: Array, *, everywhere: bool) -> tuple[Array, Array]:
        """The sums with the latest samples counted by `posterior` in place of their zero-shot posterior."""
        weighted_sum, weight, _, _ = self._before
        return weighted_sum + posterior.T @ features, weight + self._home.xp.sum(posterior, axis=0)

    def scatter(self, means: Array, *, per_class: bool = False) -> Array:
        if per_class:
            raise NotImplementedError("per-class covariances need a bank")
        xp = self._home.xp
        scatter = soft_scatter(self.second_moment, self.weighted_sum, self.weight, means)
        noise = CANCELLATION * float(xp.linalg.trace(self.second_moment))
        return scatter if float(xp.linalg.trace(scatter)) > noise else xp.zeros_like(scatter)

    def term(self, features: Array) -> Array:
        return self._home.zeros((features.shape[0], self.weight.shape[0]))

    def arrays(self) -> dict[str, Array]:
        return {
            "soft_weighted_sum": self.weighted_sum,
            "soft_weight": self.weight,
            "soft_second_moment": self.second_moment,
            "soft_size": self._home.xp.asarray([self.size], device=self._home.device),
        }

    def restore(self, arrays: Mapping[str, Array]) -> None:
        for name, own in self.arrays().items():
            if tuple(arrays[name].shape) != tuple(own.shape):
                raise ValueError(f"{name} has shape {tuple(arrays[name].shape)}, not {tuple(own.shape)}")
        self.weighted_sum = arrays["soft_weighted_sum"]
        self.weight = arrays["soft_weight"]
        self.second_moment = arrays["soft_second_moment"]
        self.size = int(arrays["soft_size"][0])
