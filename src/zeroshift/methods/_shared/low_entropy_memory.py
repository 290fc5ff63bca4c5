"""A bounded memory a class that keeps the samples of lowest entropy: TDA's caches, DMN's, OGA's, T3A's supports.

Which samples enter depends on zero-shot entropies alone, so the story of many samples can be known before any of them
is predicted: `plan` tells it, and prediction becomes a few matrix products over everything alive at some time.
"""

from __future__ import annotations

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
    arrival: int


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
    arrivals: np.ndarray
    """Arrival numbers (K, M) afterwards, 0 in empty slots."""
    n_rows: int

    def new_alive(self) -> np.ndarray:
        """Which of the entering samples are there at each sample's turn, its own included, (n, e)."""
        turn = np.arange(self.n_rows)[:, None]
        return (self.rows[None, :] <= turn) & (turn < self.leaves[None, :])

    def staying(self) -> np.ndarray:
        """Which of the entering samples are there at the end, as indices into `rows`."""
        return np.flatnonzero(self.leaves == self.n_rows)


class LowEntropyMemory:
    """At most `capacity` samples a class, those of the lowest entropy. A newcomer must be strictly surer than the least
    sure entry to replace it. A sample of infinite entropy never enters.

    `capacity`: 0 keeps nothing. `of_equals`: which of equally unsure entries goes, the "newest" or the one in the
    "first slot". `dtype`: of the features, float64 unless given.

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
        self, home: Home, classes: int, capacity: int, width: int, *, of_equals: str = "newest", dtype: Any = None
    ) -> None:
        self._home, self._newest = home, {"newest": True, "first slot": False}[of_equals]
        self.features = home.zeros((classes, capacity, width), dtype)
        self.entropies = np.full((classes, capacity), np.inf)
        self.arrivals = np.zeros((classes, capacity), dtype=np.int64)
        """Numbers that rise as entries of a class come; between classes they say nothing."""

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
        held, arrivals = self.entropies.copy(), self.arrivals.copy()
        newest = int(arrivals.max(initial=0))
        old_leaves = np.where(np.isfinite(held).reshape(-1), n, 0)
        entered: dict[int, int] = {}
        rows: list[int] = []
        slots: list[int] = []
        leaves: list[int] = []
        offered = zip(classes.tolist(), values.tolist(), strict=True) if self.capacity else ()
        for row, (k, value) in enumerate(offered):
            own = held[k]
            slot = self._least_sure(own, arrivals[k])
            if not value < own[slot]:
                continue
            place = k * self.capacity + slot
            if place in entered:
                leaves[entered[place]] = row
            elif own[slot] < np.inf:
                old_leaves[place] = row
            newest += 1
            own[slot], arrivals[k, slot] = value, newest
            entered[place] = len(rows)
            rows.append(row)
            slots.append(place)
            leaves.append(n)
        whole = np.int64
        entering = (np.array(rows, whole), np.array(slots, whole), np.array(leaves, whole))
        return Plan(*entering, old_leaves, held, arrivals, n)

    def keep(self, plan: Plan, features: Array) -> None:
        """Store those of the planned samples (n, width) that stay. Doing it again changes nothing."""
        staying = plan.staying()
        if len(staying):
            # In place: a memory of a thousand classes must not be copied for one sample.
            flat = self.features.reshape(-1, self.features.shape[2])
            flat[self._home.index(plan.slots[staying])] = features[self._home.index(plan.rows[staying])]
        self.note_all(plan)

    def note_all(self, plan: Plan) -> None:
        """Only who is held, for a memory whose features are elsewhere."""
        self.entropies, self.arrivals = plan.entropies, plan.arrivals

    def entry(self, k: int, entropy: float) -> Entry | None:
        """What `plan` says of one sample, at a fraction of its price: where it enters, if it does."""
        if not self.capacity:
            return None
        value, own, arrived = float(_compared(entropy)), self.entropies[k], self.arrivals[k]
        slot = self._least_sure(own, arrived)
        return Entry(k, slot, value, 1 + int(arrived.max())) if value < own[slot] else None

    def enter(self, entry: Entry, feature: Array) -> None:
        """Store one sample (width,). Doing it again changes nothing."""
        self.features[entry.k, entry.slot] = feature
        self.note(entry)

    def note(self, entry: Entry) -> None:
        """Only who is held, for a memory whose features are elsewhere."""
        self.entropies[entry.k, entry.slot] = entry.entropy
        self.arrivals[entry.k, entry.slot] = entry.arrival

    def _least_sure(self, own: np.ndarray, arrived: np.ndarray) -> int:
        """The slot of a class's entropies (M,) that goes next: the first empty one, else one of the highest."""
        first = int(own.argmax())
        if own[first] == np.inf or not self._newest:
            return first
        last = len(own) - 1 - int(own[::-1].argmax())
        return first if first == last else int(np.where(own == own[first], arrived, -1).argmax())

    def state(self) -> tuple[dict[str, Array], dict[str, Any]]:
        """An empty slot's entropy is saved as -1, since files hold finite numbers only."""
        entropies = np.where(np.isfinite(self.entropies), self.entropies, -1.0)
        return {
            "features": self.features,
            "entropies": self._home.bring(entropies, self._home.xp.float64),
            "arrivals": self._home.xp.asarray(self.arrivals, device=self._home.device, copy=True),
        }, {}

    def restore(self, arrays: Mapping[str, Array], values: Mapping[str, Any]) -> None:
        entropies = to_numpy(arrays["entropies"]).astype(np.float64)
        if entropies.shape != self.entropies.shape or tuple(arrays["features"].shape) != tuple(self.features.shape):
            raise ValueError(
                f"a memory of shape {tuple(arrays['features'].shape)}, not {tuple(self.features.shape)}, was saved"
            )
        arrivals = to_numpy(arrays["arrivals"]).astype(np.int64)
        if arrivals.shape != entropies.shape or not np.array_equal(arrivals > 0, entropies >= 0):
            raise ValueError("there are entries without an arrival number, or arrival numbers without an entry")
        self.features = arrays["features"]
        self.entropies, self.arrivals = np.where(entropies < 0, np.inf, entropies), arrivals


def _compared(entropies: np.ndarray | float) -> np.ndarray:
    return np.maximum(graded(np.asarray(entropies, dtype=np.float64)), 0.0)  # rounding may leave a certain one -0
