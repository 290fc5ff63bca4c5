"""What every engine is: rows in order, statistics that can be made anew from the evidence."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

from zeroshift.arrays import Array

__all__ = ["DRIFT_TOLERANCE", "EngineBase", "EngineDiagnostics"]


# How a maintained inverse is doing: counted in public, so that nobody has to trust it.


DRIFT_TOLERANCE = 1e-8
"""Largest relative error of the maintained inverse, measured on a probe, before it is made anew."""


@dataclass
class EngineDiagnostics:
    """Counts since the engine began (or was last loaded).

    Of the inverse streaming maintains once the bank has outgrown the dual form; replayed blocks bring their own, which
    are never maintained. `updates`: insertions carried out on it. `factorisations`: how often it was made from scratch,
    `ridge_factorisations` of them because the ridge had moved too far for the stated error, `scheduled_factorisations`
    because enough updates had gone by, and `drift_factorisations` because a check found an error beyond
    `DRIFT_TOLERANCE`. `scatter_rebuilds`: scatter matrices summed anew from the bank because rounding could have shown.
    `checks`: comparisons made. `largest_drift`: the largest relative error any of them found.
    """

    updates: int = 0
    factorisations: int = 0
    ridge_factorisations: int = 0
    scheduled_factorisations: int = 0
    drift_factorisations: int = 0
    scatter_rebuilds: int = 0
    checks: int = 0
    largest_drift: float = 0.0


class EngineBase(ABC):
    block_rows = 1024
    """Rows converted together; each sample is still learned and predicted on its own."""

    diagnostics: EngineDiagnostics

    @abstractmethod
    def refresh(self) -> None:
        """Recompute all statistics from the evidence."""

    @abstractmethod
    def step(self, features: Array) -> Array:
        """Algorithm 1 for one sample, or for one batch: offer, update, score (n, K)."""

    def run(self, features: Array, batch_size: int) -> Iterator[Array]:
        """Learn and score the rows, batch by batch."""
        for start in range(0, features.shape[0], batch_size):
            yield self.step(features[start : start + batch_size, :])
