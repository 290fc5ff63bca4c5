"""A bounded memory per class that keeps the samples with the lowest entropy, for TDA, DMN, DPE, OGA and T3A.

Which samples enter depends on zero-shot entropies alone. So all insertions for a block of samples are known before any
of them is predicted (`plan`), and the whole block can be predicted with a few matrix products.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from zeroshift.arrays import Array, Backend, to_numpy
from zeroshift.state_checks import check_lengths, check_seen
from zeroshift.zero_shot import quantize

__all__ = ["LowEntropyMemory", "MemoryInsertion", "MemoryPlan"]


class MemoryInsertion(NamedTuple):
    """Where one sample enters a memory."""

    k: int
    slot: int
    entropy: float
    arrival: int


class MemoryPlan(NamedTuple):
    """What n samples in order change in a memory of K M slots, numbered k M + m. All arrays are NumPy arrays."""

    rows: np.ndarray
    """The samples that enter, (e,). Each is in the memory from its own turn on."""
    slots: np.ndarray
    """The slot each of them takes, (e,)."""
    replaced_at: np.ndarray
    """The sample that replaces each of them, (e,); n if none does."""
    old_replaced_at: np.ndarray
    """The sample that replaces what is in each slot already, (K M,); n if none does, 0 for an empty slot."""
    entropies: np.ndarray
    """Entropies (K, M) afterwards, infinity in empty slots."""
    arrivals: np.ndarray
    """Arrival numbers (K, M) afterwards, 0 in empty slots."""
    n_rows: int

    def is_present(self) -> np.ndarray:
        """Which entering samples are in the memory at each sample's turn, its own turn included, (n, e)."""
        turn = np.arange(self.n_rows)[:, None]
        return (self.rows[None, :] <= turn) & (turn < self.replaced_at[None, :])

    def kept(self) -> np.ndarray:
        """The entering samples that are in the memory at the end, as indices into `rows`."""
        return np.flatnonzero(self.replaced_at == self.n_rows)


class LowEntropyMemory:
    """At most `capacity` samples per class, those with the lowest entropy.

    In a full class, a new sample replaces the one with the highest entropy, if its own entropy is strictly lower. A
    sample with infinite entropy never enters.

    Parameters
    ----------
    capacity : samples per class; 0 keeps none.
    width : length of a feature; 0 if the caller stores the features itself, see `record` and `record_plan`.
    ties : which of several samples with the highest entropy is replaced, the "newest" or the one in the "first slot".
    dtype : of the features, float64 by default.

    >>> memory = LowEntropyMemory(Backend.of(np.eye(2)), classes=2, capacity=1, width=2)
    >>> plan = memory.plan(np.array([0, 0, 1]), np.array([0.5, 0.4, 0.6]))
    >>> plan.rows, plan.slots, plan.replaced_at
    (array([0, 1, 2]), array([0, 0, 1]), array([1, 3, 3]))
    >>> memory.apply(plan, np.array([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0]]))
    >>> memory.features[:, 0]
    array([[0.6, 0.8],
           [0. , 1. ]])
    """

    def __init__(
        self, backend: Backend, classes: int, capacity: int, width: int, *, ties: str = "newest", dtype: Any = None
    ) -> None:
        self._backend, self._replace_newest = backend, {"newest": True, "first slot": False}[ties]
        self.features = backend.zeros((classes, capacity, width), dtype)
        self.entropies = np.full((classes, capacity), np.inf)
        self.arrivals = np.zeros((classes, capacity), dtype=np.int64)
        """Numbers that increase in the order in which samples enter a class; not comparable between classes."""

    @property
    def capacity(self) -> int:
        return int(self.entropies.shape[1])

    @property
    def counts(self) -> np.ndarray:
        """Samples per class, (K,)."""
        return np.isfinite(self.entropies).sum(axis=1)

    def plan(self, classes: np.ndarray, entropies: np.ndarray) -> MemoryPlan:
        """What samples with these pseudo-classes and entropies (n,), in order, will change. Nothing is stored yet."""
        n = len(classes)
        values = _comparable(entropies)
        after, arrivals = self.entropies.copy(), self.arrivals.copy()
        newest = int(arrivals.max(initial=0))
        old_replaced_at = np.where(np.isfinite(after).reshape(-1), n, 0)
        last_in_slot: dict[int, int] = {}
        rows: list[int] = []
        slots: list[int] = []
        replaced_at: list[int] = []
        samples = zip(classes.tolist(), values.tolist(), strict=True) if self.capacity else ()
        for row, (k, value) in enumerate(samples):
            own = after[k]
            m = self._slot_to_replace(own, arrivals[k])
            if not value < own[m]:
                continue
            slot = k * self.capacity + m
            if slot in last_in_slot:
                replaced_at[last_in_slot[slot]] = row
            elif own[m] < np.inf:
                old_replaced_at[slot] = row
            newest += 1
            own[m], arrivals[k, m] = value, newest
            last_in_slot[slot] = len(rows)
            rows.append(row)
            slots.append(slot)
            replaced_at.append(n)
        return MemoryPlan(
            rows=np.array(rows, np.int64),
            slots=np.array(slots, np.int64),
            replaced_at=np.array(replaced_at, np.int64),
            old_replaced_at=old_replaced_at,
            entropies=after,
            arrivals=arrivals,
            n_rows=n,
        )

    def apply(self, plan: MemoryPlan, features: Array) -> None:
        """Store the planned samples, of features (n, width), that are still in the memory at the end."""
        kept = plan.kept()
        if len(kept):
            flat = self.features.reshape(-1, self.features.shape[2])
            flat[self._backend.index(plan.slots[kept])] = features[self._backend.index(plan.rows[kept])]
        self.record_plan(plan)

    def record_plan(self, plan: MemoryPlan) -> None:
        """Like `apply`, but leave the features to the caller."""
        self.entropies, self.arrivals = plan.entropies, plan.arrivals

    def plan_one(self, k: int, entropy: float) -> MemoryInsertion | None:
        """Where one sample will enter, or None if it will not. Much faster than `plan`."""
        if not self.capacity:
            return None
        value, own, arrivals = float(_comparable(entropy)), self.entropies[k], self.arrivals[k]
        slot = self._slot_to_replace(own, arrivals)
        return MemoryInsertion(k, slot, value, 1 + int(arrivals.max())) if value < own[slot] else None

    def insert(self, insertion: MemoryInsertion, feature: Array) -> None:
        """Store one sample (width,)."""
        self.features[insertion.k, insertion.slot] = feature
        self.record(insertion)

    def record(self, insertion: MemoryInsertion) -> None:
        """Like `insert`, but leave the feature to the caller."""
        self.entropies[insertion.k, insertion.slot] = insertion.entropy
        self.arrivals[insertion.k, insertion.slot] = insertion.arrival

    def _slot_to_replace(self, entropies: np.ndarray, arrivals: np.ndarray) -> int:
        """The slot of a class that the next sample takes: the first empty one, else one with the highest entropy."""
        first = int(entropies.argmax())
        if entropies[first] == np.inf or not self._replace_newest:
            return first
        last = len(entropies) - 1 - int(entropies[::-1].argmax())
        return first if first == last else int(np.where(entropies == entropies[first], arrivals, -1).argmax())

    def state(self) -> tuple[dict[str, Array], dict[str, Any]]:
        """The entropy of an empty slot is saved as -1, since files contain finite numbers only."""
        entropies = np.where(np.isfinite(self.entropies), self.entropies, -1.0)
        return {
            "features": self.features,
            "entropies": self._backend.asarray(entropies, self._backend.xp.float64),
            "arrivals": self._backend.xp.asarray(self.arrivals, device=self._backend.device, copy=True),
        }, {}

    def restore(self, arrays: Mapping[str, Array], values: Mapping[str, Any]) -> None:
        entropies = to_numpy(arrays["entropies"]).astype(np.float64)
        saved, own = tuple(arrays["features"].shape), tuple(self.features.shape)
        if entropies.shape != self.entropies.shape or saved != own:
            raise ValueError(f"the saved memory has shape {saved}, not {own}")
        arrivals = to_numpy(arrays["arrivals"]).astype(np.int64)
        if arrivals.shape != entropies.shape or not np.array_equal(arrivals > 0, entropies >= 0):
            raise ValueError("some samples have no arrival number, or some arrival numbers no sample")
        self.features = arrays["features"]
        self.entropies, self.arrivals = np.where(entropies < 0, np.inf, entropies), arrivals


def check_memory(memory: LowEntropyMemory, n_seen: int) -> None:
    """ValueError if a memory contains what is no feature, or samples that were not seen. Arrivals count from 1."""
    check_lengths("features", memory.features)
    check_seen("the number of samples in the memory", int(memory.counts.sum()), n_seen)
    check_seen("the last arrival", int(memory.arrivals.max(initial=0)), n_seen)


def _comparable(entropies: np.ndarray | float) -> np.ndarray:
    """Entropies rounded so that those of equal samples are equal; at least 0, since rounding may leave -0."""
    values = np.asarray(entropies, dtype=np.float64)
    held = np.isfinite(values)  # an empty slot has an infinite entropy
    return np.where(held, np.maximum(quantize(np.where(held, values, 0.0)), 0.0), np.inf)
