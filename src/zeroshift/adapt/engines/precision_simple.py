"""The two simple forms of the precision: fixed at the identity, or recomputed after every insertion."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zeroshift.adapt.bank import KnowledgeBank
from zeroshift.adapt.engines.base import EngineDiagnostics
from zeroshift.adapt.engines.class_statistics import BankInsertion, ClassSums
from zeroshift.adapt.statistics import bounded_precision
from zeroshift.arrays import Array, Backend

__all__ = ["RECOMPUTE_WORK", "FixedPrecision", "RecomputedPrecision"]


class FixedPrecision:
    """The identity, for `update_covariance=False`."""

    form = "fixed"

    def __init__(self, backend: Backend, bank: KnowledgeBank, sums: ClassSums, diagnostics: EngineDiagnostics) -> None:
        self._backend = backend
        self._sums = sums

    @property
    def quadratic(self) -> Array:
        return self._backend.xp.sum(self._sums.means * self._sums.means, axis=1)

    def insert(self, change: BankInsertion, slot: int) -> None:
        """Nothing to do: only the means change."""

    def cross(self, x: Array) -> Array:
        return x @ self._sums.means.T

    def directions(self) -> Array:
        return self._backend.copy(self._sums.means)

    def matrix(self) -> Array:
        xp = self._backend.xp
        return xp.eye(self._sums.means.shape[1], dtype=xp.float64, device=self._backend.device)

    accumulated = 0.0

    def current_scatter(self) -> Array:
        raise NotImplementedError("an identity has no scatter")

    def state(self) -> tuple[dict[str, Array], dict[str, Any]]:
        return {}, {}

    def restore(self, arrays: Mapping[str, Array], values: Mapping[str, Any]) -> None:
        """Nothing to do: there is no state."""


RECOMPUTE_WORK = 2_000_000
"""Multiplications, (N + d + K) d^2, up to which recomputing the precision is not slower than updating it."""


class RecomputedPrecision:
    """Recomputed after every insertion: the fastest form if dimension and bank are small."""

    form = "fresh"

    def __init__(self, backend: Backend, bank: KnowledgeBank, sums: ClassSums, diagnostics: EngineDiagnostics) -> None:
        self._backend = backend
        self._bank = bank
        self._sums = sums
        self._diagnostics = diagnostics
        self.refresh()

    def refresh(self) -> None:
        means = self._sums.means
        self._precision, bounded = None, False
        if self._sums.size:
            self._precision, bounded = bounded_precision(self.current_scatter(), self._sums.size)
        self._diagnostics.bounded_precisions += bounded
        self._directions = means if self._precision is None else means @ self._precision
        self.quadratic = self._backend.xp.sum(self._directions * means, axis=1)

    @property
    def accumulated(self) -> float:
        """The trace of the scatter, which is summed from the bank on request and accumulates no changes."""
        return float(self._backend.xp.linalg.trace(self.current_scatter()))

    def current_scatter(self) -> Array:
        """The scatter matrix."""
        return self._bank.scatter(self._sums.means)

    def insert(self, change: BankInsertion, slot: int) -> None:
        self.refresh()

    def cross(self, x: Array) -> Array:
        """mu_k^T P x, (n, K)."""
        return x @ self._directions.T

    def directions(self) -> Array:
        """P mu_k, (K, d)."""
        return self._backend.copy(self._directions)

    def matrix(self) -> Array:
        """P (d, d)."""
        if self._precision is None:
            xp = self._backend.xp
            return xp.eye(self._sums.means.shape[1], dtype=xp.float64, device=self._backend.device)
        return self._backend.copy(self._precision)

    def state(self) -> tuple[dict[str, Array], dict[str, Any]]:
        return {}, {}

    def restore(self, arrays: Mapping[str, Array], values: Mapping[str, Any]) -> None:
        """Recompute from the restored sums."""
        self.refresh()
