"""What the online and the transductive mixture share: the numbers, labelled samples, merging, and what can be read."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, TypeVar

import numpy as np

from zeroshift.arrays import Array, Home, Rows, check_matrix, checked_labelled, is_array, is_double, to_numpy
from zeroshift.method import ViewMethod
from zeroshift.mixture.statistics import Mixture, Rule, estimate
from zeroshift.mixture.sums import Sums
from zeroshift.parameters import Number, Pair, parameter
from zeroshift.views import AveragedRows
from zeroshift.zero_shot import log_posterior

__all__ = ["AnchoredMixture", "nearness", "unlikeness"]


# How little a sample is like any class: "none of these", which posteriors, being shares of one, cannot say.
#
# A posterior is a class's evidence divided by that of all classes, so that a stranger's is as sure as anyone's. Here
# nothing is divided: a sample's score is the evidence all classes have for it, together, as the calm look weighs it
# (see
# `temperature.py`), and negated. The distance to a class by itself says little, because features differ in how far
# they
# lie from everything; it counts less that from the middle of all samples, which is the same features' distance from
# nothing in particular.


def unlikeness(evidence: Array) -> Array:
    """(n,) the negated logarithm of the evidence, given by its logarithms (n, K), of all classes together.

    >>> import numpy as np
    >>> unlikeness(np.log(np.array([[0.25, 0.25], [0.01, 0.01]]))).round(3).tolist()
    [0.693, 3.912]
    """
    xp = Home.of(evidence).xp
    best = xp.max(evidence, axis=1)
    return -best - xp.log(xp.sum(xp.exp(evidence - best[:, None]), axis=1))


def nearness(mixture: Mixture, features: Array, middle: Array) -> Array:
    """(n, K) how much log-evidence a calm look takes from each class lying nearer than the middle (d,) of all samples;
    negative where it lies farther.

    The distances are not widened: that is a belief about how samples divide among the classes, and would make classes
    of few samples look near.
    """
    xp = Home.of(features).xp
    toward = mixture.precision @ middle
    # (x - m)^T P (x - m) less the same of the middle: x^T P x is in both, and goes.
    less = mixture.lengths - xp.sum(toward * middle) - 2.0 * (features @ (mixture.directions - toward).T)
    return (-0.5 * mixture.rule.weight * mixture.rule.calm * mixture.reliability) * less


A = TypeVar("A", bound="AnchoredMixture")


class AnchoredMixture(ViewMethod):
    """Gaussian classes with one shrunk covariance, estimated from all samples by soft counts, their means anchored at
    text prototypes moved among the images, and trusted only as far as the samples seen allow."""

    state_size = "K d + d^2"

    logit_scale: float = parameter(Number(low=0, above=True), "Scale of the logits; 100 for CLIP.", default=100.0)
    anchor_count: float = parameter(
        Number(low=0, above=True),
        "Samples an anchor, the prototype moved among the images, counts as in its class's mean: on a stream that mixes all classes, and on one that does not (see `caution`).",
        default=1.0,
    )
    cautious_anchor_count: float = parameter(
        Number(low=0, above=True),
        "Samples an anchor, the prototype moved among the images, counts as in its class's mean: on a stream that mixes all classes, and on one that does not (see `caution`).",
        default=4.0,
    )
    spread_range: tuple[float, float] = parameter(
        Pair(Number(low=0), Number(low=0, above=True), ("least", "greatest")),
        "Least and greatest ratio between the spread of the images' class means and that of the prototypes.",
        default=(0.3, 3.0),
    )
    spread_samples: float = parameter(
        Number(low=0),
        "Samples a class, on average, after which that ratio is estimated; it is 1 until then.",
        default=2.0,
    )
    shrinkage: float = parameter(
        Number(low=0, high=1, above=True),
        "Share of the identity in the covariance when there are very many samples.",
        default=0.75,
    )
    shrinkage_samples: float = parameter(
        Number(low=0), "How fast it gets there: the rest of the share is d / (d + shrinkage_samples n).", default=4.0
    )
    reliability_samples: float = parameter(
        Number(low=0), "Samples a class, on average, at which the Gaussians are trusted half.", default=32.0
    )
    weight: float = parameter(
        Number(low=0), "Weight of a Gaussian's log-likelihood that is fully trusted.", default=1.0
    )
    first_samples: int = parameter(
        Number(low=1, integer=True),
        "Samples, labelled ones included, before which the answer is zero-shot's.",
        default=8,
    )
    correlation: float = parameter(
        Number(low=0, above=True),
        "Correlation of neighbours' posteriors at which half of what `relief` says is done.",
        default=0.06,
    )
    balance: tuple[float, float] = parameter(
        Pair(Number(low=0, high=1), Number(low=0, high=1), ("least", "enough")),
        "Share of the classes that come, in effect: below the first the mixture is wholly cautious, above the second not at all.",
        default=(0.4, 0.8),
    )
    relief: float = parameter(
        Number(low=0, high=1),
        "How much of the Gaussians is left out of the answers where neighbours are wholly alike, as they are where classes come one after the other: 1 answers zero-shot there, 0 takes no notice.",
        default=1.0,
    )
    calm: float = parameter(
        Number(low=0, high=1),
        "Weight of the likelihood in the calm look that decides how sure answers may be.",
        default=0.0625,
    )
    view_ratio: float = parameter(
        Number(0, 1, above=True), "Share of views averaged, those of lowest entropy, in `adapt_views`.", default=0.1
    )

    support: tuple[Array, np.ndarray] | None

    @property
    @abstractmethod
    def _mixture(self) -> Mixture | None:
        """The classes as they are; None until there are samples enough."""

    @abstractmethod
    def _all_sums(self) -> Sums:
        """Of every sample adapted to; the labelled ones are not in it."""

    @abstractmethod
    def _take(self, sums: Sums, n_seen: int) -> None:
        """Go on from these sums."""

    def _validate(self) -> None:
        for name in ("spread_range", "balance"):
            low, high = getattr(self, name)
            if low > high:
                raise ValueError(
                    f"{name} must be two numbers, the smaller first; got ({low:g}, {high:g}). Fix: ({high:g}, {low:g})."
                )
        if self.support is not None:
            self.support = checked_labelled("support", self.support, self.prototypes)

    @property
    def _rule(self) -> Rule:
        return Rule(**{name: getattr(self, name) for name in Rule.__dataclass_fields__})

    def _begin(self) -> None:
        home = Home.of(self.prototypes)
        self._wide_prototypes = home.bring(self.prototypes, home.xp.float64)
        self._labelled = None
        if self.support is not None:
            features, labels = self.support
            wide = home.bring(features, home.xp.float64)
            self._labelled = Sums.of_labelled(wide, labels, self.n_classes)
        self._take(Sums.none(home, self.n_classes, self.dimension), 0)

    def _with_labelled(self, sums: Sums) -> Sums:
        return sums if self._labelled is None else sums + self._labelled

    def _estimated(self, sums: Sums) -> Mixture | None:
        return estimate(self._with_labelled(sums), self._wide_prototypes, self._rule)

    def _log_y(self, features: Array) -> Array:
        return log_posterior(features, self._wide_prototypes, self.logit_scale)

    def _predict_scores(self, features: Array) -> Array:
        log_y = self._log_y(features)
        if self._mixture is None:
            return log_y
        answer = self._mixture.read(log_y, self._mixture.distances(features)).answer
        return self._mixture.temperature * answer

    def reject_scores(self, features: Array) -> Array:
        """How little each sample is like any class, (N,) for (N, d), one number for (d,): the higher, the more likely
        it is of none. Nothing is learned and no state changes.

        Scores of one set can be ranked and cut at a threshold; where to cut differs from encoder to encoder. Until the
        mixture is in force they tell of the cosines alone: 0 on top of one prototype and far from the others.
        """
        single = is_array(features) and len(features.shape) == 1
        matrix = features[None, :] if single else features
        check_matrix("features", matrix, columns=self.dimension)
        home, caller = Home.of(self.prototypes), Home.of(matrix)
        precision = "float64" if is_double(matrix) else "float32"
        rows = Rows(matrix, home, home.xp.float64)
        with home.computing():
            scores = home.zeros((len(rows),), getattr(home.xp, precision))
            mixture, whole = self._mixture, self._with_labelled(self._all_sums())
            for block, x in rows.blocks(self._predict_rows):
                evidence = self.logit_scale * (x @ self._wide_prototypes.T - 1.0)
                if mixture is not None:
                    evidence += nearness(mixture, x, whole.total / home.xp.sum(whole.counts))
                scores[block] = unlikeness(evidence)
            scores = caller.bring(scores, getattr(caller.xp, precision))
        return scores[0] if single else scores

    def _averaged(self, images: Rows) -> AveragedRows:
        """Each image's surest views as one feature of unit length."""
        return AveragedRows(images, self._wide_prototypes, self.logit_scale, self.view_ratio, unit=True)

    def merge(self: A, other: A) -> A:
        """Add what `other` learned from its own samples to what this one learned; answers this one.

        The two must have the same parameters. Labelled `support` samples, which both were given, count once.
        """
        self._check_mergeable(other)
        own, others = self._all_sums(), other._all_sums()
        with Home.of(self.prototypes).computing():
            home = Home.of(self.prototypes)
            arrays = {name: home.bring(array, home.xp.float64) for name, array in others.arrays().items()}
            merged = own + own.restored(arrays)
            self._take(merged, self.n_seen + other.n_seen)
        return self

    def _check_mergeable(self, other: object) -> None:
        if type(other) is not type(self):
            raise TypeError(f"other must be a {type(self).__name__}; got {type(other).__name__}.")
        for name, mine in self.get_params().items():
            theirs = other.get_params()[name]
            if name not in self.reload_parameters and not _same(mine, theirs):
                shown = "another array" if hasattr(mine, "shape") or isinstance(mine, tuple) else repr(theirs)
                raise ValueError(
                    f"other was made with another {name} ({shown}), and its sums mean something else. "
                    f"Fix: make both with the same {name}, for example by method.clone()."
                )

    @property
    def counts(self) -> Array:
        """Soft counts (K,), float64, of everything learned, labelled support samples included; online also of samples
        that came since the statistics were renewed, which `means` and `precision` do not know yet."""
        return Home.of(self.prototypes).copy(self._with_labelled(self._all_sums()).counts)

    @property
    def means(self) -> Array:
        """Class means (K, d), float64: the text prototypes until the mixture is in force."""
        home = Home.of(self.prototypes)
        return home.copy(self._wide_prototypes if self._mixture is None else self._mixture.means)

    @property
    def precision(self) -> Array:
        """Inverse covariance (d, d), float64; zero until the mixture is in force."""
        home = Home.of(self.prototypes)
        return home.zeros((self.dimension,) * 2) if self._mixture is None else home.copy(self._mixture.precision)

    @property
    def reliability(self) -> float:
        """How far the Gaussians are trusted: 0 at the start, towards 1 with many samples a class."""
        return 0.0 if self._mixture is None else self._mixture.reliability

    @property
    def caution(self) -> float:
        """How little the stream looks like samples drawn from all classes alike: 0 not at all, 1 entirely."""
        return 0.0 if self._mixture is None else self._mixture.caution.whole

    @property
    def temperature(self) -> float:
        """The exponent answers are tempered with, so that they are as sure as a calm look is of them."""
        return 1.0 if self._mixture is None else self._mixture.temperature


def _same(mine: Any, theirs: Any) -> bool:
    if isinstance(mine, tuple) and isinstance(theirs, tuple) and len(mine) == len(theirs):
        return all(_same(a, b) for a, b in zip(mine, theirs, strict=True))
    if hasattr(mine, "shape") and hasattr(theirs, "shape"):
        return np.array_equal(to_numpy(mine), to_numpy(theirs))
    return bool(mine is theirs or (not hasattr(mine, "shape") and not hasattr(theirs, "shape") and mine == theirs))
