"""The equations: from sums to classes, and from classes to scores. docs/anchored-mixture.md derives them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from zeroshift.arrays import Array, Home, to_numpy
from zeroshift.linalg import ZERO_TRACE, positive_inverse
from zeroshift.mixture.sums import Sums
from zeroshift.mixture.temperature import confidence_curve, temperature_for
from zeroshift.zero_shot import TIE

__all__ = [
    "Caution",
    "Head",
    "Mixture",
    "Normalised",
    "Reading",
    "Rule",
    "caution",
    "class_share",
    "estimate",
    "neighbour_correlation",
    "normalised",
]


# Scores made probabilities in their own memory: with a thousand classes, another array costs more than the numbers.


class Normalised(NamedTuple):
    """Log-posteriors and posteriors, both (n, K)."""

    logs: Array
    posteriors: Array


def normalised(scores: Array) -> Normalised:
    """Log-softmax and softmax of scores (n, K) by one exponential; the scores are overwritten.

    >>> import numpy as np
    >>> found = normalised(np.array([[1.0, 1.0]]))
    >>> found.logs.round(6), found.posteriors
    (array([[-0.693147, -0.693147]]), array([[0.5, 0.5]]))
    """
    home = Home.of(scores)
    xp = home.xp
    if home.library == "torch":
        logs = scores.log_softmax(-1)  # one launch on a GPU in place of five
        return Normalised(logs, xp.exp(logs))
    scores -= xp.max(scores, axis=1, keepdims=True)
    posteriors = xp.exp(scores)
    totals = xp.sum(posteriors, axis=1, keepdims=True)
    posteriors /= totals
    scores -= xp.log(totals)
    return Normalised(scores, posteriors)


# How little the stream so far looks like samples drawn from all classes alike, from its zero-shot posteriors alone.


class Caution(NamedTuple):
    """Each from 0, not at all, to 1, wholly."""

    order: float
    """Neighbours are alike, as where classes come one after the other."""
    balance: float
    """Few of the classes come."""

    @property
    def whole(self) -> float:
        """For either reason."""
        return 1.0 - (1.0 - self.order) * (1.0 - self.balance)


def caution(
    posteriors: np.ndarray, watched: np.ndarray, *, correlation: float, balance: tuple[float, float]
) -> Caution:
    """How unlike samples drawn from all classes alike those watched are.

    Parameters
    ----------
    posteriors, watched : sums, see `Sums`.
    correlation : of neighbours, at which there is half of the caution there can be by their order.
    balance : share of the classes that come in effect: no caution by that above the second, all of it below the first.
    """
    if watched[0] < 2:
        return Caution(0.0, 0.0)
    r = neighbour_correlation(posteriors, watched)
    share = class_share(len(posteriors), _strangers(posteriors, watched))
    least, enough = balance
    missing = float(np.clip((enough - share) / (enough - least), 0.0, 1.0)) if enough > least else float(share < least)
    return Caution(r * r / (r * r + correlation**2), missing)


def _strangers(posteriors: np.ndarray, watched: np.ndarray) -> float:
    """Mean of y_i.y_j over two different samples: how often two drawn at random are of one class."""
    n, squares = watched[0], watched[1]
    return max(float(posteriors @ posteriors - squares) / (n * (n - 1)), 0.0)


def class_share(classes: int, strangers: float) -> float:
    """Classes that come in effect, of all: one over the probability that two samples share theirs, over K.

    >>> class_share(4, 0.5)  # two of four, alike often
    0.5
    """
    return min(1.0, 1.0 / (classes * max(strangers, 1.0 / classes)))


def neighbour_correlation(posteriors: np.ndarray, watched: np.ndarray) -> float:
    """How much more neighbours are alike than strangers, of how much more a sample is like itself; 0 where less.

    >>> round(neighbour_correlation(np.array([3.0, 3.0]), np.array([6.0, 6.0, 5.0, 4.0])), 6)
    0.666667
    """
    n, squares, pairs, products = watched
    if pairs == 0:
        return 0.0
    stranger, self_ = _strangers(posteriors, watched), squares / n
    return float(np.clip((products / pairs - stranger) / max(self_ - stranger, 1e-12), 0.0, 1.0))


ROUNDING = 1e-12
"""Share of the samples' mean squared length that may be left of it by subtracting: a smaller variance is noise, whose
matrix need not be positive, and counts as none."""


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
        distances = features @ self.directions.T
        distances *= -2.0
        distances += self._own_lengths(features)[:, None]
        distances += self.lengths
        xp.clip(distances, 0.0, None, out=distances)
        distances *= self.widening
        return distances

    def _own_lengths(self, features: Array) -> Array:
        """(n,) each sample's squared length in the precision."""
        return Home.of(features).xp.linalg.vecdot(features @ self.precision, features)

    @property
    def _pull(self) -> float:
        """What distances are multiplied by in a log-posterior."""
        return 0.5 * self.rule.weight * self.reliability

    def read(self, log_y: Array, distances: Array) -> Reading:
        """What the samples teach, and what is answered, from zero-shot log-posteriors and distances (n, K)."""
        answer, posteriors = normalised(_less(log_y, self._pull, distances))
        relief = self.rule.relief * self.caution.order
        if relief:
            answer = normalised(_less(log_y, self._pull * (1.0 - relief), distances)).logs
        return Reading(posteriors, answer)

    def head(self, prototypes: Array, logit_scale: float) -> Head:
        """What `read` learns from the samples, by one product in place of two."""
        pulls = self._pull * self.widening
        vectors = self.directions * (2.0 * pulls)[:, None]
        vectors += logit_scale * prototypes
        return Head(self, vectors, pulls)

    def confidences(self, log_y: Array, distances: Array, answer: Array) -> Array:
        """(n, 1 + N_TEMPERATURES): what a calm look, by these distances, believes of the answers' labels, and the
        answers' confidences at each temperature."""
        xp = Home.of(log_y).xp
        believed = self._believed(log_y, distances, answer)
        return xp.concat([believed[:, None], confidence_curve(answer)], axis=1)

    def _believed(self, log_y: Array, distances: Array, answer: Array) -> Array:
        """(n,) a calm look's probability of each answer's label."""
        xp = Home.of(log_y).xp
        calm = normalised(_less(log_y, self.rule.calm * self._pull, distances)).posteriors
        # Of classes that lead together, whichever is named is believed alike.
        leads = xp.astype(answer >= xp.max(answer, axis=1)[:, None] - TIE, xp.float64)
        return xp.linalg.vecdot(calm, leads) / xp.sum(leads, axis=1)

    def left_out(self, distances: Array, posteriors: Array) -> Array:
        """Distances (n, K) to means without the samples' own share in them, which is their `posteriors` (n, K). Those
        given are overwritten."""
        xp = Home.of(distances).xp
        # A mean m of weight v that holds x with weight q is v m - q x over v - q without it.
        without = self.known - posteriors
        xp.clip(without, self.anchor, None, out=without)
        without /= self.known
        distances /= without
        distances /= without
        return distances


@dataclass(frozen=True)
class Reading:
    """Posteriors (n, K) to learn from, and log-posteriors (n, K) to answer with."""

    posteriors: Array
    answer: Array


@dataclass(frozen=True)
class Head:
    """Zero-shot logits and weighed distances of a mixture as one linear map of a sample, and its own length."""

    mixture: Mixture
    vectors: Array
    """(K, d)"""
    pulls: Array
    """(K,) what each class's distance is multiplied by."""

    def posteriors(self, features: Array) -> Array:
        """(n, K), as `Mixture.read` has them."""
        scores = features @ self.vectors.T
        scores -= self.mixture._own_lengths(features)[:, None] * self.pulls
        scores -= self.mixture.lengths * self.pulls
        return normalised(scores).posteriors


def _less(log_y: Array, weight: float, distances: Array) -> Array:
    """log y - weight D, in one new array."""
    scores = distances * -weight
    scores += log_y
    return scores


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
    trust = counts / (counts + anchor)
    # The middle of image and text features: of all, and, where few classes come, of those that came.
    share = trust / xp.sum(trust)
    middle = (1.0 - u) * sums.total / n + u * ((share / held) @ sums.weighted)
    text_middle = (1.0 - u) * xp.mean(prototypes, axis=0) + u * (share @ prototypes)
    spread = 1.0
    if n > rule.spread_samples * classes:
        text_spread = _spread(prototypes, text_middle, trust)
        if text_spread > ZERO_TRACE:
            image_spread = _spread(sums.weighted / held[:, None], middle, trust)
            spread = float(np.clip((image_spread / text_spread) ** 0.5, *rule.spread_range))
    known = counts + anchor
    # (weighted + anchor (middle + spread (prototype - text middle))) / known, in one array.
    means = prototypes * (anchor * spread)
    means += anchor * (middle - spread * text_middle)
    means += sums.weighted
    means /= known[:, None]

    rest = means * (-0.5 * counts)[:, None]
    rest += sums.weighted
    cross = means.T @ rest
    covariance = sums.scatter - cross
    covariance -= cross.T
    covariance /= n
    variance = float(xp.linalg.trace(covariance)) / d
    if variance * d <= ROUNDING * float(xp.linalg.trace(sums.scatter)) / n:
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
        lengths=xp.linalg.vecdot(directions, means),
        reliability=n / (n + rule.reliability_samples * classes),
        caution=careful,
        anchor=anchor,
        temperature=temperature_for(to_numpy(sums.confidences)),
        rule=rule,
    )


def _spread(vectors: Array, middle: Array, trust: Array) -> float:
    """Squared distances of vectors (K, d) to the middle, weighed by trust and added up."""
    about = vectors - middle
    return float(trust @ Home.of(about).xp.linalg.vecdot(about, about))


def _inverse(matrix: Array) -> Array:
    home = Home.of(matrix)
    if home.library == "numpy":
        return positive_inverse(matrix)
    return home.xp.cholesky_inverse(home.xp.linalg.cholesky(matrix))
