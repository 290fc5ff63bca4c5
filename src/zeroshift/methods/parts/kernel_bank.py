"""Class vectors read from a memory through a kernel around each new sample: DMN's dynamic memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from zeroshift.arrays import Array, Home
from zeroshift.methods.parts.kernel import exponential_kernel
from zeroshift.methods.parts.memory import Entry, LowEntropyMemory, Plan

__all__ = ["KernelBank", "Reading"]

TINY = 1e-24


class Reading(NamedTuple):
    """What following a plan gives: the answer, and what `KernelBank.keep` needs to carry the plan out."""

    cosines: Array
    """Of every sample with the class vectors at its turn, (n, K)."""
    grams: dict[int, Array]
    """Inner products of the banks that changed."""


class KernelBank:
    """A bank B_k of each class's prototype and its `capacity` samples of lowest entropy.

    A sample x reads the class vector v_k = sum_j w_j B_kj / |sum_j w_j B_kj| with w_j = exp(-beta (1 - B_kj.x)). It is
    never formed: v_k.x needs the cosines B_kj.x, and the length w'Gw with the bank's inner products G, of which an
    entry changes one row and one column. Empty slots are zero and add to neither.

    Slots come first in the layout, so that those in use by any class lie together.

    >>> bank = KernelBank(np.eye(2), capacity=2, beta=5.5)
    >>> x = np.array([[0.8, 0.6]])
    >>> bank.follow(bank.memory.plan(np.array([0]), np.array([0.58])), x).cosines.round(6)
    array([[0.987789, 0.6     ]])
    """

    def __init__(self, prototypes: Array, capacity: int, beta: float) -> None:
        home = Home.of(prototypes)
        classes, width = prototypes.shape
        self._home, self._beta = home, beta
        self.memory = LowEntropyMemory(home, classes, capacity, 0)  # who is held; the features are here
        self.entries = home.zeros((1 + capacity, classes, width), prototypes.dtype)
        self.entries[0] = prototypes
        self.grams = home.zeros((classes, 1 + capacity, 1 + capacity), prototypes.dtype)
        self.grams[:, 0, 0] = home.xp.sum(prototypes * prototypes, axis=1)
        self._used = 1

    def read(self, features: Array) -> Array:
        """Cosines (n, K) of features with the class vectors they read."""
        cosines = self._entry_cosines(features, self._used)
        weights = exponential_kernel(cosines, self._beta)
        return self._class_cosines(cosines, weights, self._squares(weights, self._used))

    def enter(self, entry: Entry, feature: Array) -> None:
        """Store one sample (d,) where `memory.entry` says. Doing it again changes nothing."""
        k, slot = entry.k, 1 + entry.slot
        used = max(self._used, 1 + slot)
        self.entries[slot, k] = feature
        self.grams[k, slot, :used] = self.grams[k, :used, slot] = self.entries[:used, k] @ feature
        self.memory.note(entry)
        self._used = used

    def follow(self, plan: Plan, features: Array) -> Reading:
        """The same while the bank changes as planned; nothing is stored yet."""
        used = _used(plan.entropies)
        cosines = self._entry_cosines(features, used)
        places = [(slot // self.memory.capacity, 1 + slot % self.memory.capacity) for slot in plan.slots.tolist()]
        entering = list(zip(plan.rows.tolist(), places, strict=True))
        among = features @ features.T
        for row, (k, slot) in entering:
            cosines[slot, k, row:] = among[row, row:]  # from its turn on, until another takes the slot
        weights = exponential_kernel(cosines, self._beta)
        squares = self._squares(weights, used)
        grams: dict[int, Array] = {}
        for row, (k, slot) in entering:
            if k not in grams:
                grams[k] = self._home.copy(self.grams[k, :used, :used])
            gram = grams[k]
            gram[slot, :] = gram[:, slot] = cosines[:, k, row]
            w = weights[:, k, row:]
            squares[k, row:] = self._home.xp.sum(w * (gram @ w), axis=0)
        return Reading(self._class_cosines(cosines, weights, squares), grams)

    def keep(self, plan: Plan, features: Array, reading: Reading) -> None:
        """Carry out a plan that was followed. Doing it again changes nothing."""
        staying = plan.staying()
        if len(staying):
            classes, slots = np.divmod(plan.slots[staying], self.memory.capacity)
            rows = self._home.index(plan.rows[staying])
            self.entries[self._home.index(1 + slots), self._home.index(classes)] = features[rows]
        for k, gram in reading.grams.items():
            self.grams[k, : gram.shape[0], : gram.shape[0]] = gram
        self.memory.note_all(plan)
        self._used = _used(plan.entropies)

    def _entry_cosines(self, features: Array, used: int) -> Array:
        """(used, K, n)."""
        _, classes, width = self.entries.shape
        held = self.entries[:used].reshape(used * classes, width)
        n = features.shape[0]
        # For one sample with a vector: on a GPU several times as fast.
        return (held @ features.T if n > 1 else held @ features[0]).reshape(used, classes, n)

    def _squares(self, weights: Array, used: int) -> Array:
        """Squared lengths (K, n) of the weighted sums."""
        by_class = self._home.xp.permute_dims(weights, (1, 0, 2))
        return (by_class * (self.grams[:, :used, :used] @ by_class)).sum(axis=1)

    def _class_cosines(self, cosines: Array, weights: Array, squares: Array) -> Array:
        return ((weights * cosines).sum(axis=0) / squares.clip(TINY) ** 0.5).T

    def arrays(self) -> dict[str, Array]:
        """What to save."""
        held = {name: array for name, array in self.memory.arrays().items() if name != "features"}
        return {"entries": self.entries, "grams": self.grams, **held}

    def restore(self, arrays: Mapping[str, Array]) -> None:
        """Take up what `arrays` gave."""
        for name in ("entries", "grams"):
            saved, own = tuple(arrays[name].shape), tuple(getattr(self, name).shape)
            if saved != own:
                raise ValueError(f"{name} of shape {saved}, not {own}, were saved")
        self.memory.restore({**arrays, "features": self.memory.features})
        self.entries, self.grams = arrays["entries"], arrays["grams"]
        self._used = _used(self.memory.entropies)


def _used(entropies: np.ndarray) -> int:
    """Slots in use by any class, the prototypes' included; they are filled in order."""
    return 1 + int(np.isfinite(entropies).any(axis=0).sum())
