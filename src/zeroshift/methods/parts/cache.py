"""A low-entropy memory whose entries vote on new samples, the nearer the more: TDA's positive and negative caches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from zeroshift.arrays import Array, Home
from zeroshift.methods.parts.kernel import exponential_kernel
from zeroshift.methods.parts.memory import LowEntropyMemory, Plan

__all__ = ["VotingCache"]


class VotingCache:
    """At most `capacity` entries a class. An entry votes for the class it was stored under or, where `masked`, for
    every class of the mask that is stored with it.

    >>> cache = VotingCache(Home.of(np.eye(2)), classes=2, capacity=1, width=2, beta=5.0)
    >>> x = np.array([[0.8, 0.6], [0.6, 0.8]])
    >>> plan = cache.memory.plan(np.array([0, 1]), np.array([0.5, 0.5]))
    >>> cache.votes_during(plan, x).round(6)
    array([[1.      , 0.      ],
           [0.818731, 1.      ]])
    """

    def __init__(
        self,
        home: Home,
        classes: int,
        capacity: int,
        width: int,
        *,
        beta: float,
        masked: bool = False,
        dtype: Any = None,
    ) -> None:
        self._home, self._beta = home, beta
        self.memory = LowEntropyMemory(home, classes, capacity, width, dtype=dtype)
        self.masks = home.zeros((classes * capacity, classes), dtype) if masked else None

    def votes(self, features: Array) -> Array:
        """Votes (n, K) of the entries held."""
        return self._old_votes(features, np.isfinite(self.memory.entropies).reshape(1, -1))

    def votes_during(self, plan: Plan, features: Array, masks: Array | None = None) -> Array:
        """Votes (n, K) of the entries held at each sample's turn; `masks` (n, K) belong to the planned samples."""
        old = self._old_votes(features, plan.old_alive())
        if not len(plan.rows):
            return old
        rows = self._home.index(plan.rows)
        weights = self._weights(features, features[rows], plan.new_alive())
        if masks is not None:
            return old + weights @ masks[rows]
        own = np.zeros((len(plan.rows), old.shape[1]))
        own[np.arange(len(own)), plan.slots // self.memory.capacity] = 1.0
        return old + weights @ self._home.bring(own, weights.dtype)

    def _old_votes(self, features: Array, alive: np.ndarray) -> Array:
        memory = self.memory.features
        classes, capacity, width = memory.shape
        weights = self._weights(features, memory.reshape(classes * capacity, width), alive)
        if self.masks is not None:
            return weights @ self.masks
        # A product with ones: a sum over so short an axis takes several times as long.
        ones = self._home.zeros((capacity,), weights.dtype) + 1.0
        return weights.reshape(features.shape[0], classes, capacity) @ ones

    def _weights(self, features: Array, entries: Array, alive: np.ndarray) -> Array:
        return exponential_kernel(features @ entries.T, self._beta) * self._home.index(alive)

    def keep(self, plan: Plan, features: Array, masks: Array | None = None) -> None:
        """Store those of the planned samples that stay."""
        staying = plan.staying()
        if self.masks is not None and masks is not None and len(staying):
            self.masks[self._home.index(plan.slots[staying])] = masks[self._home.index(plan.rows[staying])]
        self.memory.keep(plan, features)

    def arrays(self) -> dict[str, Array]:
        """What to save."""
        masks = {} if self.masks is None else {"masks": self.masks}
        return {**self.memory.arrays(), **masks}

    def restore(self, arrays: Mapping[str, Array]) -> None:
        """Take up what `arrays` gave."""
        if self.masks is not None:
            if tuple(arrays["masks"].shape) != tuple(self.masks.shape):
                raise ValueError(f"masks of shape {tuple(arrays['masks'].shape)}, not {tuple(self.masks.shape)}")
            self.masks = arrays["masks"]
        self.memory.restore(arrays)
