"""The fused prediction (Eq. 8) as one linear classifier: logits, discriminant and bank term in one product."""

from __future__ import annotations

from dataclasses import dataclass

from zeroshift.adapt.bank import KnowledgeBank
from zeroshift.adapt.excess import add_excess
from zeroshift.adapt.gaussians import Evidence, Gaussians, Rule
from zeroshift.adapt.sketch import Sketch
from zeroshift.arrays import Array, Home, namespace

__all__ = ["WORK_NUMBERS", "Fusion", "log_normaliser"]

WORK_NUMBERS = 50_000
"""Cosines held at once at least, however few rows are scored together."""

CACHED_BOUNDS = 1_000_000
"""Bounds on cosines held at once on a processor: few enough to be in its caches still when they are looked at."""


def log_normaliser(logits: Array) -> Array:
    """log sum_k exp(logit_k) of every row (n, K); the logits are overwritten."""
    xp = namespace(logits)
    top = xp.max(logits, axis=1)
    logits -= top[:, None]
    return top + xp.log(xp.sum(xp.exp(logits, out=logits), axis=1))


@dataclass(frozen=True)
class Fusion:
    """log y_k + g_k + r_k = x.directions_k + offsets_k - log_normaliser(x), plus what negative cosines add to r_k.

    With no evidence at all it is log y: the zero-shot classifier unchanged.
    """

    directions: Array
    offsets: Array
    sketch: Sketch | None

    @classmethod
    def of(cls, scaled_prototypes: Array, gaussians: Gaussians, evidence: Evidence, rule: Rule) -> Fusion:
        """From s t_k (K, d) and what has been learned."""
        if evidence.size == 0:
            return cls(scaled_prototypes, namespace(scaled_prototypes).zeros_like(gaussians.offsets), None)
        directions = scaled_prototypes + gaussians.directions
        sketch = None
        if rule.use_bank_term and isinstance(evidence, KnowledgeBank):
            directions += evidence.sums()[0]
            sketch = Sketch.of(evidence.features, evidence.weights)
        return cls(directions, gaussians.offsets, sketch)

    def scores(self, x: Array, log_normalisers: Array, evidence: Evidence, out: Array) -> Array:
        """Scores (n, K), in `out`, of the rows `x`, whose zero-shot log-normalisers (n,) are known."""
        scores = namespace(x).matmul(x, self.directions.T, out=out)
        scores += self.offsets
        scores -= log_normalisers[:, None]
        if self.sketch is not None and isinstance(evidence, KnowledgeBank):
            # Bounds in float32, or exact cosines in three arrays of float64, take about the space of the scores.
            n, classes = scores.shape
            numbers = max(n * classes // 4, WORK_NUMBERS)
            bounds = min(4 * numbers, CACHED_BOUNDS) if str(Home.of(x).device) == "cpu" else 4 * numbers
            at_once = max(1, bounds // (classes * evidence.weights.shape[1]))
            for rows, doubtful in self.sketch.doubtful(x, at_once):
                mended = scores[rows]
                add_excess(mended, x[rows], evidence.features, evidence.weights, doubtful, numbers)
                scores[rows] = mended
        return scores
