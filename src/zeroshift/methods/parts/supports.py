"""T3A's support sets: which samples stand for a class after each batch, and the sums of them.

Which stay depends on zero-shot entropies alone, so all changes in a run of batches are known before any is predicted.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import NamedTuple

import numpy as np

from zeroshift.arrays import Array, Home
from zeroshift.methods.parts.memory import Entry, LowEntropyMemory

__all__ = ["AllSupports", "Changes", "Offered", "SurestSupports"]


class Offered(NamedTuple):
    """Unit features (n, d) in order, their pseudo-classes and entropies (n,)."""

    features: Array
    classes: np.ndarray
    entropies: np.ndarray


class Changes(NamedTuple):
    """New sums of classes, in order; a class's last one stays."""

    starts: np.ndarray
    """First row of the batch each came with, (c,)."""
    classes: np.ndarray
    sums: Array
    """(c, d)."""
    keep: partial[None]
    """Store what stays; until then nothing is changed, and doing it again changes nothing more."""


def _entered(rows: np.ndarray, classes: np.ndarray, n: int, batch_size: int) -> tuple[np.ndarray, ...]:
    """(start, last row, class) wherever rows (e,) of a batch entered a class, in order."""
    n_classes = int(classes.max(initial=0)) + 1
    batches, entered = np.divmod(np.unique(rows // batch_size * n_classes + classes), n_classes)
    starts = batches * batch_size
    return starts, np.minimum(starts + batch_size, n) - 1, entered


class SurestSupports:
    """At most `size` supports a class, those of lowest entropy."""

    def __init__(self, prototypes: Array, size: int) -> None:
        classes, width = prototypes.shape
        self._home = Home.of(prototypes)
        self._memory = LowEntropyMemory(self._home, classes, size, width, dtype=prototypes.dtype)

    def changes(self, offered: Offered, batch_size: int) -> Changes:
        memory = self._memory
        features = self._home.bring(offered.features, memory.features.dtype)
        plan = memory.plan(offered.classes, offered.entropies)
        if not len(plan.rows):
            return Changes(plan.rows, plan.rows, features[:0, :], partial(memory.note_all, plan))
        joined = plan.slots // memory.capacity
        starts, last, classes = _entered(plan.rows, joined, plan.n_rows, batch_size)
        when = last[:, None]
        old = plan.old_leaves.reshape(-1, memory.capacity)[classes] > when
        new = (plan.rows <= when) & (when < plan.leaves) & (joined == classes[:, None])
        # From the entries each time, so that nothing drifts.
        held = self._as_numbers(old)[:, None, :] @ memory.features[self._home.index(classes)]
        sums = held[:, 0, :] + self._as_numbers(new) @ features[self._home.index(plan.rows)]
        return Changes(starts, classes, sums, partial(memory.keep, plan, features))

    def entry(self, k: int, entropy: float) -> Entry | None:
        """Where one sample enters, None where it is not sure enough."""
        return self._memory.entry(k, entropy)

    def enter(self, entry: Entry, feature: Array) -> Array:
        """Store one unit feature (d,): the new sum (1, d) of its class. Doing it again changes nothing."""
        self._memory.enter(entry, feature)
        return self._home.xp.sum(self._memory.features[entry.k], axis=0, keepdims=True)

    def _as_numbers(self, mask: np.ndarray) -> Array:
        return self._home.bring(mask.astype(np.float64), self._memory.features.dtype)

    def arrays(self) -> dict[str, Array]:
        return self._memory.arrays()

    def restore(self, arrays: Mapping[str, Array]) -> None:
        self._memory.restore(arrays)


class AllSupports:
    """Every support ever offered: their sums are all that is needed."""

    def __init__(self, prototypes: Array) -> None:
        self._home = Home.of(prototypes)
        self._sums = self._home.zeros(tuple(prototypes.shape))

    def changes(self, offered: Offered, batch_size: int) -> Changes:
        n = len(offered.classes)
        starts, last, classes = _entered(np.arange(n), offered.classes, n, batch_size)
        there = (np.arange(n) <= last[:, None]) & (offered.classes == classes[:, None])
        added = self._home.bring(there.astype(np.float64)) @ offered.features
        sums = self._sums[self._home.index(classes)] + added
        final = {k: change for change, k in enumerate(classes.tolist())}
        places, chosen = (self._home.index(np.array(list(part))) for part in (final, final.values()))
        return Changes(starts, classes, sums, partial(self._keep, places, sums[chosen]))

    def _keep(self, classes: Array, sums: Array) -> None:
        self._sums[classes] = sums

    def arrays(self) -> dict[str, Array]:
        return {"sums": self._sums}

    def restore(self, arrays: Mapping[str, Array]) -> None:
        if tuple(arrays["sums"].shape) != tuple(self._sums.shape):
            raise ValueError(f"sums of shape {tuple(arrays['sums'].shape)}, not {tuple(self._sums.shape)}, were saved")
        self._sums = arrays["sums"]
