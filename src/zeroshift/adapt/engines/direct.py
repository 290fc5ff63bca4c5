"""Online ADAPT as the paper defines it: statistics from scratch after every change of the bank, in float64.

This is the reference for the faster engines. It is written to be read, not to be fast.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from zeroshift.adapt.engines.base import EngineBase, EngineDiagnostics
from zeroshift.adapt.statistics import AdaptSettings, Evidence, Gaussians, bounded_precision, estimate, score
from zeroshift.arrays import Array, Backend, namespace
from zeroshift.linalg import invert_positive
from zeroshift.zero_shot import log_posterior, softmax

__all__ = ["CONVERGED", "DirectEngine", "RecomputingEngine"]

CONVERGED = 1e-6
"""Iterations stop when no probability changes by this much."""


class DirectEngine(EngineBase):
    """Recomputes all statistics from the evidence after every change."""

    def __init__(
        self, prototypes: Array, logit_scale: float, iterations: int, settings: AdaptSettings, evidence: Evidence
    ) -> None:
        self._prototypes = prototypes
        self._logit_scale = logit_scale
        self._iterations = iterations
        self._settings = settings
        self._evidence = evidence
        self.diagnostics = EngineDiagnostics()
        self.refresh()

    def refresh(self) -> None:
        """Recompute the Gaussians from the evidence."""
        self.gaussians = self._estimate(self._evidence.sums())
        self.diagnostics.bounded_precisions += self.gaussians.bounded

    def _estimate(self, sums: tuple[Array, Array]) -> Gaussians:
        return estimate(self._evidence, sums, self._prototypes, self._settings)

    def finish(self) -> None:
        """Nothing to do: no work is deferred."""

    def step(self, features: Array) -> Array:
        """Algorithm 1 for one sample or one batch: offer, update, score (n, K)."""
        features = self.widened(features)  # the definition is float64
        log_y = log_posterior(features, self._prototypes, self._logit_scale)
        if self._evidence.offer(features, log_y):
            self.refresh()
        scores = score(features, log_y, self.gaussians, self._evidence, self._settings)
        return scores if self._iterations == 1 else self._iterate(features, log_y, scores)

    def scorer(self, rows: int) -> Callable[[Array], Array]:
        """A function that scores features with the present statistics; `rows` is the total number of rows."""

        def scores(features: Array) -> Array:
            features = self.widened(features)
            log_y = log_posterior(features, self._prototypes, self._logit_scale)
            return score(features, log_y, self.gaussians, self._evidence, self._settings)

        return scores

    def state(self) -> tuple[dict[str, Array], dict[str, Any]]:
        """Empty: everything follows from the evidence."""
        return {}, {}

    def restore(self, arrays: Mapping[str, Array], values: Mapping[str, Any]) -> None:
        self.refresh()

    def _iterate(self, features: Array, log_y: Array, scores: Array) -> Array:
        """Table 8: add the present samples, weighted by their own z, to the means; predict again. Nothing is kept."""
        xp = namespace(features)
        z = softmax(scores)
        # With beta, the equation of the mean also covers a class with an empty bank. With a fixed alpha its mean would
        # jump to the present sample, however improbable, so the class keeps its prototype.
        include_empty = self._settings.beta is not None
        for _ in range(self._iterations - 1):
            sums = self._evidence.sums_with(features, z, include_empty=include_empty)
            gaussians = self._estimate(sums)
            scores = score(features, log_y, gaussians, self._evidence, self._settings)
            previous, z = z, softmax(scores)
            if float(xp.max(xp.abs(z - previous))) < CONVERGED:
                break
        return scores


class RecomputingEngine(DirectEngine):
    """What `auto` uses for settings that only `direct` supports: the same, with a faster inverse of a positive definite
    matrix, and without inverting the covariance of a class again that has not changed."""

    def __init__(self, *arguments: Any) -> None:
        self._known: dict[int, tuple[Array, float, tuple[Array, bool]]] = {}
        super().__init__(*arguments)

    def _estimate(self, sums: tuple[Array, Array]) -> Gaussians:
        return estimate(self._evidence, sums, self._prototypes, self._settings, self._precision)

    def _precision(self, number: int, scatter: Array, count: float) -> tuple[Array, bool]:
        if not self._settings.per_class:  # it has changed, or there would be nothing to estimate
            return bounded_precision(scatter, count, invert_positive)
        known = self._known.get(number)
        if known is None or known[1] != count or not bool(namespace(scatter).all(known[0] == scatter)):
            precision = bounded_precision(scatter, count, invert_positive)
            # A copy: a part of an array would keep the whole of it in memory.
            known = self._known[number] = (Backend.of(scatter).copy(scatter), count, precision)
        return known[2]
