"""The precision while the bank holds fewer samples than dimensions, computed from inner products of the samples.

With Z (N, d) the bank's entries about their class means, S = Z^T Z and

    rho (S + rho I)^-1 = I - Z^T (Z Z^T + rho I)^-1 Z,

so one small N x N inverse is enough. It is exact at every step; a maintained inverse would not be, because the ridge
changes fast at the start of a stream.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from zeroshift.adapt.bank import KnowledgeBank
from zeroshift.adapt.engines.base import EngineDiagnostics
from zeroshift.adapt.engines.class_statistics import BankInsertion, ClassSums, check_shapes
from zeroshift.arrays import Array, Backend, to_numpy
from zeroshift.linalg import SMALLEST_TRACE, ZERO_TRACE, add_to_diagonal, positive_inverse

__all__ = ["DualPrecision"]


FIRST_ROWS = 16
"""Rows to make room for at first."""


class DualPrecision:
    """Z, Z Z^T and Z mu^T. An insertion changes the rows of one class; the inverse is recomputed each time."""

    form = "dual"

    def __init__(self, backend: Backend, bank: KnowledgeBank, sums: ClassSums, diagnostics: EngineDiagnostics) -> None:
        self._backend = backend
        self._bank = bank
        self._sums = sums
        self._diagnostics = diagnostics
        self.refresh()

    def refresh(self) -> None:
        """Recompute everything from the bank."""
        backend, bank, sums = self._backend, self._bank, self._sums
        occupied = np.argwhere(bank.occupied_in(slice(None)))
        self._row = {(int(k), int(slot)): row for row, (k, slot) in enumerate(occupied)}
        k, slot = (backend.xp.asarray(column, device=backend.device) for column in occupied.T)
        centred = bank.features[k, slot] - sums.means[k]
        self._set(centred, centred @ centred.T, centred @ sums.means.T)

    def _set(self, centred: Array, gram: Array, projected: Array) -> None:
        self._centred, self._gram, self._projected = centred, gram, projected
        self._size = int(centred.shape[0])
        self._lengths = self._squared_lengths(slice(None))
        self._factorise()

    def _squared_lengths(self, k: slice) -> Array:
        means = self._sums.means[k]
        return self._backend.xp.sum(means * means, axis=1)

    @property
    def centred(self) -> Array:
        """Z, (N, d)."""
        return self._centred[: self._size]

    @property
    def gram(self) -> Array:
        """Z Z^T, (N, N)."""
        return self._gram[: self._size, : self._size]

    @property
    def projected(self) -> Array:
        """Z mu^T, (N, K)."""
        return self._projected[: self._size]

    def _factorise(self) -> None:
        xp, n = self._backend.xp, self._size
        d = self._centred.shape[1]
        trace = float(xp.linalg.trace(self.gram)) if n else 0.0
        has_spread = trace > ZERO_TRACE * n
        if has_spread and trace < SMALLEST_TRACE * n:
            trace = SMALLEST_TRACE * n
            self._diagnostics.bounded_precisions += 1
        self._scale = d * n / trace if has_spread else 1.0
        self._inverse: Array | None = None
        quadratic = self._lengths
        if n > 1 and has_spread:
            matrix = self._backend.copy(self.gram)
            self._inverse = positive_inverse(add_to_diagonal(matrix, trace / (n - 1)))
            self._solved = self._inverse @ self.projected
            quadratic = quadratic - xp.sum(self.projected * self._solved, axis=0)
        self.quadratic = self._scale * quadratic

    @property
    def accumulated(self) -> float:
        """The trace of the scatter, which is computed on request and accumulates no changes."""
        return float(self._backend.xp.linalg.trace(self.gram))

    def current_scatter(self) -> Array:
        """The scatter matrix."""
        return self.centred.T @ self.centred

    def insert(self, change: BankInsertion, slot: int) -> None:
        """Update after one insertion into `slot` of the class."""
        xp, bank, k = self._backend.xp, self._bank, change.k
        members = bank.slots_of(k)
        if (k, slot) not in self._row:
            self._row[k, slot] = self._size
            self._reserve(self._size + 1)
            self._size += 1
        rows = xp.asarray([self._row[k, member] for member in members], device=self._backend.device)
        means = self._sums.means
        own = bank.features[k][xp.asarray(members, device=self._backend.device)] - means[k]
        centred, gram, projected = self.centred, self.gram, self.projected
        centred[rows] = own
        products = own @ centred.T
        gram[rows] = products
        gram[:, rows] = products.T
        projected[rows] = own @ means.T
        projected[:, k] = centred @ means[k]
        self._lengths[k : k + 1] = self._squared_lengths(slice(k, k + 1))
        self._factorise()

    def _reserve(self, size: int) -> None:
        """Make room for `size` rows: twice as many as there are, so that most insertions move nothing."""
        rows, d = self._centred.shape
        if size <= rows:
            return
        n, zeros = self._size, self._backend.zeros
        centred, gram, projected = self.centred, self.gram, self.projected
        room = max(2 * rows, size, FIRST_ROWS)
        self._centred, self._gram = zeros((room, d)), zeros((room, room))
        self._projected = zeros((room, projected.shape[1]))
        self._centred[:n], self._gram[:n, :n], self._projected[:n] = centred, gram, projected

    def cross(self, x: Array) -> Array:
        """mu_k^T P x, (n, K)."""
        plain = x @ self._sums.means.T
        if self._inverse is None:
            return self._scale * plain
        return self._scale * (plain - (x @ self.centred.T) @ self._solved)

    def directions(self) -> Array:
        """P mu_k, (K, d)."""
        means = self._sums.means
        if self._inverse is None:
            return self._scale * means
        return self._scale * (means - self._solved.T @ self.centred)

    def matrix(self) -> Array:
        """P (d, d)."""
        xp = self._backend.xp
        identity = xp.eye(self._centred.shape[1], dtype=xp.float64, device=self._backend.device)
        if self._inverse is None:
            return self._scale * identity
        return self._scale * (identity - self.centred.T @ self._inverse @ self.centred)

    def state(self) -> tuple[dict[str, Array], dict[str, Any]]:
        places = np.array(sorted(self._row, key=self._row.__getitem__), dtype=np.int64).reshape(-1, 2)
        kept = {"centred": self.centred, "gram": self.gram, "projected": self.projected}
        arrays = {name: self._backend.copy(array) for name, array in kept.items()}
        return {**arrays, "places": self._backend.xp.asarray(places, device=self._backend.device)}, {}

    def restore(self, arrays: Mapping[str, Array], values: Mapping[str, Any]) -> None:
        places = [tuple(place) for place in to_numpy(arrays["places"]).tolist()]
        if sorted(places) != sorted(self._row):
            raise ValueError("the engine's places do not match the bank's used slots")
        check_shapes(arrays, self.state()[0])
        self._row = {place: row for row, place in enumerate(places)}
        self._set(arrays["centred"], arrays["gram"], arrays["projected"])
