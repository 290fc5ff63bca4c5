"""The equations: from sums to Gaussian classes, and from these to scores. docs/anchored-mixture.md derives them."""

from __future__ import annotations

import sys
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, ClassVar, NamedTuple, TypeVar

import numpy as np

from zeroshift.arrays import Array, Backend, to_numpy
from zeroshift.linalg import SMALLEST_TRACE, ZERO_TRACE, invert_positive, newton_inverse
from zeroshift.mixture.sums import Sums
from zeroshift.mixture.temperature import N_TEMPERATURES, confidence_curve, row_maxima, row_sums, temperature_for
from zeroshift.recording import Recordings, record
from zeroshift.zero_shot import TIE

__all__ = [
    "FULL_ORDER",
    "Distances",
    "Gaussians",
    "LogAndPosterior",
    "Mixture",
    "MixtureConstants",
    "StreamDiagnostics",
    "estimate",
    "imbalance_and_few_classes",
    "in_precision",
    "log_posteriors_of",
    "normalize_scores",
    "occurring_share",
    "posteriors_of",
    "varying_share",
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
    if not isinstance(scores, np.ndarray):
        logs = scores.log_softmax(-1)  # one kernel on a GPU instead of five
        return LogAndPosterior(logs, logs.exp())
    # `reduce` itself: for a single sample the functions around it take longer than the sums.
    scores -= np.maximum.reduce(scores, axis=1, keepdims=True)
    posteriors = np.exp(scores)
    totals = np.add.reduce(posteriors, axis=1, keepdims=True)
    posteriors /= totals
    scores -= np.log(totals)
    return LogAndPosterior(scores, posteriors)


def log_posteriors_of(scores: Array) -> Array:
    """Log-softmax of scores (n, K), which are overwritten."""
    if not isinstance(scores, np.ndarray):
        return scores.log_softmax(-1)
    scores -= np.maximum.reduce(scores, axis=1, keepdims=True)
    scores -= np.log(np.add.reduce(np.exp(scores), axis=1, keepdims=True))
    return scores


def posteriors_of(scores: Array) -> Array:
    """Softmax of scores (n, K), which are overwritten."""
    if not isinstance(scores, np.ndarray):
        return scores.softmax(-1)
    scores -= np.maximum.reduce(scores, axis=1, keepdims=True)
    np.exp(scores, out=scores)
    scores /= np.add.reduce(scores, axis=1, keepdims=True)
    return scores


def not_negative(array: Array) -> Array:
    """The array with negative numbers replaced by 0, in place."""
    return np.maximum(array, 0.0, out=array) if isinstance(array, np.ndarray) else array.clamp_(min=0.0)


FULL_ORDER = 0.5
"""Probability of staying from which a stream counts as fully ordered."""

CORRELATED = 2.0
"""Correlated neighbours that say as much as one independent sample: the mean of a chain that stays with probability a
has the variance of (1 - a) / (1 + a) independent samples, if all of the errors of neighbours are alike."""


class StreamDiagnostics(NamedTuple):
    """How little a stream looks like samples drawn at random from all classes, judged by its zero-shot posteriors.

    Each value is between 0 (not at all) and 1 (completely).
    """

    stay: float
    """The probability that a sample has the class of the sample before because it follows it; 0 in random order."""
    imbalance: float
    """Some classes seem to occur much more often than others."""
    few_classes: float
    """Few of the classes occur."""

    @property
    def order(self) -> float:
        """How much of an order there is."""
        return min(1.0, self.stay / FULL_ORDER)

    @property
    def independent(self) -> float:
        """Share of the information of independent samples that samples have whose neighbours share class and scene.

        >>> [round(StreamDiagnostics(stay, 0.0, 0.0).independent, 3) for stay in (0.0, 0.5, 0.9)]
        [1.0, 0.667, 0.105]
        """
        return min(1.0, CORRELATED * (1.0 - self.stay) / (1.0 + self.stay))

    @property
    def combined(self) -> float:
        """1 if any is 1, 0 if all are 0."""
        return 1.0 - (1.0 - self.order) * (1.0 - max(self.imbalance, self.few_classes))


SMALLEST_VARIANCE = 1e-10
"""A variance of the posteriors below this counts as zero: the sums resolve about 1e-16 of their squares."""


FEW_OCCURRING = (0.7, 0.85)
"""Limits of the occurring share for `few_classes`. They only exclude streams in which most classes occur evenly."""


def imbalance_and_few_classes(
    posteriors: np.ndarray, squares: np.ndarray, *, occurring: tuple[float, float], varying: tuple[float, float]
) -> tuple[float, float]:
    """Whether classes seem to occur unequally often, and whether only few of them occur, each from 0 to 1.

    A zero-shot classifier that favours some classes makes few classes seem to occur. Whether a class's probability
    varies from sample to sample does not depend on how high it is on average; so few classes occur only if few vary.

    Parameters
    ----------
    posteriors, squares : sums, see `Sums`.
    occurring, varying : 1 below the first value of the share, 0 above the second.
    """
    if round(float(posteriors.sum()), 6) < 2:
        return 0.0, 0.0
    share = occurring_share(posteriors, squares)
    few = min(_ramp(share, FEW_OCCURRING), _ramp(varying_share(posteriors, squares), varying))
    return _ramp(share, occurring), few


def occurring_share(posteriors: np.ndarray, squares: np.ndarray) -> float:
    """Effective share of the classes that occur: one over the probability that two samples share a class, over K.

    >>> occurring_share(np.array([5.0, 5.0, 0.0, 0.0]), np.array([5.0, 5.0, 0.0, 0.0])).__round__(3)
    0.562
    """
    n, classes = float(posteriors.sum()), len(posteriors)
    same = float(posteriors @ posteriors - squares.sum()) / (n * (n - 1.0))  # over pairs of different samples
    return min(1.0, 1.0 / (classes * max(same, 1.0 / classes)))


def varying_share(posteriors: np.ndarray, squares: np.ndarray) -> float:
    """Effective share of the classes whose posterior varies between samples: (sum v_k)^2 / (K sum v_k^2).

    n samples of K classes show fewer classes than there are; the factor 1 + K/n makes up for it.

    >>> varying_share(np.array([500.0, 500.0, 0.0, 0.0]), np.array([500.0, 500.0, 0.0, 0.0])).__round__(3)
    0.502
    """
    n, classes = float(posteriors.sum()), len(posteriors)
    variances = np.maximum(squares / n - (posteriors / n) ** 2, 0.0)
    total = float(variances.sum())
    if total < SMALLEST_VARIANCE:
        return 0.0
    return min(1.0, (1.0 + classes / n) * total**2 / (classes * float(variances @ variances)))


def _ramp(share: float, limits: tuple[float, float]) -> float:
    """1 below the first limit, 0 above the second, linear between."""
    low, high = limits
    return float(np.clip((high - share) / (high - low), 0.0, 1.0)) if high > low else float(share < low)


MANY_ROWS, FACTOR_COLUMNS = 256, 128
"""Rows from which squared lengths are computed with the triangular factor, and columns of it multiplied together."""

ROUNDING = 1e-12
"""A variance below this share of the samples' mean squared length is rounding noise of a subtraction, whose matrix need
not be positive definite. It counts as zero."""


FEW_CALM = 0.25
"""Further factor on the likelihood in the reference posterior, where few classes occur."""

PROPORTION_PRIOR = 0.1
"""Fictitious samples of each class in the proportions of the classes."""


@dataclass(frozen=True)
class MixtureConstants:
    """The parameters of `AnchoredMixture` that appear in the equations."""

    anchor_count: float
    cautious_anchor_count: float
    spread_range: tuple[float, float]
    shrinkage: float
    shrinkage_samples: float
    reliability_samples: float
    weight: float
    first_samples: int
    occurring: tuple[float, float]
    varying: tuple[float, float]
    few_classes_weight: float
    proportions: float
    relative_samples: float
    calm: float


@dataclass(frozen=True)
class Gaussians:
    """One Gaussian per class in the features of one encoder, with a shared precision, and the mean of all samples.

    Distances are computed from features relative to `origin`, a point near the samples: the numbers that are added up
    then have the size of the result, and rounding does little, also in float32.
    """

    not_state: ClassVar[frozenset[str]] = frozenset({"_factor"})

    means: Array
    """(K, d)"""
    precision: Array
    """(d, d)"""
    origin: Array
    """(d,) the mean of all samples, rounded to float32, so that it is the same in both precisions."""
    directions: Array
    """(K, d) means relative to the origin, times precision."""
    lengths: Array
    """(K,) squared length of each mean relative to the origin, in the precision."""
    center_direction: Array
    """(d,) the mean of all samples relative to the origin, times precision."""
    typical_offset: float
    """Squared length of that mean relative to the origin, plus the mean over the samples of the distance to their own
    class minus that to the mean of all samples."""
    spread: float
    """Root mean square distance of the samples from the origin."""

    def relative(self, features: Array) -> Array:
        """The features relative to the origin."""
        return features - self.origin

    def distances(self, relative: Array, factors: Array, backgrounds: Array | None) -> Array:
        """(n, K) squared Mahalanobis distances of features relative to the origin, times `factors` (K,).

        With `backgrounds` (K,), that share of the distance that is typical of a sample's own class is added.
        """
        return self.distances_from(
            relative @ self.directions.T, self.squared_lengths(relative), relative, factors, backgrounds
        )

    def distances_from(
        self, products: Array, squared_lengths: Array, relative: Array, factors: Array, backgrounds: Array | None
    ) -> Array:
        """The same from the products (n, K) of features and directions, which are overwritten, and the squared
        lengths."""
        products *= -2.0
        products += squared_lengths[:, None]
        products += self.lengths
        not_negative(products)
        products *= factors
        if backgrounds is not None:
            products += self.typical_distances(relative, squared_lengths)[:, None] * backgrounds
        return products

    def typical_distances(self, relative: Array, squared_lengths: Array) -> Array:
        """(n,) what the distance of each sample to its own class typically is: that to the mean of all samples plus the
        mean difference of the two."""
        typical = relative @ self.center_direction
        typical *= -2.0
        typical += squared_lengths
        typical += self.typical_offset
        return not_negative(typical)

    def squared_lengths(self, relative: Array) -> Array:
        """(n,) squared length of each row in the precision.

        For many rows on a CPU, with the Cholesky factor of the precision, which is triangular: that is little more
        than half of the work.
        """
        xp = Backend.of(relative).xp
        n, d = relative.shape
        if n < MANY_ROWS or d < 2 * FACTOR_COLUMNS or Backend.of(relative).on_gpu or self._factor is None:
            return xp.linalg.vecdot(relative @ self.precision, relative)
        total = xp.zeros(n, dtype=relative.dtype)
        for start in range(0, d, FACTOR_COLUMNS):
            part = relative[:, start:] @ self._factor[start:, start : start + FACTOR_COLUMNS]
            total += xp.linalg.vecdot(part, part)
        return total

    @cached_property
    def _factor(self) -> Array | None:
        """The lower Cholesky factor of the precision; None if the precision is not positive definite."""
        backend = Backend.of(self.precision)
        try:
            factor = backend.xp.linalg.cholesky(backend.asarray(self.precision, backend.xp.float64))
        except (np.linalg.LinAlgError, RuntimeError):  # the latter is torch's
            return None
        return backend.asarray(factor, self.precision.dtype)


class Distances(NamedTuple):
    """Distances (n, K) in the features of the first encoder, and of the second one if there is one."""

    first: Array
    second: Array | None


@dataclass(frozen=True)
class Mixture:
    """Gaussian classes, and the weight they have."""

    gaussians: Gaussians
    second: Gaussians | None
    """In the features of a second encoder."""
    second_weight: float
    """Weight of the second encoder's distances, relative to 1 for the first, in their mean."""
    mean_counts: Array
    """(K,) number of samples each mean is estimated from, including the anchor."""
    factors: Array
    """(K,) factor on the distances."""
    backgrounds: Array | None
    """(K,) share of the typical distance; None without order."""
    class_offsets: Array | None
    """(K,) added to the log-posteriors: the proportions of the classes, where few occur; None if all do."""
    reliability: float
    stream: StreamDiagnostics
    anchor: float
    """Number of samples an anchor counts as."""
    temperature: float
    constants: MixtureConstants

    def distances(self, features: Array, second: Array | None = None) -> Distances:
        """Distances (n, K) to the classes."""
        first = self.gaussians.distances(self.gaussians.relative(features), self.factors, self.backgrounds)
        return Distances(first, self.second_distances(second))

    def second_distances(self, second: Array | None) -> Array | None:
        """Distances (n, K) in the features of the second encoder; None if there are none."""
        if second is None or self.second is None:
            return None
        return self.second.distances(self.second.relative(second), self.factors, self.backgrounds)

    @property
    def distance_weight(self) -> float:
        """Factor on the distances in a log-posterior."""
        few_classes = 1.0 - self.stream.few_classes * (1.0 - self.constants.few_classes_weight)
        return self._full_weight * self.stream.independent * few_classes

    @property
    def _full_weight(self) -> float:
        return 0.5 * self.constants.weight * self.reliability

    def log_likelihoods(self, distances: Distances) -> Array:
        """(n, K) what the Gaussians say about each sample, with the proportions of the classes."""
        scores = distances.first * -self.distance_weight
        if distances.second is not None:
            scores -= (self.distance_weight * self.second_weight) * distances.second
            scores /= 1.0 + self.second_weight
        if self.class_offsets is not None:
            scores += self.class_offsets
        return scores

    def confidences(self, log_prior: Array, distances: Distances, answer: Array) -> Array:
        """(n, 1 + N_TEMPERATURES): the reference posterior's probability of each answer's label, and the confidence of
        the answers at each temperature. See `temperature.py`. `log_prior` (n, K) is the log-posterior without the
        Gaussians. The distances are overwritten."""
        backend = Backend.of(answer)
        highest = row_maxima(answer)[:, None]
        found = backend.xp.empty((answer.shape[0], 1 + N_TEMPERATURES), dtype=answer.dtype, device=backend.device)
        found[:, 0] = self._reference_probability(log_prior, distances, answer >= highest - TIE)
        found[:, 1:] = confidence_curve(answer)
        return found

    def _reference_probability(self, log_prior: Array, distances: Distances, labels: Array) -> Array:
        """(n,) probability of each answer's label in the posterior whose likelihood is weighted by `calm`. Classes that
        tie for the largest score share it: `labels` (n, K) says which these are."""
        weight = self.constants.calm * self._full_weight * (1.0 - self.stream.few_classes * (1.0 - FEW_CALM))
        scores = distances.first
        scores *= -weight
        if distances.second is not None:
            scores -= (weight * self.second_weight) * distances.second
            scores /= 1.0 + self.second_weight
        scores += log_prior
        if not isinstance(scores, np.ndarray):
            odds, totals = scores.softmax(-1), 1.0  # one kernel on a GPU instead of five
        else:
            scores -= row_maxima(scores)[:, None]
            odds = np.exp(scores, out=scores)
            totals = row_sums(odds)
        odds *= labels
        return row_sums(odds) / (totals * row_sums(labels))

    def leave_one_out(self, distances: Distances, posteriors: Array) -> Distances:
        """Distances to means without the samples' own contribution, which is their `posteriors` (n, K). The given
        distances are overwritten."""
        xp = Backend.of(posteriors).xp
        # A mean m of weight v that contains x with weight q is (v m - q x) / (v - q) without it.
        without = self.mean_counts - posteriors
        xp.clip(without, self.anchor, None, out=without)
        without /= self.mean_counts
        for part in distances:
            if part is not None:
                part /= without
                part /= without
        return distances

    def single_posteriors(self, log_y: Array, distances: Distances) -> tuple[Array, Array]:
        """Posteriors (n, K) from the first encoder alone, and from the second one's Gaussians alone."""
        if distances.second is None:
            raise ValueError("there is no second encoder")
        first = normalize_scores(log_y - self._full_weight * distances.first).posteriors
        return first, normalize_scores(-self._full_weight * distances.second).posteriors


T = TypeVar("T", bound="Gaussians | Mixture")


def in_precision(value: T, dtype: Any) -> T:
    """Gaussians or a mixture for features of this type: all arrays in it."""
    changes: dict[str, Any] = {}
    for field in fields(value):
        item = getattr(value, field.name)
        if isinstance(item, Gaussians):
            changes[field.name] = in_precision(item, dtype)
        elif hasattr(item, "shape"):
            changes[field.name] = Backend.of(item).asarray(item, dtype)
    return replace(value, **changes)


def estimate(
    sums: Sums, labelled: Sums | None, prototypes: Array, stay: float, constants: MixtureConstants
) -> Mixture | None:
    """The classes that follow from sums over a stream and over labelled samples; None while there are too few samples.

    `prototypes` (K, d) are in float64. `stay` is the probability of staying, 0 in random order.
    """
    backend = Backend.of(prototypes)
    xp = backend.xp
    stream_sums, sums = sums, sums if labelled is None else sums + labelled
    counts, classes = sums.counts, sums.counts.shape[0]
    # One transfer from a GPU.
    numbers = (sums.confidences, sums.posteriors, sums.squares, counts)
    host = to_numpy(xp.concat(numbers))
    confidences, (posteriors, squares, host_counts) = host[: -3 * classes], host[-3 * classes :].reshape(3, classes)
    n = round(float(host_counts.sum()), 6)  # soft counts of a sample add up to 1
    if n < constants.first_samples:
        return None
    imbalance, few = imbalance_and_few_classes(
        posteriors, squares, occurring=constants.occurring, varying=constants.varying
    )
    stream = StreamDiagnostics(stay, imbalance, few)
    order, u = stream.order, stream.combined
    anchor = constants.anchor_count + (constants.cautious_anchor_count - constants.anchor_count) * u
    mean_counts = counts + anchor
    gaussians = _first_gaussians(sums, prototypes, n, anchor, stream, constants)
    second, second_weight = None, 0.0
    if stream_sums.second_dimension:
        seen = float(xp.sum(stream_sums.counts))
        if seen > 0:
            second = _gaussians(
                stream_sums.counts, seen, anchor, _second_anchors(stream_sums), stream_sums.second_weighted,
                stream_sums.second_scatter, stream_sums.second_total, order, constants,
            )  # fmt: skip
            second_weight = _agreement_weight(stream_sums)
    widening = (1.0 - u) * mean_counts / (mean_counts + 1.0) + u
    factors, backgrounds, offsets = widening, None, None
    if order:
        known = counts / (counts + constants.relative_samples)
        factors = (1.0 - order) * widening + order * known
        backgrounds = order * (1.0 - known)
    if few and constants.proportions:
        shares = (counts + PROPORTION_PRIOR) / (n + PROPORTION_PRIOR * counts.shape[0])
        offsets = (constants.proportions * few) * xp.log(shares)
    return Mixture(
        gaussians=gaussians,
        second=second,
        second_weight=second_weight,
        mean_counts=mean_counts,
        factors=factors,
        backgrounds=backgrounds,
        class_offsets=offsets,
        reliability=n / (n + constants.reliability_samples * counts.shape[0]),
        stream=stream,
        anchor=anchor,
        temperature=temperature_for(confidences),
        constants=constants,
    )


def _first_gaussians(
    sums: Sums, prototypes: Array, n: float, anchor: float, stream: StreamDiagnostics, constants: MixtureConstants
) -> Gaussians:
    """The classes in the features of the first encoder."""
    u, in_place = stream.combined, stream.few_classes * (1.0 - stream.order)
    if not stream.order and Backend.of(prototypes).on_gpu:

        def on_gpu(*, recorded: bool) -> _GpuGaussians:
            return _GpuGaussians(prototypes, constants.spread_range, recorded=recorded)

        key = prototypes.shape, constants.spread_range
        with _RECORDINGS.use(prototypes, key, lambda: on_gpu(recorded=True)) as recorded:
            steps = recorded or on_gpu(recorded=False)
            found = steps.gaussians(sums, prototypes, n, anchor, u, in_place, constants)
        if found is not None:
            return found
    anchors = _text_anchors(
        sums.counts, sums.weighted, sums.total, prototypes, n, anchor, u, in_place, constants.spread_range
    )  # fmt: skip
    return _gaussians(
        sums.counts, n, anchor, anchors, sums.weighted, sums.scatter, sums.total, stream.order, constants
    )  # fmt: skip


def _text_anchors(
    counts: Array,
    weighted: Array,
    total: Array,
    prototypes: Array,
    n: Any,
    anchor: Any,
    u: Any,
    in_place: Any,
    spread_range: tuple[float, float],
) -> Array:
    """(K, d) the prototypes moved to where the images are; if few classes occur in random order, partly left where they
    are, by the share `in_place`: a class that does not occur then lies far from every image."""
    xp = Backend.of(prototypes).xp
    positive_counts = xp.where(counts > 0, counts, xp.ones_like(counts))
    trust = counts / (counts + anchor)
    # Centers of image and text features: over all classes or, if few classes occur, over those that do.
    share = trust / xp.sum(trust)
    center = (1.0 - u) * total / n + u * ((share / positive_counts) @ weighted)
    text_center = (1.0 - u) * xp.mean(prototypes, axis=0) + u * (share @ prototypes)
    text_spread = _spread(prototypes, text_center, trust)
    image_spread = _spread(weighted / positive_counts[:, None], center, trust)
    equal = text_spread <= ZERO_TRACE
    ratio = image_spread / xp.where(equal, xp.ones_like(text_spread), text_spread)
    spread = xp.where(equal, xp.ones_like(ratio), (ratio**0.5).clip(*spread_range))
    anchors = prototypes * ((1.0 - in_place) * spread + in_place)
    anchors += (1.0 - in_place) * (center - spread * text_center)
    return anchors


def _second_anchors(sums: Sums) -> Array:
    """(K, e) mean of the second encoder's features, weighted by the zero-shot posteriors of each class."""
    xp = Backend.of(sums.counts).xp
    weights = xp.where(sums.posteriors > 0, sums.posteriors, xp.ones_like(sums.posteriors))
    return sums.second_anchors / weights[:, None]


AGREEMENT_POWER = 3
"""The weight of a second encoder is this power of its agreement with the first, so that a poor one hardly counts."""


def _agreement_weight(sums: Sums) -> float:
    """How much the second encoder counts, from 0 to 1: how far its classes agree with the first one's, beyond chance.

    The agreement is the covariance of the two posteriors over the samples, relative to the variance of the first.
    """
    n, products, squares = (float(number) for number in to_numpy(sums.agreement))
    if n < 1:
        return 0.0
    chance = float(to_numpy(sums.first_posteriors) @ to_numpy(sums.second_posteriors)) / n**2
    variance = squares / n - chance
    if variance < SMALLEST_VARIANCE:
        return 0.0
    return float(np.clip((products / n - chance) / variance, 0.0, 1.0)) ** AGREEMENT_POWER


class _Moments(NamedTuple):
    """What follows from sums, before the covariance is shrunk."""

    means: Array
    covariance: Array
    center: Array
    origin: Array
    numbers: Array
    """Trace of the covariance, mean square of the features, and of the center; on a GPU also the covariance's norm."""


def _moments(
    counts: Array, n: Any, anchor: Any, anchors: Array, weighted: Array, scatter: Array, total: Array
) -> _Moments:
    """Class means with their anchors, and the covariance within classes, from sums over n samples."""
    backend = Backend.of(counts)
    xp = backend.xp
    means = anchors * anchor
    means += weighted
    means /= (counts + anchor)[:, None]

    # scatter - weighted^T means - means^T weighted + means^T diag(counts) means, with one product.
    remainder = means * (-0.5 * counts)[:, None]
    remainder += weighted
    cross = means.T @ remainder
    covariance = scatter - cross
    covariance -= cross.T
    covariance /= n
    center = total / n
    origin = xp.astype(xp.astype(center, xp.float32), xp.float64)
    # One transfer from a GPU.
    numbers = [xp.linalg.trace(covariance), xp.linalg.trace(scatter) / n, xp.linalg.vecdot(center, center)]
    if backend.on_gpu:
        numbers.append(xp.linalg.vector_norm(covariance))
    return _Moments(means, covariance, center, origin, xp.stack(numbers))


def _shrinkage_and_variance(trace: float, n: float, d: int, constants: MixtureConstants) -> tuple[float, float]:
    """Share of the identity in the covariance, and what the identity is multiplied by."""
    shrinkage = constants.shrinkage + (1.0 - constants.shrinkage) * d / (d + constants.shrinkage_samples * n)
    return shrinkage, max(trace, SMALLEST_TRACE) / d


def _from_origin(means: Array, precision: Array, center: Array, origin: Array) -> tuple[Array, Array, Array]:
    """Directions, lengths and the direction of the center: see `Gaussians`."""
    relative = means - origin
    directions = relative @ precision
    return directions, Backend.of(means).xp.linalg.vecdot(directions, relative), precision @ (center - origin)


MOST_CONDITION = 1024.0
"""Bound on the condition of a covariance up to which a GPU inverts it by Newton's iteration."""


def _condition(norm: float, shrinkage: float, variance: float) -> float:
    """A bound on the condition of a shrunk covariance, a power of two: no eigenvalue is above the norm."""
    bound = 1.0 + (1.0 - shrinkage) * norm / (shrinkage * variance)
    return float(2.0 ** max(1, np.ceil(np.log2(bound))))


def _gaussians(
    counts: Array,
    n: float,
    anchor: float,
    anchors: Array,
    weighted: Array,
    scatter: Array,
    total: Array,
    order: float,
    constants: MixtureConstants,
) -> Gaussians:
    """Class means with their anchors, and one shrunk precision, from sums over n samples."""
    xp = Backend.of(counts).xp
    d = scatter.shape[0]
    means, covariance, center, origin, numbers = _moments(counts, n, anchor, anchors, weighted, scatter, total)
    trace, mean_square, center_square = to_numpy(numbers).tolist()[:3]
    spread = max(mean_square - center_square, 0.0) ** 0.5
    if trace <= ROUNDING * mean_square:
        nothing = xp.zeros_like(means), xp.zeros_like(counts), xp.zeros_like(center), 0.0
        return Gaussians(means, xp.zeros_like(covariance), origin, *nothing, spread)
    shrinkage, variance = _shrinkage_and_variance(trace, n, d, constants)
    covariance *= 1.0 - shrinkage
    xp.reshape(covariance, (-1,))[:: d + 1] += shrinkage * variance
    precision = invert_positive(covariance)
    directions, lengths, center_direction = _from_origin(means, precision, center, origin)
    offset = 0.0
    if order:
        # tr(P S) for the covariance S within classes, from tr(P ((1 - l) S + l v I)) = d, minus that of all samples.
        own = trace / variance
        if shrinkage < 1.0:
            own = (d - shrinkage * variance * float(xp.linalg.trace(precision))) / (1.0 - shrinkage)
        around_center = float(xp.sum(precision * scatter)) / n - float(xp.sum((precision @ center) * center))
        offset = own - around_center + float(xp.sum(center_direction * (center - origin)))
    return Gaussians(means, precision, origin, directions, lengths, center_direction, offset, spread)


class _GpuGaussians:
    """Text anchors and Gaussians on a GPU, without an order; `recorded` as CUDA graphs, with the same bits.

    Every number that changes is in memory of the device, because torch divides by a number of the host in another way.
    There are two graphs: the host has to see a few numbers in between.
    """

    def __init__(self, prototypes: Array, spread_range: tuple[float, float], *, recorded: bool) -> None:
        torch: Any = sys.modules["torch"]
        self._spread_range, self._recorded = spread_range, recorded
        backend, (classes, d) = Backend.of(prototypes), prototypes.shape
        self._backend = backend
        self._inputs = [backend.zeros(shape) for shape in ((classes,), (classes, d), (d, d), (d,), (classes, d))]
        """Counts, weighted, scatter, total and prototypes."""
        self._scalars = backend.zeros((6,)) + 1.0
        """n, anchor, u, the share left in place; factor on the covariance, and on the inverse."""
        self._host_scalars = torch.empty((6,), dtype=torch.float64, pin_memory=prototypes.is_cuda)
        self._graph = record(backend.device, self._begin)[0] if recorded else None
        self._finishes: dict[float, Any] = {}

    def _begin(self) -> None:
        counts, weighted, scatter, total, prototypes = self._inputs
        n, anchor, u, in_place = (self._scalars[number] for number in range(4))
        anchors = _text_anchors(counts, weighted, total, prototypes, n, anchor, u, in_place, self._spread_range)
        self._moments = _moments(counts, n, anchor, anchors, weighted, scatter, total)

    def _finish(self, condition: float) -> None:
        means, covariance, center, origin, _ = self._moments
        scaled = covariance * self._scalars[4]
        scaled.view(-1)[:: covariance.shape[0] + 1] += 1.0
        precision = newton_inverse(scaled, condition) * self._scalars[5]
        self._found = precision, origin, *_from_origin(means, precision, center, origin)

    def _send(self, first: int, *numbers: float) -> None:
        part = slice(first, first + len(numbers))
        self._host_scalars.numpy()[part] = numbers
        self._scalars[part].copy_(self._host_scalars[part], non_blocking=True)

    def gaussians(
        self, sums: Sums, prototypes: Array, n: float, anchor: float, u: float, in_place: float, constants: Any
    ) -> Gaussians | None:
        """None if the covariance has no spread, or is inverted otherwise."""
        torch: Any = sys.modules["torch"]
        torch._foreach_copy_(self._inputs, [sums.counts, sums.weighted, sums.scatter, sums.total, prototypes])
        self._send(0, n, anchor, u, in_place)
        if self._graph is None:
            self._begin()
        else:
            self._graph.replay()
        trace, mean_square, center_square, norm = to_numpy(self._moments.numbers).tolist()
        if trace <= ROUNDING * mean_square:
            return None
        shrinkage, variance = _shrinkage_and_variance(trace, n, prototypes.shape[1], constants)
        condition, least = _condition(norm, shrinkage, variance), shrinkage * variance
        if condition > MOST_CONDITION:
            return None
        self._send(4, (1.0 - shrinkage) / least, 1.0 / least)
        precision, origin, directions, lengths, center_direction = self._finished(condition)
        spread = max(mean_square - center_square, 0.0) ** 0.5
        means = self._moments.means.clone()
        return Gaussians(means, precision, origin, directions, lengths, center_direction, 0.0, spread)

    def _finished(self, condition: float) -> tuple[Array, ...]:
        if not self._recorded:
            self._finish(condition)
            return self._found
        if condition not in self._finishes:
            graph = record(self._backend.device, lambda: self._finish(condition))[0]
            self._finishes[condition] = graph, self._found
        graph, found = self._finishes[condition]
        graph.replay()
        return tuple(array.clone() for array in found)


_RECORDINGS: Recordings[_GpuGaussians] = Recordings()


def _spread(vectors: Array, center: Array, trust: Array) -> Array:
    """Sum of the squared distances of vectors (K, d) to the center, weighted by trust: an array of one number."""
    differences = vectors - center
    return trust[None, :] @ Backend.of(differences).xp.linalg.vecdot(differences, differences)
