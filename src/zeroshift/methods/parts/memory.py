"""A bounded memory a class that keeps the samples of lowest entropy: TDA's caches, DMN's, OGA's, T3A's supports.

Which samples enter depends on zero-shot entropies alone, so the story of many samples can be known before any of them
is predicted: `plan` tells it, and prediction becomes a few matrix products over everything alive at some time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from zeroshift.arrays import Array, Home, to_numpy
from zeroshift.zero_shot import graded

__all__ = ["Entry", "LowEntropyMemory", "Plan"]


class Entry(NamedTuple):
    """Where one sample enters a memory."""

    k: int
    slot: int
    entropy: float


class Plan(NamedTuple):
    """What n samples in order do to a memory of K M slots, numbered k M + m. Everything is on the host."""

    rows: np.ndarray
    """The samples that enter, (e,); each is there from its own turn on."""
    slots: np.ndarray
    """The slot each of them takes, (e,)."""
    leaves: np.ndarray
    """The sample at whose turn it is overwritten, (e,); n where it stays."""
    old_leaves: np.ndarray
    """The same for what is in the slots already, (K M,); 0 for an empty slot."""
    entropies: np.ndarray
    """Entropies (K, M) afterwards, infinity in empty slots."""
    n_rows: int

    def old_alive(self) -> np.ndarray:
        """Which old entries are there at each sample's turn, (n, K M)."""
        return self.old_leaves[None, :] > np.arange(self.n_rows)[:, None]

    def new_alive(self) -> np.ndarray:
        """Which of the entering samples are there at each sample's turn, its own included, (n, e)."""
        turn = np.arange(self.n_rows)[:, None]
        return (self.rows[None, :] <= turn) & (turn < self.leaves[None, :])

    def staying(self) -> np.ndarray:
        """Which of the entering samples are there at the end, as indices into `rows`."""
        return np.flatnonzero(self.leaves == self.n_rows)


class LowEntropyMemory:
    """At most `capacity` samples a class, those of the lowest entropy. A newcomer must be strictly surer than the least
    sure entry to replace it; of equally unsure entries the one in the last slot goes.

    `capacity`: 0 keeps nothing. `limit`: a sample whose entropy is not below it never enters. `dtype`: of the features,
    float64 unless given.

    >>> memory = LowEntropyMemory(Home.of(np.eye(2)), classes=2, capacity=1, width=2)
    >>> plan = memory.plan(np.array([0, 0, 1]), np.array([0.5, 0.4, 0.6]))
    >>> plan.rows, plan.slots, plan.leaves
    (array([0, 1, 2]), array([0, 0, 1]), array([1, 3, 3]))
    >>> memory.keep(plan, np.array([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0]]))
    >>> memory.features[:, 0]
    array([[0.6, 0.8],
           [0. , 1. ]])
    """

    def __init__(
        self, home: Home, classes: int, capacity: int, width: int, *, limit: float = math.inf, dtype: Any = None
    ) -> None:
        self._home, self._limit = home, float(graded(np.array([limit]))[0])
        self.features = home.zeros((classes, capacity, width), dtype)
        self.entropies = np.full((classes, capacity), np.inf)

    @property
    def capacity(self) -> int:
        return int(self.entropies.shape[1])

    @property
    def counts(self) -> np.ndarray:
        """Entries a class, (K,)."""
        return np.isfinite(self.entropies).sum(axis=1)

    def plan(self, classes: np.ndarray, entropies: np.ndarray) -> Plan:
        """What happens when samples of these pseudo-classes and entropies (n,) come in order; nothing is stored yet."""
        n = len(classes)
        values = _compared(entropies)
        held = self.entropies.copy()
        old_leaves = np.where(np.isfinite(held).reshape(-1), n, 0)
        entered: dict[int, int] = {}
        rows: list[int] = []
        slots: list[int] = []
        leaves: list[int] = []
        offered = zip(classes.tolist(), values.tolist(), strict=True) if self.capacity else ()
        for row, (k, value) in enumerate(offered):
            own = held[k]
            slot = _least_sure(own)
            if not (value < own[slot] and value < self._limit):
                continue
            place = k * self.capacity + slot
            if place in entered:
                leaves[entered[place]] = row
            elif own[slot] < np.inf:
                old_leaves[place] = row
            own[slot] = value
            entered[place] = len(rows)
            rows.append(row)
            slots.append(place)
            leaves.append(n)
        whole = np.int64
        return Plan(np.array(rows, whole), np.array(slots, whole), np.array(leaves, whole), old_leaves, held, n)

    def keep(self, plan: Plan, features: Array) -> None:
        """Store those of the planned samples (n, width) that stay."""
        staying = plan.staying()
        if len(staying):
            # In place: a memory of a thousand classes must not be copied for one sample.
            flat = self.features.reshape(-1, self.features.shape[2])
            flat[self._home.index(plan.slots[staying])] = features[self._home.index(plan.rows[staying])]
        self.entropies = plan.entropies

    def entry(self, k: int, entropy: float) -> Entry | None:
        """What `plan` says of one sample, at a fraction of its price: where it enters, if it does."""
        if not self.capacity:
            return None
        value, own = float(_compared(entropy)), self.entropies[k]
        slot = _least_sure(own)
        return Entry(k, slot, value) if value < own[slot] and value < self._limit else None

    def enter(self, entry: Entry, feature: Array) -> None:
        """Store one sample (width,)."""
        self.features[entry.k, entry.slot] = feature
        self.entropies[entry.k, entry.slot] = entry.entropy

    def arrays(self) -> dict[str, Array]:
        """What to save; an empty slot's entropy as -1, since files hold finite numbers only."""
        entropies = np.where(np.isfinite(self.entropies), self.entropies, -1.0)
        return {"features": self.features, "entropies": self._home.bring(entropies, self._home.xp.float64)}

    def restore(self, arrays: Mapping[str, Array]) -> None:
        """Take up what `arrays` gave."""
        entropies = to_numpy(arrays["entropies"]).astype(np.float64)
        if entropies.shape != self.entropies.shape or tuple(arrays["features"].shape) != tuple(self.features.shape):
            raise ValueError(
                f"a memory of shape {tuple(arrays['features'].shape)}, not {tuple(self.features.shape)}, was saved"
            )
        self.features = arrays["features"]
        self.entropies = np.where(entropies < 0, np.inf, entropies)


def _compared(entropies: np.ndarray | float) -> np.ndarray:
    return np.maximum(graded(np.asarray(entropies, dtype=np.float64)), 0.0)  # rounding may leave a certain one -0


def _least_sure(own: np.ndarray) -> int:
    """The slot of a class's entropies (M,) that goes next: the first empty one, else the last of the highest."""
    slot = int(own.argmax())
    return slot if own[slot] == np.inf else len(own) - 1 - int(own[::-1].argmax())
