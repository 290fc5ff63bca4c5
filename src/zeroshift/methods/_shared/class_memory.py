"""A memory of the most confident samples of each class."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from zeroshift.arrays import Array, Backend, to_numpy
from zeroshift.frozen import Expression
from zeroshift.methods._shared.similarity import exponential_kernel, frozen_votes, inner_products
from zeroshift.state_checks import check_lengths, check_seen
from zeroshift.zero_shot import quantize

__all__ = ["ClassMemory"]


class ClassMemory:
    """At most `capacity` samples of each class, those of lowest entropy.

    In a full class a new sample replaces the one of highest entropy, if its own is strictly lower; of several, the
    newest or, with `ties="first slot"`, the one in the first slot. Entropies are compared to nine digits, so that equal
    samples tie. With `masks`, every sample comes with a vote (K,) for each class instead of one for its own.

    Samples are rows of `entries`, in the order in which their slots were first used. Row 0 stays zero: it is the row
    of empty slots.

    >>> memory = ClassMemory(Backend.of(np.eye(2)), classes=2, capacity=1, width=2)
    >>> x = np.array([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0]])
    >>> [memory.offer(k, entropy, row) for k, entropy, row in zip([0, 0, 0], [0.5, 0.4, 0.6], x)]
    [True, True, False]
    >>> memory.entries[1:2], memory.counts
    (array([[0.6, 0.8]]), array([1, 0]))
    """

    def __init__(
        self, backend: Backend, classes: int, capacity: int, width: int, *, ties: str = "newest", masks: bool = False
    ) -> None:
        self._backend, self._replace_newest = backend, {"newest": True, "first slot": False}[ties]
        self.entries = backend.zeros((1 + classes * capacity, width))
        self.masks = backend.zeros((1 + classes * capacity, classes)) if masks else None
        self.rows = np.zeros((classes, capacity), dtype=np.int64)
        """The row of each slot; 0 if it is empty."""
        self.entropies = np.full((classes, capacity), np.inf)
        self.arrivals = np.zeros((classes, capacity), dtype=np.int64)
        """Numbers that increase in the order in which samples enter a class; 0 for an empty slot."""
        self.used = 1
        """Rows in use, row 0 included."""

    @property
    def counts(self) -> np.ndarray:
        """Samples per class (K,)."""
        return (self.rows > 0).sum(axis=1)

    @property
    def samples(self) -> Array:
        """All samples (n, d)."""
        return self.entries[1 : self.used]

    @property
    def classes(self) -> np.ndarray:
        """Their classes (n,)."""
        classes = np.zeros(self.used, dtype=np.int64)
        classes[self.rows] = np.arange(len(self.rows))[:, None]
        return classes[1:]

    def offer(self, k: int, entropy: float, sample: Array, mask: Array | None = None) -> bool:
        """Store a sample (d,) of class k if it is among the most confident ones; whether it was stored."""
        slot = self._slot(k := int(k), value := _comparable(entropy))
        if slot is None:
            return False
        row = self.rows[k, slot]
        if not row:
            row, self.used = self.used, self.used + 1
        self.entries[row] = sample
        if self.masks is not None:
            self.masks[row] = mask
        self.rows[k, slot], self.entropies[k, slot] = row, value
        self.arrivals[k, slot] = 1 + self.arrivals[k].max()
        return True

    def _slot(self, k: int, entropy: float) -> int | None:
        """The slot that a sample takes: the first empty one, else that of the highest entropy; None if it stays out."""
        own = self.entropies[k]
        if not len(own) or not entropy < (highest := own.max()):
            return None
        tied = np.flatnonzero(own == highest)
        newest = self._replace_newest and highest < np.inf
        return int(tied[self.arrivals[k, tied].argmax()] if newest else tied[0])

    def of_class(self, k: int) -> Array:
        """The samples of a class (n, d), in the order of their slots."""
        rows = self.rows[k]
        return self.entries[self._backend.index(rows[rows > 0])]

    def of_class_after(self, k: int, entropy: float, sample: Array) -> Array:
        """What `of_class` will be if a sample (d,) is offered; nothing changes."""
        own, slot = self.of_class(k), self._slot(k, _comparable(entropy))
        if slot == len(own):
            return self._backend.xp.concat([own, sample[None, :]])
        if slot is not None:
            own[slot] = sample
        return own

    def votes(self, features: Array, beta: float) -> Array:
        """Votes (n, K) of the samples, each with the weight exp(-beta (1 - cosine))."""
        weights = exponential_kernel(inner_products(features, self.entries[: self.used]), beta)
        if self.masks is not None:
            return weights @ self.masks[: self.used]
        weights[:, 0] = 0.0
        by_slot = self._backend.xp.take(weights, self._backend.index(self.rows.reshape(-1)), axis=1)
        return by_slot.reshape(features.shape[0], *self.rows.shape).sum(axis=-1)

    def frozen(self, x: Expression, beta: float, weight: float) -> Expression:
        """`weight` times the votes as an expression; for a memory that is not empty."""
        entries = to_numpy(self.entries)
        if self.masks is not None:
            kernels = (x @ (beta * entries[1 : self.used]).T - beta).exp()
            return kernels @ (weight * to_numpy(self.masks)[1 : self.used])
        return frozen_votes(x, entries[self.rows], weight * (self.rows > 0), beta)

    def state(self) -> tuple[dict[str, Array], dict[str, Any]]:
        arrays = {
            "entries": self.entries,
            "rows": self.rows,
            "entropies": np.where(self.rows > 0, self.entropies, -1.0),  # files contain finite numbers only
            "arrivals": self.arrivals,
        }
        return {**arrays, **({} if self.masks is None else {"masks": self.masks})}, {}

    def restore(self, arrays: Mapping[str, Array], values: Mapping[str, Any]) -> None:
        rows, arrivals = (to_numpy(arrays[name]).astype(np.int64).reshape(-1) for name in ("rows", "arrivals"))
        entropies = to_numpy(arrays["entropies"]).astype(np.float64).reshape(-1)
        for name, own in self.state()[0].items():
            if int(np.prod(arrays[name].shape)) != int(np.prod(own.shape)):
                raise ValueError(f"{name} has shape {tuple(arrays[name].shape)}, not {tuple(own.shape)}")
        used = np.sort(rows[rows != 0])
        if not np.array_equal(used, 1 + np.arange(len(used))):
            raise ValueError("the rows of the samples are not numbered 1, 2, ...")
        if not (np.array_equal(rows > 0, entropies >= 0) and np.array_equal(rows > 0, arrivals > 0)):
            raise ValueError("some samples have no entropy or arrival number, or some of these no sample")
        shape = self.rows.shape
        self.rows, self.arrivals = rows.reshape(shape), arrivals.reshape(shape)
        self.entropies = np.where(self.rows > 0, entropies.reshape(shape), np.inf)
        self.entries, self.used = arrays["entries"].reshape(self.entries.shape), 1 + len(used)
        if self.masks is not None:
            self.masks = arrays["masks"]

    def check_seen(self, n_seen: int) -> None:
        """ValueError if it contains what is no sample, or more samples than were seen."""
        check_lengths("entries", self.entries)
        check_seen("the number of samples in the memory", self.used - 1, n_seen)
        check_seen("the last arrival", int(self.arrivals.max(initial=0)), n_seen)


def _comparable(entropy: float) -> float:
    """Rounded so that entropies of equal samples are equal; at least 0, since rounding may leave -0."""
    return max(float(quantize(np.float64(entropy))), 0.0)
