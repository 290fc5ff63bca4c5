"""Soft assignments of samples to classes from text, likelihood and neighbours: the z-update of TransCLIP and StatA."""

from __future__ import annotations

from dataclasses import dataclass

from zeroshift.arrays import Array, namespace
from zeroshift.methods.parts.affinity import Affinity

__all__ = ["TEMPERATURE", "Assignments"]

TEMPERATURE = 50.0
"""What the authors divide log-likelihoods by."""


@dataclass(frozen=True)
class Assignments:
    """z_i is the softmax of log_prior_i + log-likelihood_i / temperature + neighbour_weight (W z + W^T z)_i.

    In logarithms, so that no row becomes 0 / 0 where the text posterior underflows.
    """

    log_prior: Array
    """The text's say, (N, K): its log-posterior times its weight."""
    affinity: Affinity
    neighbour_weight: float
    """Of the sum over neighbours; 1/6 in the authors' code, which writes (50 / (2 * 3)) / 50."""
    temperature: float = TEMPERATURE
    iterations: int = 5
    """All samples at once, so many times over."""

    def update(self, z: Array, log_likelihood: Array) -> Array:
        """New assignments (N, K). `log_likelihood`, up to a constant a row, is overwritten."""
        base = log_likelihood
        base /= self.temperature
        base += self.log_prior
        for _ in range(self.iterations):
            if self.neighbour_weight == 0:
                return _softmax(base)
            scores = self.affinity.pull(z)
            scores *= self.neighbour_weight
            scores += base
            z = _softmax(scores)
        return z


def _softmax(scores: Array) -> Array:
    """In the scores' own memory where the library has no softmax of its own: it is the loop's most frequent step."""
    if hasattr(scores, "softmax"):
        return scores.softmax(-1)
    xp = namespace(scores)
    scores -= xp.max(scores, axis=1, keepdims=True)
    xp.exp(scores, out=scores)
    scores /= xp.sum(scores, axis=1, keepdims=True)
    return scores
