"""The precision that never moves: the identity (`update_covariance=False`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zeroshift.adapt.bank import KnowledgeBank
from zeroshift.adapt.engines.changes import Change
from zeroshift.adapt.engines.health import Health
from zeroshift.adapt.engines.sums import ClassSums
from zeroshift.arrays import Array, Home

__all__ = ["FixedPrecision"]


class FixedPrecision:
    form = "fixed"

    def __init__(self, home: Home, bank: KnowledgeBank, sums: ClassSums, health: Health) -> None:
        self._home = home
        self._sums = sums

    @property
    def quadratic(self) -> Array:
        return self._home.xp.sum(self._sums.means * self._sums.means, axis=1)

    def insert(self, change: Change, slot: int) -> None:
        """Nothing to follow: the means are all that changes."""

    def cross(self, x: Array) -> Array:
        return x @ self._sums.means.T

    def directions(self) -> Array:
        return self._home.copy(self._sums.means)

    def matrix(self) -> Array:
        xp = self._home.xp
        return xp.eye(self._sums.means.shape[1], dtype=xp.float64, device=self._home.device)

    gathered = 0.0

    def settled(self) -> Array:
        raise NotImplementedError("an identity has no scatter")

    def state(self) -> tuple[dict[str, Array], dict[str, Any]]:
        return {}, {}

    def restore(self, arrays: Mapping[str, Array], values: Mapping[str, Any]) -> None:
        """Nothing was saved, because nothing is kept."""
