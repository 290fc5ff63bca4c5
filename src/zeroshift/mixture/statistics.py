"""The equations: from sums to classes, and from classes to scores. docs/anchored-mixture.md derives them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from zeroshift.adapt.engines.factors import positive_inverse
from zeroshift.arrays import Array, Home, to_numpy
from zeroshift.mixture.caution import Caution, caution
from zeroshift.mixture.sums import Sums
from zeroshift.mixture.temperature import confidence_curve, temperature_for
from zeroshift.ridge import ZERO_TRACE
from zeroshift.zero_shot import TIE, log_softmax, softmax

__all__ = ["Mixture", "Reading", "Rule", "estimate"]


@dataclass(frozen=True)
class Rule:
    """The numbers the equations hold; see `AnchoredMixture`."""

    anchor_count: float
    cautious_anchor_count: float
    spread_range: tuple[float, float]
    spread_samples: float
    shrinkage: float
    shrinkage_samples: float
    reliability_samples: float
    weight: float
    first_samples: int
    correlation: float
    balance: tuple[float, float]
    relief: float
    calm: float


@dataclass(frozen=True)
class Mixture:
    """Gaussian classes with one precision, and how far they are to be trusted."""

    means: Array
    """(K, d)"""
    precision: Array
    """(d, d)"""
    known: Array
    """(K,) how many samples a mean is known from, the anchor's included."""
    widening: Array
    """(K,) what distances are multiplied by because means are uncertain."""
    directions: Array
    """(K, d) means times precision"""
    lengths: Array
    """(K,) each mean's squared length in the precision"""
    reliability: float
    caution: Caution
    anchor: float
    """Samples an anchor counts as."""
    temperature: float
    rule: Rule

    def distances(self, features: Array) -> Array:
        """(n, K) squared Mahalanobis distances, widened."""
        xp = Home.of(features).xp
        own = xp.sum((features @ self.precision) * features, axis=1)
        distances = features @ self.directions.T
        distances *= -2.0
        distances += own[:, None]
        distances += self.lengths
        distances = xp.clip(distances, 0.0, None)
        distances *= self.widening
        return distances

    def read(self, log_y: Array, distances: Array) -> Reading:
        """What the samples teach, and what is answered, from zero-shot log-posteriors and distances (n, K)."""
        xp = Home.of(log_y).xp
        pull = 0.5 * self.rule.weight * self.reliability
        learned = log_softmax(log_y - pull * distances)
        relief = self.rule.relief * self.caution.order
        answer = log_softmax(log_y - pull * (1.0 - relief) * distances) if relief else learned
        return Reading(xp.exp(learned), answer)

    def confidences(self, log_y: Array, distances: Array, answer: Array) -> Array:
        """(n, 1 + N_TEMPERATURES): what a calm look, by these distances, believes of the answers' labels, and the
        answers' confidences at each temperature."""
        home = Home.of(log_y)
        xp = home.xp
        calm = softmax(log_y - 0.5 * self.rule.weight * self.rule.calm * self.reliability * distances)
        # Of classes that lead together, whichever is named is believed alike.
        leads = xp.astype(answer >= xp.max(answer, axis=1)[:, None] - TIE, xp.float64)
        believed = xp.sum(calm * leads, axis=1) / xp.sum(leads, axis=1)
        return xp.concat([believed[:, None], confidence_curve(answer)], axis=1)

    def left_out(self, distances: Array, posteriors: Array) -> Array:
        """Distances (n, K) to means without the samples' own share in them, which is their `posteriors` (n, K)."""
        xp = Home.of(distances).xp
        # A mean m of weight v that holds x with weight q is v m - q x over v - q without it.
        without = xp.clip(self.known - posteriors, self.anchor, None)
        return distances * (self.known / without) ** 2


@dataclass(frozen=True)
class Reading:
    """Posteriors (n, K) to learn from, and log-posteriors (n, K) to answer with."""

    posteriors: Array
    answer: Array


def estimate(sums: Sums, prototypes: Array, rule: Rule) -> Mixture | None:
    """The classes as the sums have them, about prototypes (K, d) in float64; None while there are too few samples."""
    home = Home.of(prototypes)
    xp = home.xp
    classes, d = prototypes.shape
    counts = sums.counts
    n = round(float(xp.sum(counts)))  # soft counts add up to whole samples
    if n < rule.first_samples:
        return None
    posteriors, watched = to_numpy(sums.posteriors), to_numpy(sums.watched)
    careful = caution(posteriors, watched, correlation=rule.correlation, balance=rule.balance)
    u = careful.whole
    anchor = rule.anchor_count + (rule.cautious_anchor_count - rule.anchor_count) * u

    held = xp.where(counts > 0, counts, xp.ones_like(counts))
    centres = sums.weighted / held[:, None]
    trust = counts / (counts + anchor)
    # The middle of image and text features: of all, and, where few classes come, of those that came.
    share = trust / xp.sum(trust)
    middle = (1.0 - u) * sums.total / n + u * (share @ centres)
    text_middle = (1.0 - u) * xp.mean(prototypes, axis=0) + u * (share @ prototypes)
    offsets = prototypes - text_middle
    spread = 1.0
    if n > rule.spread_samples * classes:
        text_spread = float(trust @ xp.sum(offsets**2, axis=1))
        image_spread = float(trust @ xp.sum((centres - middle) ** 2, axis=1))
        if text_spread > ZERO_TRACE:
            spread = float(np.clip((image_spread / text_spread) ** 0.5, *rule.spread_range))
    anchors = middle + spread * offsets
    known = counts + anchor
    means = (sums.weighted + anchor * anchors) / known[:, None]

    cross = means.T @ (sums.weighted - 0.5 * counts[:, None] * means)
    covariance = (sums.scatter - cross - cross.T) / n
    variance = float(xp.linalg.trace(covariance)) / d
    if variance * d <= ZERO_TRACE:
        precision = xp.zeros_like(covariance)
    else:
        shrinkage = rule.shrinkage + (1.0 - rule.shrinkage) * d / (d + rule.shrinkage_samples * n)
        covariance *= 1.0 - shrinkage
        xp.reshape(covariance, (-1,))[:: d + 1] += shrinkage * variance
        precision = _inverse(covariance)
    directions = means @ precision
    return Mixture(
        means=means,
        precision=precision,
        known=known,
        widening=(1.0 - u) * known / (known + 1.0) + u,
        directions=directions,
        lengths=xp.sum(directions * means, axis=1),
        reliability=n / (n + rule.reliability_samples * classes),
        caution=careful,
        anchor=anchor,
        temperature=temperature_for(to_numpy(sums.confidences)),
        rule=rule,
    )


def _inverse(matrix: Array) -> Array:
    home = Home.of(matrix)
    if home.library == "numpy":
        return positive_inverse(matrix)
    return home.xp.cholesky_inverse(home.xp.linalg.cholesky(matrix))
