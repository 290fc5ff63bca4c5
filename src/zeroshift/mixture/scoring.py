"""Scores of a mixture as a few large matrix products, in float32 or float64."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from zeroshift.arrays import UNIT_NORM_TOLERANCE, Array, Backend
from zeroshift.frozen import Expression
from zeroshift.linalg import Float32Factor, multiplies_halves
from zeroshift.mixture.statistics import Distances, Gaussians, Mixture, in_precision
from zeroshift.mixture.sums import column_count
from zeroshift.mixture.temperature import row_sums

__all__ = ["HALF_ROWS", "HALVES", "HalfProducts", "MixtureHead", "Scorer", "TextLogits", "float32_error", "new_columns"]

MAX_LENGTH = 1.0 + UNIT_NORM_TOLERANCE
"""Largest length of a feature."""

HALF_ROWS, HALF_CLASSES = 1024, 256
"""Rows and classes from which float32 products on a GPU are products of halves, which have to be prepared."""

FAR = 3.0
"""No feature is farther from the origin than this multiple of the root mean square distance, for the estimate of
rounding errors."""

PARTIAL_SUMS = 16
"""Partial sums that a product of two vectors is computed in, at least; every library has more."""

HALVES = 3.0
"""How much larger the rounding errors of products of halves are (`Float32Factor`)."""


def longest(vectors: Array) -> float:
    """The length of the longest of vectors (K, d)."""
    xp = Backend.of(vectors).xp
    return float(xp.max(xp.linalg.vecdot(vectors, vectors))) ** 0.5


def float32_error(d: int, largest: float, length: float) -> float:
    """About the largest error of a probability that is the softmax of products of vectors (K, d), of which the longest
    has the length `largest`, in float32, with features of this length.

    Rounding errors are independent of each other and add up like a random walk over the d / PARTIAL_SUMS steps of each
    partial sum. A probability changes by half of the largest error of a score. This is an estimate, not a proven bound
    (which would be about a hundred times as large); `AnchoredMixture` compares some rows with float64.
    """
    return 0.5 * 2.0**-24 * max(1.0, d / PARTIAL_SUMS) ** 0.5 * largest * length


def new_columns(backend: Backend, rows: int, dimension: int, dtype: Any) -> Array:
    """Memory for the columns of a head; the one after the features is 1, the others are 0."""
    columns = backend.zeros((rows, column_count(dimension)), dtype)
    columns[:, dimension] = 1.0
    return columns


@dataclass(frozen=True)
class MixtureHead:
    """Zero-shot logits and weighted distances of a mixture as one linear map of the columns that `columns` makes."""

    gaussians: Gaussians
    matrix: Array
    """(K, columns)"""
    typical: bool
    """Whether the typical distance counts."""

    @classmethod
    def of(cls, mixture: Mixture, prototypes: Array, logit_scale: float) -> MixtureHead:
        """From a mixture of one encoder's features, in float64."""
        backend, gaussians = Backend.of(prototypes), mixture.gaussians
        weights = mixture.distance_weight * mixture.factors
        classes, d = prototypes.shape
        matrix = backend.zeros((classes, column_count(d)))
        matrix[:, :d] = gaussians.directions * (2.0 * weights)[:, None]
        matrix[:, :d] += logit_scale * prototypes
        matrix[:, d] = logit_scale * (prototypes @ gaussians.origin) - weights * (gaussians.lengths + d)
        if mixture.class_offsets is not None:
            matrix[:, d] += mixture.class_offsets
        matrix[:, d + 1] = -weights
        if mixture.backgrounds is not None:
            matrix[:, d + 2] = -mixture.distance_weight * mixture.backgrounds
        # What all classes share cancels. Without it, the products are smaller and lose less to rounding.
        matrix -= backend.xp.mean(matrix, axis=0)
        return cls(gaussians, matrix, mixture.backgrounds is not None)

    def in_precision(self, dtype: Any) -> MixtureHead:
        """The same map for features of this type."""
        matrix = Backend.of(self.matrix).asarray(self.matrix, dtype)
        return replace(self, gaussians=in_precision(self.gaussians, dtype), matrix=matrix)

    def columns(self, features: Array, out: Array) -> Array:
        """What the matrix is multiplied with: the features relative to the origin, 1, their squared length minus d, the
        typical distance, and zeros. They are written to `out`, which `new_columns` made."""
        xp, d = Backend.of(features).xp, features.shape[1]
        relative = out[:, :d]
        xp.subtract(features, self.gaussians.origin, out=relative)
        squared_lengths = self.gaussians.squared_lengths(relative)
        out[:, d + 1] = squared_lengths - d
        if self.typical:
            out[:, d + 2] = self.gaussians.typical_distances(relative, squared_lengths)
        return out

    def scores(self, features: Array) -> Array:
        """(n, K) scores of the mixture, up to a constant per row."""
        out = new_columns(Backend.of(features), features.shape[0], features.shape[1], features.dtype)
        return self.columns(features, out) @ self.matrix.T

    def frozen(self, x: Expression, temperature: float) -> Expression:
        """The scores of features `x`, times the temperature, as an expression: the same columns and matrix."""
        d, gaussians, matrix = self.gaussians.origin.shape[0], self.gaussians, temperature * self.matrix
        relative = x - gaussians.origin
        squared_lengths = ((relative @ gaussians.precision) * relative).sum()
        scores = relative @ matrix[:, :d].T + matrix[:, d] + (squared_lengths - float(d)) * matrix[:, d + 1]
        if self.typical:
            typical = relative @ (-2.0 * gaussians.center_direction)[:, None] + squared_lengths
            scores = scores + (typical + gaussians.typical_offset).relu() * matrix[:, d + 2]
        return scores

    def movement(self, before: MixtureHead) -> float:
        """A bound on how much a posterior of any sample differs from that of an earlier head with the same origin.

        A score is v.z - w (z^T P z - d) + b. It changes by at most |dv| |z| + |dw| |z^T P z - d| + |w| |dP| |z|^2 +
        |db|, and a posterior by half of the largest change. |z| is at most the length of a feature plus that of the
        origin.
        """
        xp, d = Backend.of(self.matrix).xp, self.gaussians.origin.shape[0]
        norm = xp.linalg.vector_norm
        length = MAX_LENGTH + norm(self.gaussians.origin)
        changes = xp.abs(self.matrix - before.matrix)
        precision, earlier = self.gaussians.precision, before.gaussians.precision
        squared_length = norm(precision) * length**2 + d
        largest = (
            norm(changes[:, :d], axis=1) * length
            + changes[:, d]
            + changes[:, d + 1] * squared_length
            + xp.abs(self.matrix[:, d + 1]) * (norm(precision - earlier) * length**2)
        )
        return 0.5 * float(xp.max(largest))


class TextLogits:
    """Zero-shot logits, up to a constant per row, in both precisions."""

    not_state: ClassVar[frozenset[str]] = frozenset({"_halves"})

    def __init__(self, prototypes: Array, logit_scale: float) -> None:
        """`prototypes` (K, d) are in float64."""
        backend = Backend.of(prototypes)
        xp = backend.xp
        self.prototypes, self.logit_scale = prototypes, logit_scale
        # What all classes share cancels. Without it, the products are smaller and lose less to rounding.
        vectors = logit_scale * (prototypes - xp.mean(prototypes, axis=0))
        self._vectors = {dtype: backend.asarray(vectors, dtype).T for dtype in (xp.float32, xp.float64)}
        self._halves: Float32Factor | None = None
        self.longest = longest(vectors)
        self.float32_error = float32_error(prototypes.shape[1], self.longest, 1.0)

    def of(self, features: Array, out: Array | None = None) -> Array:
        """(n, K)"""
        vectors = self._vectors[_number_type(features)]
        return features @ vectors if out is None else Backend.of(features).xp.matmul(features, vectors, out=out)

    def in_halves(self, origin: Array) -> tuple[Float32Factor, Array]:
        """The logits of features relative to an origin, as a factor of float32 products on a GPU, and offsets (K,)."""
        backend = Backend.of(self.prototypes)
        vectors = self._vectors[backend.xp.float64].T
        if self._halves is None:
            self._halves = Float32Factor(vectors, self.longest)
        return self._halves, backend.asarray(vectors @ origin, backend.xp.float32)


class HalfProducts:
    """The products with many float32 features on a GPU that multiplies halves fast (`Float32Factor`), without a second
    encoder. All are of the same prepared rows: the features relative to an origin, which is that of the mixture."""

    def __init__(self, scorer: Scorer, origin: Array) -> None:
        xp = Backend.of(origin).xp
        self._scorer = scorer
        self._origin = xp.astype(origin, xp.float32)
        self.text, self._text_offsets = scorer.text.in_halves(origin)
        mixture = scorer.mixture
        self._precision = None if mixture is None else Float32Factor(mixture.gaussians.precision)
        self._head: Float32Factor | None = None
        self._directions: Float32Factor | None = None

    def _bound(self) -> float:
        """A bound on the entries of the head's matrix for features: see `MixtureHead.of`. No factor is above 1, and to
        subtract a mean doubles no entry more than once."""
        scorer = self._scorer
        weight = 0.0 if scorer.mixture is None else scorer.mixture.distance_weight
        return scorer.text.longest + 4.0 * weight * scorer.longest_direction

    def rows(self, features: Array) -> tuple[Array, Array]:
        """The features (n, d) relative to the origin, and prepared for products."""
        relative = features - self._origin
        return relative, self.text.rows(relative)

    def logits(self, prepared: Array) -> Array:
        """(n, K) zero-shot logits, up to a constant per row."""
        return self.text.product(prepared, self._text_offsets)

    def _squared_lengths(self, relative: Array, prepared: Array) -> Array:
        assert self._precision is not None
        lengths = Backend.of(relative).xp.linalg.vecdot(self._precision.unscaled_product(prepared), relative)
        lengths *= self._precision.unit
        return lengths

    def scores(self, relative: Array, prepared: Array) -> Array:
        """(n, K) as `MixtureHead.scores`."""
        d = relative.shape[1]
        head = self._scorer.head(relative.dtype)
        if self._head is None:  # the other columns have numbers too large for it
            self._head = Float32Factor(
                self._scorer.head(self._scorer.text.prototypes.dtype).matrix[:, :d], self._bound()
            )
        scores = self._head.product(prepared, head.matrix[:, d])
        lengths = self._squared_lengths(relative, prepared)
        scores.addr_(lengths - d, head.matrix[:, d + 1])
        if head.typical:
            scores.addr_(head.gaussians.typical_distances(relative, lengths), head.matrix[:, d + 2])
        return scores

    def distances(self, relative: Array, prepared: Array, mixture: Mixture) -> Distances:
        """As `Mixture.distances` of this mixture, in float32."""
        gaussians = mixture.gaussians
        if self._directions is None:
            self._directions = Float32Factor(gaussians.directions, self._scorer.longest_direction)
        lengths = self._squared_lengths(relative, prepared)
        distances = self._directions.product(prepared, gaussians.lengths, -2.0)
        distances += lengths[:, None]
        distances.clamp_(min=0.0)
        distances *= mixture.factors
        if mixture.backgrounds is not None:
            distances += gaussians.typical_distances(relative, lengths)[:, None] * mixture.backgrounds
        return Distances(distances, None)


def _number_type(array: Array) -> Any:
    """The type of an array's numbers, as the namespace of its library calls it: `numpy.float32`, not its dtype."""
    return array.dtype.type if isinstance(array, np.ndarray) else array.dtype


class Scorer:
    """A mixture, or zero-shot classification if there is none yet, in both precisions.

    What it computes with follows from the mixture. It is computed when it is first needed.
    """

    not_state: ClassVar[frozenset[str]] = frozenset(
        {"_heads", "_mixtures", "_stacked", "_halves", "_longest", "_error", "fell_back"}
    )

    def __init__(self, mixture: Mixture | None, text: TextLogits) -> None:
        self.mixture, self.text = mixture, text
        self.temperature = 1.0 if mixture is None else mixture.temperature
        self.fell_back = False
        """Whether it is counted that float32 products would lose too much."""
        self._heads: dict[Any, MixtureHead] = {}
        self._mixtures: dict[Any, Mixture] = {}
        self._stacked: dict[Any, tuple[Array, Array]] = {}
        self._halves: HalfProducts | None = None
        self._longest: float | None = None
        self._error: float | None = None

    def head(self, dtype: Any) -> MixtureHead:
        """The mixture as a linear map of features of this type."""
        if dtype not in self._heads:
            wide = self.text.prototypes.dtype
            if dtype == wide:
                self._heads[dtype] = MixtureHead.of(self._known(), self.text.prototypes, self.text.logit_scale)
            else:
                self._heads[dtype] = self.head(wide).in_precision(dtype)
        return self._heads[dtype]

    def mixture_in(self, dtype: Any) -> Mixture:
        """The mixture for features of this type."""
        if dtype not in self._mixtures:
            self._mixtures[dtype] = in_precision(self._known(), dtype)
        return self._mixtures[dtype]

    def _known(self) -> Mixture:
        if self.mixture is None:
            raise RuntimeError("there is no mixture yet")
        return self.mixture

    def uses_halves(self, features: Array, *, many: bool | None = None) -> bool:
        """Whether float32 products with so many features are products of halves. (`many` replaces their number.)"""
        backend = Backend.of(features)
        if many is None:
            many = features.shape[0] >= HALF_ROWS
        many = many and self.text.prototypes.shape[0] >= HALF_CLASSES
        return many and features.dtype == backend.xp.float32 and multiplies_halves(backend)

    def in_halves(self, origin: Array) -> HalfProducts:
        """Products of halves with features relative to this origin, which is that of the mixture if there is one."""
        if self.mixture is None:
            return HalfProducts(self, origin)
        if self._halves is None:
            self._halves = HalfProducts(self, origin)
        return self._halves

    def scores(self, features: Array, second: Array | None, *, many: bool | None = None) -> Array:
        """(n, K) log-posteriors up to a constant per row, before the temperature. With `many`, the products are those
        of many rows, even if these are few."""
        if self.mixture is None:
            return self.text.of(features)
        if second is None or self.mixture.second is None:
            if self.uses_halves(features, many=many):
                products = self.in_halves(self.mixture.gaussians.origin)
                return products.scores(*products.rows(features))
            return self.head(features.dtype).scores(features)
        mixture = self.mixture_in(features.dtype)
        scores = mixture.log_likelihoods(mixture.distances(features, second))
        scores += self.text.of(features)
        return scores

    def frozen(self, x: Expression) -> Expression:
        """(n, K) log-posteriors of features `x` up to a constant per row, as an expression, with the temperature."""
        if self.mixture is None:
            return x.linear(self.text.logit_scale * self.text.prototypes)
        return self.head(self.text.prototypes.dtype).frozen(x, self.temperature)

    def logits_and_distances(self, features: Array, second: Array | None) -> tuple[Array, Distances | None]:
        """Zero-shot logits (n, K), up to a constant per row, and distances to the classes, None without a mixture; in
        float64, from products in the precision of the features."""
        backend, mixture = Backend.of(features), self.mixture
        wide = backend.xp.float64
        logits = backend.asarray(self.text.of(features), wide)
        if mixture is None:
            return logits, None
        first = self._distances(0, mixture.gaussians, mixture, features)
        if second is None or mixture.second is None:
            return logits, Distances(first, None)
        return logits, Distances(first, self._distances(1, mixture.second, mixture, second))

    def _distances(self, encoder: int, gaussians: Gaussians, mixture: Mixture, features: Array) -> Array:
        """One product with directions and precision."""
        backend, key = Backend.of(features), (encoder, features.dtype)
        if key not in self._stacked:
            stacked = backend.xp.concat([gaussians.directions, gaussians.precision], axis=0)
            origin = backend.asarray(gaussians.origin, features.dtype)
            self._stacked[key] = backend.asarray(stacked, features.dtype).T, origin
        stacked, origin = self._stacked[key]
        relative = features - origin
        products = backend.asarray(relative @ stacked, backend.xp.float64)
        relative = backend.asarray(relative, backend.xp.float64)
        classes = mixture.factors.shape[0]
        squared_lengths = row_sums(products[:, classes:] * relative)
        return gaussians.distances_from(
            products[:, :classes], squared_lengths, relative, mixture.factors, mixture.backgrounds
        )

    @property
    def longest_direction(self) -> float:
        """The length of the longest direction of the mixture."""
        if self._longest is None:
            self._longest = longest(self._known().gaussians.directions)
        return self._longest

    @property
    def float32_error(self) -> float:
        """About the largest error of a posterior, before the temperature, that float32 products may cause."""
        if self._error is None:
            self._error = self.text.float32_error
            if self.mixture is not None:
                directions = self.mixture.gaussians.directions
                length = min(2.0, FAR * self.mixture.gaussians.spread)
                error = float32_error(directions.shape[1], self.longest_direction, length)
                self._error += 2.0 * self.mixture.distance_weight * error
        return self._error
