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
from zeroshift.linalg import SMALLEST_TRACE, ZERO_TRACE, positive_inverse

__all__ = ["DualPrecision"]


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
        self.centred = bank.features[k, slot] - sums.means[k]
        self.gram = self.centred @ self.centred.T
        self.projected = self.centred @ sums.means.T
        self._factorise()

    def _factorise(self) -> None:
        xp = self._backend.xp
        n, d = self.centred.shape
        means = self._sums.means
        lengths = xp.sum(means * means, axis=1)
        trace = float(xp.linalg.trace(self.gram)) if n else 0.0
        has_spread = trace > ZERO_TRACE * n
        if has_spread and trace < SMALLEST_TRACE * n:
            trace = SMALLEST_TRACE * n
            self._diagnostics.bounded_precisions += 1
        self._scale = d * n / trace if has_spread else 1.0
        self._solved = None
        quadratic = lengths
        if n > 1 and has_spread:
            self._ridge = trace / (n - 1)
            ridge = self._ridge * xp.eye(n, dtype=means.dtype, device=self._backend.device)
            self._solved = positive_inverse(self.gram + ridge) @ self.projected
            quadratic = lengths - xp.sum(self.projected * self._solved, axis=0)
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
            self._grow(k, slot)
        rows = xp.asarray([self._row[k, member] for member in members], device=self._backend.device)
        means = self._sums.means
        own = bank.features[k][xp.asarray(members, device=self._backend.device)] - means[k]
        self.centred[rows] = own
        products = own @ self.centred.T
        self.gram[rows] = products
        self.gram[:, rows] = products.T
        self.projected[rows] = own @ means.T
        self.projected[:, k] = self.centred @ means[k]
        self._factorise()

    def _grow(self, k: int, slot: int) -> None:
        """Add a row for a new entry."""
        n, d = self.centred.shape
        xp, zeros = self._backend.xp, self._backend.zeros
        self._row[k, slot] = n
        self.centred = xp.concat([self.centred, zeros((1, d))])
        self.projected = xp.concat([self.projected, zeros((1, self.projected.shape[1]))])
        gram = zeros((n + 1, n + 1))
        gram[:n, :n] = self.gram
        self.gram = gram

    def cross(self, x: Array) -> Array:
        """mu_k^T P x, (n, K)."""
        plain = x @ self._sums.means.T
        if self._solved is None:
            return self._scale * plain
        return self._scale * (plain - (x @ self.centred.T) @ self._solved)

    def directions(self) -> Array:
        """P mu_k, (K, d)."""
        means = self._sums.means
        if self._solved is None:
            return self._scale * means
        return self._scale * (means - self._solved.T @ self.centred)

    def matrix(self) -> Array:
        """P (d, d)."""
        xp, n = self._backend.xp, self.centred.shape[0]
        identity = xp.eye(self.centred.shape[1], dtype=xp.float64, device=self._backend.device)
        if self._solved is None:
            return self._scale * identity
        ridge = self._ridge * xp.eye(n, dtype=xp.float64, device=self._backend.device)
        return self._scale * (identity - self.centred.T @ positive_inverse(self.gram + ridge) @ self.centred)

    def state(self) -> tuple[dict[str, Array], dict[str, Any]]:
        places = np.array(sorted(self._row, key=self._row.__getitem__), dtype=np.int64).reshape(-1, 2)
        kept = {"centred": self.centred, "gram": self.gram, "projected": self.projected}
        return {**kept, "places": self._backend.xp.asarray(places, device=self._backend.device)}, {}

    def restore(self, arrays: Mapping[str, Array], values: Mapping[str, Any]) -> None:
        places = [tuple(place) for place in to_numpy(arrays["places"]).tolist()]
        if sorted(places) != sorted(self._row):
            raise ValueError("the engine's places do not match the bank's used slots")
        check_shapes(arrays, self.state()[0])
        self._row = {place: row for row, place in enumerate(places)}
        self.centred, self.gram, self.projected = arrays["centred"], arrays["gram"], arrays["projected"]
        self._factorise()
