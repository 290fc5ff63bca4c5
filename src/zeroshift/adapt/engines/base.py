"""The base class of all engines, and the diagnostics of the inverse that streaming maintains."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

from zeroshift.arrays import Array, Backend
from zeroshift.precision import ProductDiagnostics

__all__ = ["DRIFT_TOLERANCE", "EngineBase", "EngineDiagnostics"]

DRIFT_TOLERANCE = 1e-8
"""Largest relative error of the maintained inverse, measured on a probe vector, before it is recomputed. Less is
allowed if the error of a score could exceed `precision_primal.SCORE_TOLERANCE`."""


@dataclass
class EngineDiagnostics(ProductDiagnostics):
    """Counts since the engine was created or last loaded.

    They describe the inverse that streaming maintains once the bank is too large for the dual form; replayed blocks
    compute their own inverses and do not maintain them.

    The first fields are those of `ProductDiagnostics`.

    `updates`: insertions applied to the inverse.
    `factorisations`: how often it was computed from scratch.
    `ridge_factorisations`: of these, because the ridge had changed too much for the error bound.
    `scheduled_factorisations`: because of the number of updates since the last one.
    `drift_factorisations`: because a check found an error above the tolerance (`DRIFT_TOLERANCE`).
    `scatter_rebuilds`: insertions computed directly from the bank, scatter and inverse, because of rounding errors or
    little spread (`precision_primal.SMALLEST_SPREAD`).
    `bounded_precisions`: precisions computed while the spread was below `linalg.SMALLEST_TRACE`. All engines and
    forms count these, `direct` too.
    `checks`: comparisons of the inverse with the scatter matrix.
    `largest_drift`: the largest relative error found by a check.
    """

    updates: int = 0
    factorisations: int = 0
    ridge_factorisations: int = 0
    scheduled_factorisations: int = 0
    drift_factorisations: int = 0
    scatter_rebuilds: int = 0
    bounded_precisions: int = 0
    checks: int = 0
    largest_drift: float = 0.0


class EngineBase(ABC):
    block_rows = 1024
    """Rows converted together; samples are still learned and predicted one by one."""

    diagnostics: EngineDiagnostics

    @abstractmethod
    def refresh(self) -> None:
        """Recompute all statistics from the evidence."""

    def learns_aside(self, rows: int) -> bool:
        """Whether so many rows take so long that a copy of the engine should learn them, to replace this one."""
        return False

    @abstractmethod
    def step(self, features: Array) -> Array:
        """Algorithm 1 for one sample or one batch: offer, update, score (n, K)."""

    def widened(self, features: Array) -> Array:
        """The rows in float64, whatever the precision of the products."""
        backend = Backend.of(features)
        return backend.asarray(features, backend.xp.float64)

    def select_products(self, features: Array, *, complete: bool = True) -> None:
        """Select the precision of the products for a call with these rows; by default it is always float64.

        Without `complete`, float32 scores of classes with a negligible probability may be too low.
        """
        self.diagnostics.products = "float64"

    def run(self, features: Array, batch_size: int) -> Iterator[Array]:
        """Learn and score the rows, batch by batch."""
        for start in range(0, features.shape[0], batch_size):
            yield self.step(features[start : start + batch_size, :])
