"""A low-entropy memory whose entries vote on new samples, the nearer the more: TDA's positive and negative caches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from zeroshift.arrays import Array, Home, to_numpy
from zeroshift.methods.parts.kernel import exponential_kernel
from zeroshift.methods.parts.memory import Entry, LowEntropyMemory, Plan
from zeroshift.methods.parts.single import inner_products

__all__ = ["VotingCache"]


class VotingCache:
    """At most `capacity` entries a class. An entry votes for the class it was stored under or, where `masked`, for
    every class of the mask that is stored with it.

    Entries lie in the order they came, so that votes cost what is held and not what there is room for. Row 0 is no
    entry: empty slots point there.

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
        self.memory = LowEntropyMemory(home, classes, capacity, 0)  # who is held; the features are here
        self.entries = home.zeros((1 + classes * capacity, width), dtype)
        self.masks = home.zeros((1 + classes * capacity, classes), dtype) if masked else None
        self._ones = home.zeros((capacity,), dtype) + 1.0
        self._set_rows(np.zeros(classes * capacity, dtype=np.int64))

    def _set_rows(self, rows: np.ndarray) -> None:
        """The row of each slot, on the host and at home, and how many rows are in use."""
        self._rows, self._rows_at_home = rows, self._home.index(rows)
        self._used = 1 + int(rows.max(initial=0))

    def votes(self, features: Array) -> Array:
        """Votes (n, K) of the entries held."""
        weights = self._weights(features, self.entries[: self._used])
        weights[:, 0] = 0.0
        return self._votes(weights)

    def enter(self, entry: Entry, feature: Array, mask: Array | None = None) -> None:
        """Store one sample (d,), with its mask (K,), where `memory.entry` says. Doing it again changes nothing."""
        slot = entry.k * self.memory.capacity + entry.slot
        rows = self._rows_with([slot])
        row = int(rows[slot])
        self.entries[row] = feature
        if self.masks is not None:
            self.masks[row] = mask
        self.memory.note(entry)
        self._set_rows(rows)

    def votes_during(self, plan: Plan, features: Array, masks: Array | None = None) -> Array:
        """Votes (n, K) of the entries held at each sample's turn; `masks` (n, K) belong to the planned samples."""
        leaves = np.zeros(self._used, dtype=np.int64)
        leaves[self._rows] = plan.old_leaves
        alive = self._home.index(leaves > np.arange(plan.n_rows)[:, None])
        old = self._votes(self._weights(features, self.entries[: self._used]) * alive)
        if not len(plan.rows):
            return old
        rows = self._home.index(plan.rows)
        weights = self._weights(features, features[rows]) * self._home.index(plan.new_alive())
        if masks is not None:
            return old + weights @ masks[rows]
        own = np.zeros((len(plan.rows), old.shape[1]))
        own[np.arange(len(own)), plan.slots // self.memory.capacity] = 1.0
        return old + weights @ self._home.bring(own, weights.dtype)

    def _weights(self, features: Array, entries: Array) -> Array:
        return exponential_kernel(inner_products(features, entries), self._beta)

    def _votes(self, weights: Array) -> Array:
        """What weights (n, rows in use) of the entries come to, (n, K)."""
        if self.masks is not None:
            return weights @ self.masks[: self._used]
        by_slot = self._home.xp.take(weights, self._rows_at_home, axis=1)
        # A product with ones: a sum over so short an axis takes several times as long.
        return by_slot.reshape(weights.shape[0], *self.memory.entropies.shape) @ self._ones

    def _rows_with(self, slots: list[int]) -> np.ndarray:
        """The rows of slots once these are in use: the next free ones for those that were not."""
        rows, free = self._rows.copy(), self._used
        for slot in slots:
            if not rows[slot]:
                rows[slot], free = free, free + 1
        return rows

    def keep(self, plan: Plan, features: Array, masks: Array | None = None) -> None:
        """Store those of the planned samples that stay. Doing it again changes nothing."""
        staying = plan.staying()
        if len(staying):
            slots = plan.slots[staying]
            rows = self._rows_with(slots.tolist())
            to, source = self._home.index(rows[slots]), self._home.index(plan.rows[staying])
            self.entries[to] = features[source]
            if self.masks is not None and masks is not None:
                self.masks[to] = masks[source]
            self._set_rows(rows)
        self.memory.note_all(plan)

    def arrays(self) -> dict[str, Array]:
        """What to save."""
        masks = {} if self.masks is None else {"masks": self.masks}
        held = {name: array for name, array in self.memory.arrays().items() if name != "features"}
        return {"entries": self.entries, "rows": self._rows_at_home, **held, **masks}

    def restore(self, arrays: Mapping[str, Array]) -> None:
        """Take up what `arrays` gave."""
        for name in ("entries",) if self.masks is None else ("entries", "masks"):
            saved, own = tuple(arrays[name].shape), tuple(getattr(self, name).shape)
            if saved != own:
                raise ValueError(f"{name} of shape {saved}, not {own}, were saved")
        rows = to_numpy(arrays["rows"]).astype(np.int64)
        held = np.sort(rows[rows != 0])
        if rows.shape != self._rows.shape or not np.array_equal(held, 1 + np.arange(len(held))):
            raise ValueError("the rows of the entries are not numbered 1, 2, ...")
        self.memory.restore({**arrays, "features": self.memory.features})
        if not np.array_equal(np.isfinite(self.memory.entropies).reshape(-1), rows != 0):
            raise ValueError("there are entries without an entropy, or entropies without an entry")
        self.entries, self.masks = arrays["entries"], arrays.get("masks")
        self._set_rows(rows)
