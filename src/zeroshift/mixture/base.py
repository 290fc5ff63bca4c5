"""What the online and the transductive mixture share: parameters, labelled samples, statistics users can read."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from zeroshift.arrays import Array, Backend, Rows, checked_labelled
from zeroshift.frozen import Expression
from zeroshift.method import TwoEncoderMethod
from zeroshift.mixture.scoring import HALVES, Scorer, TextLogits
from zeroshift.mixture.statistics import (
    Mixture,
    MixtureConstants,
    estimate,
    log_posteriors_of,
    posteriors_of,
)
from zeroshift.mixture.sums import Sums
from zeroshift.parameters import Number, Pair, array_parameter, parameter
from zeroshift.precision import FLOAT32_TOLERANCE, ProductDiagnostics, precision_parameter
from zeroshift.views import AveragedRows

__all__ = ["AnchoredMixture", "MixtureDiagnostics"]

CHECKED_ROWS = 8
"""Rows that are scored in both precisions when float32 products are checked."""

CHECK_EVERY = 64
"""Calls of `predict`, or blocks of one, from one check of float32 products to the next."""


@dataclass
class MixtureDiagnostics(ProductDiagnostics):
    """The precision of the products, and what the checks of float32 products found.

    `rounds`: rounds of the last transductive `adapt`, fewer than the parameter if the labels stopped moving.
    """

    rounds: int = 0


class AnchoredMixture(TwoEncoderMethod):
    """Gaussian classes with one shrunk covariance, estimated from all samples by soft counts. Their means are anchored
    at text prototypes moved to the images, and they are trusted only as far as the samples seen allow."""

    state_size = "K d + d^2"
    not_state: ClassVar[frozenset[str]] = frozenset({"_diagnostics", "_until_check", "_float64_only"})

    _takes_many_rows: ClassVar[bool] = False
    """Whether the rows of products are many, even if only some of them are asked about."""

    logit_scale: float = parameter(Number(low=0, above=True), "Scale of the logits; 100 for CLIP.", default=100.0)
    anchor_count: float = parameter(
        Number(low=0, above=True),
        "Number of samples that the anchor, the prototype moved to the images, counts as in the mean of its class, on "
        "a stream that mixes all classes.",
        default=1.0,
    )
    cautious_anchor_count: float = parameter(
        Number(low=0, above=True),
        "The same on a stream that does not mix all classes (see the attribute `caution`).",
        default=4.0,
    )
    spread_range: tuple[float, float] = parameter(
        Pair(Number(low=0), Number(low=0, above=True), ("least", "greatest")),
        "Smallest and largest ratio between the spread of the images' class means and that of the prototypes.",
        default=(0.3, 3.0),
    )
    shrinkage: float = parameter(
        Number(low=0, high=1, above=True),
        "Share of the identity in the covariance after very many samples.",
        default=0.75,
    )
    shrinkage_samples: float = parameter(
        Number(low=0),
        "How fast the share approaches `shrinkage`: the rest of it is d / (d + shrinkage_samples n).",
        default=4.0,
    )
    reliability_samples: float = parameter(
        Number(low=0), "Average samples per class at which the Gaussians have half of their weight.", default=32.0
    )
    weight: float = parameter(
        Number(low=0), "Weight of the Gaussian log-likelihood once it is fully trusted.", default=1.0
    )
    first_samples: int = parameter(
        Number(low=1, integer=True),
        "Samples, including labelled ones, before which the answer is the zero-shot posterior.",
        default=8,
    )
    occurring: tuple[float, float] = parameter(
        Pair(Number(low=0, high=1), Number(low=0, high=1), ("least", "enough")),
        "Effective share of the classes that occur: below the first value the mixture is fully cautious, above the "
        "second not at all.",
        default=(0.4, 0.8),
    )
    varying: tuple[float, float] = parameter(
        Pair(Number(low=0, high=1), Number(low=0, high=1), ("least", "enough")),
        "Effective share of the classes whose zero-shot probability varies between samples: below the first value few "
        "classes occur, above the second all do.",
        default=(0.4, 0.5),
    )
    calm: float = parameter(
        Number(low=0, high=1),
        "Weight of the likelihood in the down-weighted posterior that sets the temperature of the answers.",
        default=0.0625,
    )
    support: tuple[Array, np.ndarray] | None = array_parameter(
        "Labelled samples, (features, labels), which count with probability 1.", default=None
    )
    view_ratio: float = parameter(
        Number(0, 1, above=True),
        "Share of the views that `adapt_views` keeps, those of lowest entropy; at least one is kept.",
        default=0.1,
    )

    precision: str = precision_parameter()

    def _validate(self) -> None:
        for name in ("spread_range", "occurring", "varying"):
            low, high = getattr(self, name)
            if low > high:
                raise ValueError(
                    f"{name} must be two numbers, the smaller first; got ({low:g}, {high:g}). Fix: ({high:g}, {low:g})."
                )
        if self.support is not None:
            self.support = checked_labelled("support", self.support, self.prototypes)

    def _prepare(self) -> None:
        backend = Backend.of(self.prototypes)
        self._wide_prototypes = backend.asarray(self.prototypes, backend.xp.float64)
        self._text = TextLogits(self._wide_prototypes, self.logit_scale)
        self._diagnostics = MixtureDiagnostics()
        self._float64_only = False
        """Whether a check of float32 products has failed."""
        self._until_check = 0
        """Blocks of predicted rows, or updates of the online statistics, until the next check."""
        # Parameters; where a subclass leaves no choice, its class attributes.
        self._constants = MixtureConstants(
            **{name: getattr(self, name) for name in MixtureConstants.__dataclass_fields__}
        )
        self._labelled_sums: Sums | None = None
        if self.support is not None:
            features, labels = self.support
            wide = backend.asarray(features, backend.xp.float64)
            self._labelled_sums = Sums.from_labelled(wide, labels, self.n_classes)

    def _derive(self) -> None:
        self._use(self._estimate(self._current_sums()))

    def _use(self, mixture: Mixture | None) -> None:
        """Answer with this mixture from now on."""
        self._mixture, self._scorer = mixture, self._scorer_of(mixture)

    def _scorer_of(self, mixture: Mixture | None) -> Scorer:
        return Scorer(mixture, self._text)

    @abstractmethod
    def _current_sums(self) -> Sums:
        """The sums that the statistics in use are estimated from."""

    @property
    def _stay(self) -> float:
        """The probability that a sample has the class of the one before, as the filter uses it."""
        return 0.0

    def _all_sums(self) -> Sums:
        """The sums over every sample adapted to, without the labelled ones."""
        return self._current_sums()

    def _zero_sums(self, second: int = 0) -> Sums:
        return Sums.zeros(Backend.of(self.prototypes), self.n_classes, self.dimension, second)

    def _with_labelled(self, sums: Sums) -> Sums:
        return sums if self._labelled_sums is None else sums + self._labelled_sums

    def _estimate(self, sums: Sums) -> Mixture | None:
        """The classes that follow from the sums; None while there are too few samples."""
        return estimate(sums, self._labelled_sums, self._wide_prototypes, self._stay, self._constants)

    # The precision of products.

    @property
    def diagnostics(self) -> MixtureDiagnostics:
        """The precision of the products, and what the checks of float32 products found since the last reset."""
        return replace(self._diagnostics)

    def _for_products(self, features: Array, scorer: Scorer, share: float) -> Array:
        """The features in the precision of products with them: float64 if float32 might cause an error of a probability
        above the tolerance. `share` is how much of an error of a posterior reaches an answer."""
        backend, found = Backend.of(features), self._diagnostics
        if features.dtype != backend.xp.float64 and not self._float64_only:
            halves = scorer.uses_halves(features, many=True if self._takes_many_rows else None)
            if share * scorer.float32_error * (HALVES if halves else 1.0) <= FLOAT32_TOLERANCE:
                found.products = "float32"
                return features
            found.float64_fallbacks += not scorer.fell_back
            scorer.fell_back = True
        found.products = "float64"
        return backend.asarray(features, backend.xp.float64)

    def _float32_passes(self, both: Array, scorer: Scorer, *, many: bool = False) -> bool:
        """Whether answers from float32 products are those of float64 but for the tolerance, checked for a few of the
        rows. If not, products are float64 until the next reset. `many` is as for `Scorer.scores`."""
        backend = Backend.of(both)
        some = both[:: -(-both.shape[0] // CHECKED_ROWS)]
        found, exact = (
            posteriors_of(scorer.temperature * scorer.scores(*self._parts(backend.asarray(some, dtype)), many=many))
            for dtype in (both.dtype, backend.xp.float64)
        )
        error = float(backend.xp.max(backend.xp.abs(exact - found)))
        diagnostics = self._diagnostics
        diagnostics.float32_checks += some.shape[0]
        diagnostics.largest_float32_error = max(diagnostics.largest_float32_error, error)
        if error > FLOAT32_TOLERANCE:
            diagnostics.float64_fallbacks += 1
            self._float64_only = True
        return error <= FLOAT32_TOLERANCE

    def _predict_scores(self, features: Array) -> Array:
        if features.shape[1] != self.dimension:
            self._check_second(features.shape[1], self._current_sums().second_dimension)
        scorer = self._scorer
        both = self._for_products(features, scorer, scorer.temperature)
        if both.dtype != Backend.of(both).xp.float64:
            self._until_check -= 1
            if self._until_check < 0:
                self._until_check = CHECK_EVERY
                if not self._float32_passes(both, scorer, many=scorer.uses_halves(both)):
                    both = self._for_products(both, scorer, scorer.temperature)
        logs = log_posteriors_of(scorer.scores(*self._parts(both)))
        logs *= scorer.temperature
        return logs

    def _frozen(self, x: Expression) -> Expression:
        return self._scorer.frozen(x).softmax()

    # A second encoder: see `TwoEncoderMethod`.

    def _check_second(self, columns: int, learned: int) -> None:
        """A stream has the second encoder's features for all samples or for none. `learned` is its dimension so far."""
        given = columns - self.dimension
        if not self._n_seen or given == learned:
            return
        if not given:
            raise ValueError(
                f"second is missing: the {self._n_seen} samples before had features of a second encoder. "
                "Fix: second=..., or reset() to begin without it; in commands, --second."
            )
        before = f"had {learned} columns" if learned else "was not given"
        raise ValueError(
            f"second has {given} columns, but for the {self._n_seen} samples before it {before}. "
            "Fix: the same encoder for the whole stream, or reset() to begin again."
        )

    def _averaged(self, images: Rows) -> AveragedRows:
        """The most confident views of each image as one feature of unit length."""
        return AveragedRows(images, self._wide_prototypes, self.logit_scale, self.view_ratio, unit=True)

    @property
    def counts(self) -> Array:
        """Soft counts (K,), float64, of everything learned, including labelled support samples. Online they include
        samples since the last update of the statistics, which `means` and `precision` do not know yet."""
        return Backend.of(self.prototypes).copy(self._with_labelled(self._all_sums()).counts)

    @property
    def means(self) -> Array:
        """Class means (K, d), float64: the text prototypes until the mixture has enough samples."""
        backend = Backend.of(self.prototypes)
        return backend.copy(self._wide_prototypes if self._mixture is None else self._mixture.gaussians.means)

    @property
    def precision_matrix(self) -> Array:
        """Inverse covariance (d, d), float64; zero until the mixture has enough samples."""
        backend = Backend.of(self.prototypes)
        if self._mixture is None:
            return backend.zeros((self.dimension,) * 2)
        return backend.copy(self._mixture.gaussians.precision)

    @property
    def reliability(self) -> float:
        """Weight of the Gaussians: 0 before any sample, close to 1 after many samples per class."""
        return 0.0 if self._mixture is None else self._mixture.reliability

    @property
    def caution(self) -> float:
        """How little the stream looks like samples drawn from all classes: from 0 (not at all) to 1 (completely)."""
        return 0.0 if self._mixture is None else self._mixture.stream.combined

    @property
    def few_classes(self) -> float:
        """How sure it is that only few of the classes occur: from 0 (all do) to 1."""
        return 0.0 if self._mixture is None else self._mixture.stream.few_classes

    @property
    def second_weight(self) -> float:
        """Weight of a second encoder: 0 without one or if it agrees with the first by chance only, at most 1."""
        return 0.0 if self._mixture is None else self._mixture.second_weight

    @property
    def temperature(self) -> float:
        """The exponent that all answers are raised to, so that their confidence matches the reference posterior's."""
        return 1.0 if self._mixture is None else self._mixture.temperature
