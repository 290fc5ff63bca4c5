"""Online ADAPT as the paper defines it: statistics from scratch after every change of the bank, in float64.

This is the reference for the faster engines. It is written to be read, not to be fast.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from zeroshift.adapt.engines.base import EngineBase, EngineDiagnostics
from zeroshift.adapt.statistics import AdaptSettings, Evidence, estimate, score
from zeroshift.arrays import Array, namespace
from zeroshift.zero_shot import log_posterior, softmax

__all__ = ["CONVERGED", "DirectEngine"]

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
        self.gaussians = estimate(self._evidence, self._evidence.sums(), self._prototypes, self._settings)
        self.diagnostics.bounded_precisions += self.gaussians.bounded

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
            gaussians = estimate(self._evidence, sums, self._prototypes, self._settings)
            scores = score(features, log_y, gaussians, self._evidence, self._settings)
            previous, z = z, softmax(scores)
            if float(xp.max(xp.abs(z - previous))) < CONVERGED:
                break
        return scores
