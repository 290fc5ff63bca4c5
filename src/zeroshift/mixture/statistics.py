"""The equations: from sums to Gaussian classes, and from these to scores. docs/anchored-mixture.md derives them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from zeroshift.arrays import Array, Backend, to_numpy
from zeroshift.linalg import SMALLEST_TRACE, ZERO_TRACE, positive_inverse
from zeroshift.mixture.sums import Sums
from zeroshift.mixture.temperature import confidence_curve, temperature_for
from zeroshift.zero_shot import TIE

__all__ = [
    "LogAndPosterior",
    "Mixture",
    "MixtureConstants",
    "MixtureHead",
    "Posteriors",
    "StreamDiagnostics",
    "class_share",
    "estimate",
    "neighbour_correlation",
    "normalize_scores",
    "stream_diagnostics",
]


class LogAndPosterior(NamedTuple):
    """Log-posteriors and posteriors, both (n, K)."""

    logs: Array
    posteriors: Array


def normalize_scores(scores: Array) -> LogAndPosterior:
    """Log-softmax and softmax of scores (n, K) with one exponential. The scores are overwritten: with a thousand
    classes a new array costs more time than the arithmetic.

    >>> import numpy as np
    >>> found = normalize_scores(np.array([[1.0, 1.0]]))
    >>> found.logs.round(6), found.posteriors
    (array([[-0.693147, -0.693147]]), array([[0.5, 0.5]]))
    """
    backend = Backend.of(scores)
    xp = backend.xp
    if backend.library == "torch":
        logs = scores.log_softmax(-1)  # one kernel on a GPU instead of five
        return LogAndPosterior(logs, xp.exp(logs))
    scores -= xp.max(scores, axis=1, keepdims=True)
    posteriors = xp.exp(scores)
    totals = xp.sum(posteriors, axis=1, keepdims=True)
    posteriors /= totals
    scores -= xp.log(totals)
    return LogAndPosterior(scores, posteriors)


class StreamDiagnostics(NamedTuple):
    """How little a stream looks like samples drawn at random from all classes, judged by its zero-shot posteriors.

    Each value is between 0 (not at all) and 1 (completely).
    """

    order: float
    """Neighbours are alike, as in a stream sorted by class."""
    balance: float
    """Few of the classes occur."""

    @property
    def combined(self) -> float:
        """1 if either is 1, 0 if both are 0."""
        return 1.0 - (1.0 - self.order) * (1.0 - self.balance)


def stream_diagnostics(
    posteriors: np.ndarray, watched: np.ndarray, *, correlation: float, balance: tuple[float, float]
) -> StreamDiagnostics:
    """How little the stream looks like samples drawn at random from all classes.

    Parameters
    ----------
    posteriors, watched : sums, see `Sums`.
    correlation : correlation of neighbours at which `order` is one half.
    balance : effective share of the classes that occur: `balance` is 0 above the second value, 1 below the first.
    """
    if watched[0] < 2:
        return StreamDiagnostics(0.0, 0.0)
    r = neighbour_correlation(posteriors, watched)
    share = class_share(len(posteriors), _class_collision(posteriors, watched))
    least, enough = balance
    missing = float(np.clip((enough - share) / (enough - least), 0.0, 1.0)) if enough > least else float(share < least)
    return StreamDiagnostics(r * r / (r * r + correlation**2), missing)


def _class_collision(posteriors: np.ndarray, watched: np.ndarray) -> float:
    """Mean of y_i.y_j over pairs of different samples: the probability that two random samples share their class."""
    n, squares = watched[0], watched[1]
    return max(float(posteriors @ posteriors - squares) / (n * (n - 1)), 0.0)


def class_share(classes: int, collision: float) -> float:
    """Effective share of the classes that occur: one over the probability that two samples share a class, over K.

    >>> class_share(4, 0.5)  # two of four classes, equally often
    0.5
    """
    return min(1.0, 1.0 / (classes * max(collision, 1.0 / classes)))


SMALLEST_VARIANCE = 1e-10
"""A variance of the posteriors below this counts as this: the sums resolve about 1e-16 of it."""


def neighbour_correlation(posteriors: np.ndarray, watched: np.ndarray) -> float:
    """Correlation of neighbouring posteriors: 0 if neighbours are like random pairs, 1 if they are equal.

    >>> round(neighbour_correlation(np.array([3.0, 3.0]), np.array([6.0, 6.0, 5.0, 4.0])), 6)
    0.666667
    """
    n, squares, pairs, products = watched
    if pairs == 0:
        return 0.0
    random_pairs, itself = _class_collision(posteriors, watched), squares / n
    return float(np.clip((products / pairs - random_pairs) / max(itself - random_pairs, SMALLEST_VARIANCE), 0.0, 1.0))


ROUNDING = 1e-12
"""A variance below this share of the samples' mean squared length is rounding noise of a subtraction, whose matrix need
not be positive definite. It counts as zero."""


@dataclass(frozen=True)
class MixtureConstants:
    """The parameters of `AnchoredMixture` that appear in the equations."""

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
    """Gaussian classes with one shared precision, and the weight they have."""

    means: Array
    """(K, d)"""
    precision: Array
    """(d, d)"""
    mean_counts: Array
    """(K,) number of samples each mean is estimated from, including the anchor."""
    widening: Array
    """(K,) factor on the distances because the means are uncertain."""
    directions: Array
    """(K, d) means times precision"""
    lengths: Array
    """(K,) each mean's squared length in the precision"""
    reliability: float
    stream: StreamDiagnostics
    anchor: float
    """Number of samples an anchor counts as."""
    temperature: float
    constants: MixtureConstants

    def distances(self, features: Array) -> Array:
        """(n, K) squared Mahalanobis distances, widened."""
        xp = Backend.of(features).xp
        distances = features @ self.directions.T
        distances *= -2.0
        distances += self._squared_lengths(features)[:, None]
        distances += self.lengths
        xp.clip(distances, 0.0, None, out=distances)
        distances *= self.widening
        return distances

    def _squared_lengths(self, features: Array) -> Array:
        """(n,) each sample's squared length in the precision."""
        return Backend.of(features).xp.linalg.vecdot(features @ self.precision, features)

    @property
    def _distance_weight(self) -> float:
        """Factor on the distances in a log-posterior."""
        return 0.5 * self.constants.weight * self.reliability

    def posteriors(self, log_y: Array, distances: Array) -> Posteriors:
        """Posteriors to learn from and to answer with, from zero-shot log-posteriors and distances (n, K)."""
        answer, posteriors = normalize_scores(_subtract_distances(log_y, self._distance_weight, distances))
        relief = self.constants.relief * self.stream.order
        if relief:
            answer = normalize_scores(
                _subtract_distances(log_y, self._distance_weight * (1.0 - relief), distances)
            ).logs
        return Posteriors(posteriors, answer)

    def linear_head(self, prototypes: Array, logit_scale: float) -> MixtureHead:
        """The posteriors to learn from with one matrix product instead of two."""
        distance_weights = self._distance_weight * self.widening
        vectors = self.directions * (2.0 * distance_weights)[:, None]
        vectors += logit_scale * prototypes
        return MixtureHead(self, vectors, distance_weights)

    def confidences(self, log_y: Array, distances: Array, answer: Array) -> Array:
        """(n, 1 + N_TEMPERATURES): the reference posterior's probability of each answer's label, and the confidence of
        the answers at each temperature. See `temperature.py`."""
        xp = Backend.of(log_y).xp
        reference = self._reference_probability(log_y, distances, answer)
        return xp.concat([reference[:, None], confidence_curve(answer)], axis=1)

    def _reference_probability(self, log_y: Array, distances: Array, answer: Array) -> Array:
        """(n,) probability of each answer's label in the posterior whose likelihood is weighted by `calm`."""
        xp = Backend.of(log_y).xp
        reference = normalize_scores(
            _subtract_distances(log_y, self.constants.calm * self._distance_weight, distances)
        ).posteriors
        # Classes that tie for the largest score share it.
        tied = xp.astype(answer >= xp.max(answer, axis=1)[:, None] - TIE, xp.float64)
        return xp.linalg.vecdot(reference, tied) / xp.sum(tied, axis=1)

    def leave_one_out(self, distances: Array, posteriors: Array) -> Array:
        """Distances (n, K) to means without the samples' own contribution, which is their `posteriors` (n, K). The
        given distances are overwritten."""
        xp = Backend.of(distances).xp
        # A mean m of weight v that contains x with weight q is (v m - q x) / (v - q) without it.
        without = self.mean_counts - posteriors
        xp.clip(without, self.anchor, None, out=without)
        without /= self.mean_counts
        distances /= without
        distances /= without
        return distances


@dataclass(frozen=True)
class Posteriors:
    """Posteriors (n, K) to learn from, and log-posteriors (n, K) to answer with."""

    posteriors: Array
    answer: Array


@dataclass(frozen=True)
class MixtureHead:
    """Zero-shot logits and weighted distances of a mixture as one linear map of a sample and its squared length."""

    mixture: Mixture
    vectors: Array
    """(K, d)"""
    distance_weights: Array
    """(K,) factor on the distance to each class."""

    def posteriors(self, features: Array) -> Array:
        """(n, K), equal to `Mixture.posteriors`."""
        scores = features @ self.vectors.T
        scores -= self.mixture._squared_lengths(features)[:, None] * self.distance_weights
        scores -= self.mixture.lengths * self.distance_weights
        return normalize_scores(scores).posteriors


def _subtract_distances(log_y: Array, weight: float, distances: Array) -> Array:
    """log y - weight * distances, in one new array."""
    scores = distances * -weight
    scores += log_y
    return scores


def estimate(sums: Sums, prototypes: Array, constants: MixtureConstants) -> Mixture | None:
    """The classes that follow from sums and prototypes (K, d) in float64; None while there are too few samples."""
    backend = Backend.of(prototypes)
    xp = backend.xp
    classes, d = prototypes.shape
    counts = sums.counts
    n = round(float(xp.sum(counts)))  # soft counts of a sample add up to 1
    if n < constants.first_samples:
        return None
    posteriors, watched = to_numpy(sums.posteriors), to_numpy(sums.watched)
    stream = stream_diagnostics(posteriors, watched, correlation=constants.correlation, balance=constants.balance)
    u = stream.combined
    anchor = constants.anchor_count + (constants.cautious_anchor_count - constants.anchor_count) * u

    positive_counts = xp.where(counts > 0, counts, xp.ones_like(counts))
    trust = counts / (counts + anchor)
    # Centers of image and text features: over all classes or, if few classes occur, over those that do.
    share = trust / xp.sum(trust)
    center = (1.0 - u) * sums.total / n + u * ((share / positive_counts) @ sums.weighted)
    text_center = (1.0 - u) * xp.mean(prototypes, axis=0) + u * (share @ prototypes)
    spread = 1.0
    if n > constants.spread_samples * classes:
        text_spread = _spread(prototypes, text_center, trust)
        if text_spread > ZERO_TRACE:
            image_spread = _spread(sums.weighted / positive_counts[:, None], center, trust)
            spread = float(np.clip((image_spread / text_spread) ** 0.5, *constants.spread_range))
    mean_counts = counts + anchor
    # (weighted + anchor (center + spread (prototype - text center))) / mean_counts, in one array.
    means = prototypes * (anchor * spread)
    means += anchor * (center - spread * text_center)
    means += sums.weighted
    means /= mean_counts[:, None]

    # scatter - weighted^T means - means^T weighted + means^T diag(counts) means, with one product.
    remainder = means * (-0.5 * counts)[:, None]
    remainder += sums.weighted
    cross = means.T @ remainder
    covariance = sums.scatter - cross
    covariance -= cross.T
    covariance /= n
    variance = float(xp.linalg.trace(covariance)) / d
    if variance * d <= ROUNDING * float(xp.linalg.trace(sums.scatter)) / n:
        precision = xp.zeros_like(covariance)
    else:
        shrinkage = constants.shrinkage + (1.0 - constants.shrinkage) * d / (d + constants.shrinkage_samples * n)
        variance = max(variance, SMALLEST_TRACE / d)
        covariance *= 1.0 - shrinkage
        xp.reshape(covariance, (-1,))[:: d + 1] += shrinkage * variance
        precision = _inverse(covariance)
    directions = means @ precision
    return Mixture(
        means=means,
        precision=precision,
        mean_counts=mean_counts,
        widening=(1.0 - u) * mean_counts / (mean_counts + 1.0) + u,
        directions=directions,
        lengths=xp.linalg.vecdot(directions, means),
        reliability=n / (n + constants.reliability_samples * classes),
        stream=stream,
        anchor=anchor,
        temperature=temperature_for(to_numpy(sums.confidences)),
        constants=constants,
    )


def _spread(vectors: Array, center: Array, trust: Array) -> float:
    """Sum of the squared distances of vectors (K, d) to the center, weighted by trust."""
    differences = vectors - center
    return float(trust @ Backend.of(differences).xp.linalg.vecdot(differences, differences))


def _inverse(matrix: Array) -> Array:
    backend = Backend.of(matrix)
    if backend.library == "numpy":
        return positive_inverse(matrix)
    return backend.xp.cholesky_inverse(backend.xp.linalg.cholesky(matrix))
