"""Online ADAPT as the paper defines it: statistics from scratch whenever the bank changed, all in float64.

Kept for ever as the yardstick faster engines are measured against; it is written to be read, not to be quick.
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
"""Iterations stop when no probability moved by as much as this."""


class DirectEngine(EngineBase):
    def __init__(
        self, prototypes: Array, logit_scale: float, iterations: int, rule: AdaptSettings, evidence: Evidence
    ) -> None:
        self._prototypes = prototypes
        self._logit_scale = logit_scale
        self._iterations = iterations
        self._rule = rule
        self._evidence = evidence
        self.diagnostics = EngineDiagnostics()
        self.refresh()

    def refresh(self) -> None:
        """Estimate the Gaussians anew from the evidence."""
        self.gaussians = estimate(self._evidence, self._evidence.sums(), self._prototypes, self._rule)

    def finish(self) -> None:
        """Nothing is ever left for later."""

    def step(self, features: Array) -> Array:
        """Algorithm 1 for one sample, or for one batch: offer, update, score (n, K)."""
        log_y = log_posterior(features, self._prototypes, self._logit_scale)
        if self._evidence.offer(features, log_y):
            self.refresh()
        scores = score(features, log_y, self.gaussians, self._evidence, self._rule)
        return scores if self._iterations == 1 else self._iterate(features, log_y, scores)

    def scorer(self, rows: int) -> Callable[[Array], Array]:
        """Scores with the present statistics, for so many rows altogether."""

        def scores(features: Array) -> Array:
            log_y = log_posterior(features, self._prototypes, self._logit_scale)
            return score(features, log_y, self.gaussians, self._evidence, self._rule)

        return scores

    def state(self) -> tuple[dict[str, Array], dict[str, Any]]:
        """Nothing beyond the evidence."""
        return {}, {}

    def restore(self, arrays: Mapping[str, Array], values: Mapping[str, Any]) -> None:
        self.refresh()

    def _iterate(self, features: Array, log_y: Array, scores: Array) -> Array:
        """Table 8: the samples at hand, weighted by their own z, move the means; predict again. Nothing persists."""
        xp = namespace(features)
        z = softmax(scores)
        # With beta, Eq. A-online-mean says where a class without a bank goes; with a fixed alpha its mean would jump to
        # the sample at hand however improbable, so there it keeps its prototype.
        everywhere = self._rule.beta is not None
        for _ in range(self._iterations - 1):
            sums = self._evidence.sums_with(features, z, everywhere=everywhere)
            gaussians = estimate(self._evidence, sums, self._prototypes, self._rule)
            scores = score(features, log_y, gaussians, self._evidence, self._rule)
            previous, z = z, softmax(scores)
            if float(xp.max(xp.abs(z - previous))) < CONVERGED:
                break
        return scores
