"""What every engine is: rows in order, statistics that can be made anew from the evidence."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator

from zeroshift.adapt.engines.health import Health
from zeroshift.arrays import Array

__all__ = ["EngineBase"]


class EngineBase(ABC):
    block_rows = 1024
    """Rows converted together; each sample is still learned and predicted on its own."""

    health: Health
    _stale = False

    @abstractmethod
    def refresh(self) -> None:
        """Everything anew from the evidence; nothing is stale afterwards."""

    @abstractmethod
    def step(self, features: Array) -> Array:
        """Algorithm 1 for one sample, or for one batch: offer, update, score (n, K)."""

    def run(self, features: Array, batch_size: int) -> Iterator[Array]:
        """Learn and score the rows, batch by batch."""
        for start in range(0, features.shape[0], batch_size):
            yield self.step(features[start : start + batch_size, :])

    def mark_stale(self) -> None:
        """The evidence is about to change behind the engine's back: whatever happens, derive all anew before use."""
        self._stale = True

    def _ready(self) -> None:
        if self._stale:
            self.refresh()
