"""Transductive ADAPT with matrix products in float32, and bounds on what their rounding can change.

First pass (`FirstPass`): logits and soft sums are float32 products of one chunk of rows, added up in
float64. Which samples enter a bank must not depend on rounding: every confidence comes with a bound on its error, and
all samples that may be among the L best are computed again in float64 (`Candidates`).

Second pass (`NarrowFusion`): one float32 product. Scores that all classes share do not affect a probability, so the
mean of the directions is subtracted first; it makes up most of their length, and of the rounding error. Probabilities
need the bank term only of classes that can reach a probability: for the others, what negative cosines add is ignored if
it cannot change a probability by more than `IGNORED`.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from zeroshift.adapt import transductive_gpu
from zeroshift.adapt.bank import KnowledgeBank
from zeroshift.adapt.bank_term_bounds import IGNORED, bank_cone, subspace
from zeroshift.adapt.transductive_gpu import GpuBank, GpuFusion
from zeroshift.arrays import Array, Backend, Rows, namespace, to_numpy
from zeroshift.linalg import Float32Factor
from zeroshift.precision import FLOAT32_TOLERANCE

__all__ = ["LARGEST_SCORE_ERROR", "Candidates", "FirstPass", "NarrowFusion", "unit_roundoff"]

LARGEST_LOGIT_ERROR, LARGEST_SCORE_ERROR = 0.1, 5e-3
"""Products are float64 if a logit, in the worst case, or a score may have a larger error. Smaller errors are repaired
where they matter: samples are selected, and rows scored, again in float64."""

LENGTH = 1.01
"""Rows may be longer than 1 by this factor (`arrays.UNIT_NORM_TOLERANCE`)."""

EXTRA_ROUNDINGS = 100
"""Roundings of a confidence beyond its sums over classes: exponentials, logarithms, differences of logits."""

CLASS_WIDTH = 64.0
"""Confidences of different classes are sorted at this distance."""

UNDERFLOW = 1e-30
"""Confidences closer to 0 are computed in float64: the probabilities in them underflow in float32."""


def unit_roundoff(backend: Backend) -> float:
    """Relative rounding error of float32 products; far larger if torch is set to compute them in TF32 or bfloat16."""
    if backend.library == "torch" and sys.modules["torch"].get_float32_matmul_precision() != "highest":
        return 2.0**-8
    return 2.0**-24


class Candidates:
    """Samples that may be among the `capacity` most confident of their class, given bounds on their confidences.

    Samples are offered chunk by chunk. After every `pending` samples those that cannot be among the most confident are
    dropped. If too many remain, because they are alike, `select` decides: from rows, in order, to the class, confidence
    and row of the most confident.
    """

    def __init__(
        self,
        backend: Backend,
        classes: int,
        capacity: int,
        pending: int,
        select: Callable[[Array], tuple[Array, Array, Array]],
    ) -> None:
        self._backend = backend
        self._classes = classes
        self._capacity = capacity
        self._limit = pending
        self._select = select
        self._parts: list[tuple[Array, ...]] = []
        self._pending = 0

    def offer(self, classes: Array, lower: Array, upper: Array, rows: Array) -> None:
        """Add samples: pseudo-class, bounds on the confidence, row. Bounds of minus and plus infinity mean that the
        class is not certain either."""
        self._parts.append((classes, lower, upper, rows))
        self._pending += int(classes.shape[0])
        if self._pending >= self._limit:
            are_possible, joined = self._possible()
            keep = self._backend.xp.nonzero(are_possible)[0]  # once: a GPU waits for it
            self._parts, self._pending = [tuple(values[keep] for values in joined)], 0
            remaining = self._parts[0][3]
            if remaining.shape[0] > self._limit // 2 + self._classes * self._capacity:
                best, confidences, numbers = self._select(self._backend.xp.sort(remaining))
                self._parts = [(best, confidences, confidences, numbers)]

    def include(self, other: Candidates) -> None:
        """Add the samples of another part of the rows."""
        self._parts += other._parts
        self._pending += other._pending

    def rows(self) -> Array:
        """The rows that may be among the most confident of their class, in order."""
        are_possible, joined = self._possible()
        return self._backend.xp.sort(joined[3][self._backend.xp.nonzero(are_possible)[0]])

    def first_rows(self, count: int) -> tuple[Array, Array]:
        """So many rows of torch, beginning with those of `rows` in the order in which they were offered, and the number
        of these, on the device. The host does not wait for it."""
        are_possible, joined = self._possible()
        order = are_possible.sort(descending=True, stable=True).indices
        return joined[3][order[:count]], are_possible.sum()

    def _possible(self) -> tuple[Array, list[Array]]:
        """Which of the samples may be among the most confident of their class (true or false), and all samples."""
        xp, device = self._backend.xp, self._backend.device
        joined = [
            part[0] if len(part) == 1 else xp.concat(list(part), axis=0) for part in zip(*self._parts, strict=True)
        ]
        classes, lower, upper, _ = joined
        # One sort of classes and lower bounds together: confidences are above -log K, so far above -CLASS_WIDTH.
        first = CLASS_WIDTH * xp.astype(classes, xp.float64)
        keys = xp.sort(first - xp.clip(lower, min=4.0 - CLASS_WIDTH, max=1.0))
        ends = xp.arange(self._classes + 1, dtype=xp.float64, device=device) * CLASS_WIDTH - 2.0
        starts = xp.searchsorted(keys, ends)
        last = starts[:-1] + (self._capacity - 1)
        limits = keys[xp.clip(last, max=keys.shape[0] - 1)] + CLASS_WIDTH * self._classes * 2.0**-50  # above rounding
        limits = xp.where(last < starts[1:], limits, ends[1:])
        # Without a limit, every sample of the class; samples of an uncertain class have an infinite upper bound.
        return first - upper <= limits[classes], joined


@dataclass(frozen=True)
class FirstPass:
    """What the float32 logits of one set of prototypes need, and the bound on their error."""

    prototypes: Array
    logit_scale: float
    scaled: Array
    """s (t_k - t), t the mean prototype, (d, K) float32."""
    centre: Array
    """s t, (d,) float32."""
    factor: Float32Factor | None
    """The scaled prototypes on a GPU."""
    logit_error: float
    """Bound on the error of a difference of a logit to that of the mean prototype, for any row of unit length."""
    relative_error: float
    """Bound on the relative error of a confidence."""

    @classmethod
    def of(cls, prototypes: Array, logit_scale: float) -> FirstPass:
        """The first pass for prototypes in float64."""
        backend = Backend.of(prototypes)
        xp = backend.xp
        classes, d = prototypes.shape
        centre = xp.mean(prototypes, axis=0)
        scaled = logit_scale * (prototypes - centre)
        rounding = unit_roundoff(backend)
        longest = float(xp.max(xp.linalg.vector_norm(scaled, axis=1)))
        # The worst case of a sum of d products, with rounded factors. It costs little, since few samples are that
        # close to each other.
        error = (d + 32) * rounding * LENGTH * longest
        # Confidences are -H, and dH / d logit_k = -y_k (log y_k + H), whose absolute values sum to at most 2 H.
        relative = math.expm1(2 * error) + 2 * (classes + EXTRA_ROUNDINGS) * rounding if error < 1 else math.inf
        return cls(
            prototypes,
            logit_scale,
            backend.copy(backend.asarray(scaled.T, xp.float32)),
            backend.asarray(logit_scale * centre, xp.float32),
            Float32Factor(scaled) if backend.on_gpu else None,
            error,
            relative,
        )

    def logits(self, x: Array, out: Array) -> Array:
        """s (t_k - t).x of the rows `x` (float32), (n, K); on a CPU written to `out`."""
        if self.factor is not None:
            return self.factor.product(self.factor.rows(x))
        return namespace(x).matmul(x, self.scaled, out=out)

    @property
    def is_accurate(self) -> bool:
        return self.logit_error <= LARGEST_LOGIT_ERROR

    def confidence_error(self, confidences: Array) -> Array:
        """Bounds on the errors of confidences."""
        return UNDERFLOW - self.relative_error * confidences

    def collect(
        self, rows: Rows, within: slice, chunk_rows: int, candidates: Candidates, log_normalisers: Array | None
    ) -> tuple[Array, Array]:
        """sum_i y_ik x_i (K, d) and sum_i y_ik (K,) of these rows, in float64; offers them to `candidates`.

        If `log_normalisers` (N,) is given, it receives log sum_k exp(s t_k.x) of every row.
        """
        if self.factor is not None:
            return transductive_gpu.collect(
                self, self.factor, rows, within, chunk_rows, candidates, log_normalisers
            )  # fmt: skip
        backend = Backend.of(self.prototypes)
        xp = backend.xp
        classes, d = self.prototypes.shape
        weighted_sum, weight = backend.zeros((classes, d)), backend.zeros((classes,))
        # All chunks reuse these arrays: allocating new ones would cost as much as the arithmetic.
        buffer_rows = min(chunk_rows, within.stop - within.start)
        logit_buffer, posterior_buffer, feature_buffer = (
            backend.zeros((buffer_rows, width), xp.float32) for width in (classes, classes, d)
        )
        sum_buffer, ones = backend.zeros((classes, d), xp.float32), xp.ones_like(self.scaled[0])
        numbers = xp.arange(buffer_rows, device=backend.device)
        for block, x in rows.blocks(chunk_rows, reuse=True, within=within):
            n = x.shape[0]
            every = numbers[:n]
            logits = self.logits(x, logit_buffer[:n])
            pseudo = xp.argmax(logits, axis=1)
            top = logits[every, pseudo]
            logits -= top[:, None]
            # Without the largest: the second shows near-ties, and the sum of the others keeps its digits.
            logits[every, pseudo] = -xp.inf
            second = xp.max(logits, axis=1)
            y = xp.exp(logits, out=posterior_buffer[:n])
            others = y @ ones
            logits[every, pseudo] = 0.0
            y[every, pseudo] = 1.0
            log_total, share = xp.log1p(others), 1.0 / (1.0 + others)
            # y is not normalised: scaling the d columns of x is cheaper than scaling the K columns of y.
            xp.multiply(x, share[:, None], out=feature_buffer[:n])
            weighted_sum += xp.matmul(y.T, feature_buffer[:n], out=sum_buffer)
            weight += share @ y
            if log_normalisers is not None:
                log_normalisers[block] = top + log_total + x @ self.centre
            confidences = xp.astype(xp.vecdot(y, logits) * share - log_total, xp.float64)
            error = xp.where(second < -2 * self.logit_error, self.confidence_error(confidences), xp.inf)
            candidates.offer(pseudo, confidences - error, confidences + error, every + block.start)
        return weighted_sum, weight


COORDINATES = 32
"""Dimensions of the subspace that bounds cosines from below: fewer prove less, more cost more."""

PARTIAL_SHARE = 0.7
"""Up to this share of rows outside the cone, copying them is faster than bounding the cosines of all rows."""

LARGE = 20.0
"""exp(x) - 1 is exp(x) in float32 from here."""

PAIR_SHARE = 0.01
"""Above this share of uncertain pairs, products with the whole bank are faster than single pairs. So they bound the
time, whatever the features are. (Above four times this share the pairs are not even counted one by one.)"""

PAIRS_PER_CLASS = 8
"""From this many pairs per class, one product per class is faster than one per pair."""

GATHERED_NUMBERS = 2_000_000
"""Bank features copied at a time, at most."""


@dataclass(frozen=True)
class NarrowFusion:
    """`Fusion` in float32: x.directions_k + offsets_k, less its mean over the classes, plus what negative cosines
    add."""

    not_state: ClassVar[frozenset[str]] = frozenset({"bank_bounds"})

    mean_direction: Array
    """Mean of the directions, (d,) float32."""
    mean_offset: float
    """Mean of the offsets."""
    directions: Array | None
    """The directions minus their mean, (d, K) float32; None on a GPU."""
    offsets: Array
    """The offsets minus their mean, (K,) float32."""
    gpu: GpuFusion | None
    """The same for a GPU."""
    error: float
    """Bound on the error of a score relative to the others of its row. It assumes that the roundings of one product do
    not all go in one direction: half the root of d of them add up. CLIP's features come close to that."""
    bank: KnowledgeBank | None

    @classmethod
    def of(
        cls, directions: Array, offsets: Array, bank: KnowledgeBank | None, gpu_bank: GpuBank | None
    ) -> NarrowFusion:
        """From the classifier in float64; `bank` if the bank term is used, and for a GPU the same prepared for it."""
        backend = Backend.of(directions)
        xp = backend.xp
        mean = xp.mean(directions, axis=0)
        centred, offsets_mean = directions - mean, xp.mean(offsets)
        offsets = offsets - offsets_mean
        lengths = xp.linalg.vector_norm(centred, axis=1)
        # One transfer from a GPU.
        numbers = to_numpy(xp.stack([offsets_mean, xp.max(lengths), xp.max(xp.abs(offsets))]))
        mean_offset, longest, largest = numbers.tolist()
        roundings = 0.5 * math.sqrt(directions.shape[1]) + (16 if backend.on_gpu else 2)  # halves: `Float32Factor`
        error = unit_roundoff(backend) * (roundings * LENGTH * longest + 2 * largest)
        return cls(
            backend.asarray(mean, xp.float32),
            mean_offset,
            None if backend.on_gpu else backend.copy(backend.asarray(centred.T, xp.float32)),
            backend.asarray(offsets, xp.float32),
            GpuFusion.of(centred, offsets, gpu_bank, longest) if backend.on_gpu else None,
            error,
            bank,
        )

    def means(self, x: Array) -> Array:
        """The number per row that `scores` leaves out: the mean score without excess, (n,) float32."""
        return x @ self.mean_direction + self.mean_offset

    @property
    def has_doubts(self) -> bool:
        """Whether a probability may be wrong by more than `FLOAT32_TOLERANCE`, so that `are_doubtful` can find any."""
        return self.error > 2 * FLOAT32_TOLERANCE

    def are_doubtful(self, largest: Array) -> Array:
        """(n,) rows of which a probability may be wrong by more than `FLOAT32_TOLERANCE`, by their largest ones (n,).

        Errors e of the scores change a probability by at most 2 e p (1 - p), and p (1 - p) is largest for the class
        with the highest probability, unless that is below a half.
        """
        return (largest < 0.5) | (2 * self.error * largest * (1 - largest) > FLOAT32_TOLERANCE)

    def largest_probabilities(self, scores: Array, spare: Array) -> Array:
        """(n,) of every row of scores (n, K); `spare` is an array of at least that shape, overwritten."""
        xp, y = namespace(scores), spare[: scores.shape[0]]
        xp.subtract(scores, xp.max(scores, axis=1)[:, None], out=y)
        return 1.0 / xp.sum(xp.exp(y, out=y), axis=1)

    def scores(self, x: Array, out: Array, spare: tuple[Array, Array], *, complete: bool) -> Array:
        """Scores (n, K) of the rows `x` (float32), less `means`; on a CPU written to `out`.

        Without `complete` the scores of classes with a negligible probability may be too low. `spare`: two more arrays
        of the shape of `out`, overwritten.
        """
        if self.gpu is not None:
            return self.gpu.scores(x)
        scores = namespace(x).matmul(x, self.directions, out=out)
        scores += self.offsets
        if self.bank is not None:
            self.bank_bounds.add_excess(scores, x, spare, complete=complete)
        return scores

    @cached_property
    def bank_bounds(self) -> NarrowBounds:
        assert self.bank is not None
        return NarrowBounds.of(self.bank)


@dataclass(frozen=True)
class NarrowBounds:
    """Lower bounds on the cosines of samples with the entries of a bank (K, M, d), in float32.

    The bounds of `CosineBounds` with fewer coordinates: a cone for all entries, then a thin product per slot.
    """

    not_state: ClassVar[frozenset[str]] = frozenset({"features", "weights", "class_weights", "largest_weight"})

    bank: KnowledgeBank
    centre: Array
    """Unit vector (d,) float32."""
    limit: float
    """Sine of the largest angle of an entry to the centre; infinite if that is a right angle or more."""
    along: tuple[float, float]
    """Smallest and largest product of an entry with the centre."""
    across: float
    """Largest distance of an entry from the line of the centre."""
    basis: Array
    """Nearly orthonormal columns (d, m) float32."""
    entries: tuple[Array, ...]
    """For every slot (m + 1, K) float32: coordinates, and minus the length of the rest. An empty slot has the centre's
    coordinates and no rest."""
    slack: float
    """Above the rounding of the float32 products."""

    @classmethod
    def of(cls, bank: KnowledgeBank) -> NarrowBounds:
        features, weights = bank.features, bank.weights
        backend = Backend.of(features)
        xp = backend.xp
        classes, slots, d = features.shape
        flat = xp.reshape(features, (classes * slots, d))
        used = xp.reshape(weights, (-1,)) > 0
        centre, limit = bank_cone(flat, used)
        narrow, narrow_centre = backend.asarray(flat, xp.float32), backend.asarray(centre, xp.float32)
        if not bool(xp.all(used)):
            flat, narrow = xp.where(used[:, None], flat, centre), xp.where(used[:, None], narrow, narrow_centre)
        slack = 8 * (d + COORDINATES) * 2.0**-24
        along = flat @ centre
        squares = xp.vecdot(flat, flat)
        across = xp.sqrt(xp.clip(squares - along * along, min=0.0))
        basis = backend.asarray(subspace(narrow, used, narrow_centre, COORDINATES).T, xp.float32)
        inside = narrow @ basis
        rest = xp.sqrt(xp.clip(squares - xp.vecdot(inside, inside), min=0.0) + slack)
        extended = xp.concat([inside, -backend.asarray(rest, xp.float32)[:, None]], axis=1)
        extended = xp.reshape(extended, (classes, slots, -1))
        numbers = to_numpy(xp.stack([limit, xp.min(along), xp.max(along), xp.max(across)]))
        return cls(
            bank,
            narrow_centre,
            float(numbers[0]),
            (float(numbers[1]), float(numbers[2])),
            float(numbers[3]),
            backend.copy(basis),
            tuple(backend.copy(extended[:, slot].T) for slot in range(slots)),
            slack,
        )

    @cached_property
    def features(self) -> Array:
        """The bank's features (K, M, d) in float32, for the pairs that remain uncertain."""
        return Backend.of(self.basis).asarray(self.bank.features, namespace(self.basis).float32)

    @cached_property
    def weights(self) -> Array:
        """The bank's weights (K, M) in float32."""
        return Backend.of(self.basis).asarray(self.bank.weights, namespace(self.basis).float32)

    @cached_property
    def class_weights(self) -> Array:
        """Sum of the weights of every class (K,), float32."""
        return namespace(self.basis).sum(self.weights, axis=1)

    @cached_property
    def largest_weight(self) -> float:
        return float(namespace(self.basis).max(self.class_weights))

    def add_excess(self, scores: Array, x: Array, spare: tuple[Array, Array], *, complete: bool) -> None:
        """Add sum_j max(0, -x.x_j) p_j where a cosine may be negative and, unless `complete`, where it matters."""
        xp = namespace(x)
        n, classes = scores.shape
        squares, along = xp.vecdot(x, x), x @ self.centre
        part: Any = slice(0, n)
        rows = xp.nonzero(along < xp.sqrt(squares) * self.limit + self.slack)[0]
        if rows.shape[0] == 0:
            return
        if rows.shape[0] < PARTIAL_SHARE * n:
            part = rows
        x, squares, along = x[part], squares[part], along[part]
        low, other = spare[0][: x.shape[0]], spare[1][: x.shape[0]]
        self._lower_bounds(x, squares, low, other)
        uncertain = low < self.slack
        top = None
        if not complete:
            top = xp.max(scores, axis=1)[part]
            uncertain &= scores[part] > (top - math.log(classes / IGNORED) - self._most(squares, along))[:, None]
        several = 4 * PAIR_SHARE * x.shape[0] * classes
        if int(xp.count_nonzero(uncertain)) > several:
            self._add_for_all(scores, part, x, other)
            return
        i, k = _pairs(uncertain)
        if top is not None:
            # The same with the bound for the pair itself: exp(excess) - 1 is the relative change of its probability.
            excess = self.class_weights[k] * xp.clip(self.slack - low[i, k], min=0.0)
            change = xp.where(excess > LARGE, excess, xp.log(xp.expm1(xp.clip(excess, min=UNDERFLOW, max=LARGE))))
            keep = scores[_places(part, i), k] - top[i] + change > math.log(IGNORED / classes)
            i, k = i[keep], k[keep]
        pairs = int(i.shape[0])
        if pairs > PAIR_SHARE * x.shape[0] * classes:
            self._add_for_all(scores, part, x, other)
        elif pairs >= PAIRS_PER_CLASS * classes:
            self._add_by_class(scores, x, i, _places(part, i), k)
        elif pairs > 0:
            self._add_by_pair(scores, x, i, _places(part, i), k)

    def _most(self, squares: Array, along: Array) -> Array:
        """The largest possible excess of every row, for any class: from the cone of all entries."""
        xp = namespace(squares)
        across = xp.sqrt(xp.clip(squares - along * along, min=0.0) + self.slack)
        least = xp.minimum(along * self.along[0], along * self.along[1]) - across * self.across
        return self.largest_weight * xp.clip(self.slack - least, min=0.0)

    def _lower_bounds(self, x: Array, squares: Array, low: Array, other: Array) -> None:
        """The smallest bound over the slots of every class, written to `low`."""
        xp = namespace(x)
        inside = x @ self.basis
        rest = xp.sqrt(xp.clip(squares - xp.vecdot(inside, inside), min=0.0) + self.slack)
        extended = xp.concat([inside, rest[:, None]], axis=1)
        xp.matmul(extended, self.entries[0], out=low)
        for entries in self.entries[1:]:
            xp.minimum(low, xp.matmul(extended, entries, out=other), out=low)

    def _add_for_all(self, scores: Array, part: Any, x: Array, cosines: Array) -> None:
        """One product with the bank for every slot, for the rows `x`, which are `part` of those of the scores."""
        xp = namespace(x)
        for slot in range(self.features.shape[1]):
            xp.matmul(x, self.features[:, slot, :].T, out=cosines)
            cosines *= cosines < 0
            cosines *= self.weights[:, slot]
            scores[part] -= cosines

    def _add_by_class(self, scores: Array, x: Array, i: Array, rows: Array, k: Array) -> None:
        """One product per class with the rows uncertain for it; `i` are places in `x`, `rows` those in `scores`."""
        xp = namespace(x)
        order = xp.argsort(k, stable=True)
        i, rows, found = i[order], rows[order], to_numpy(k[order])
        ends = np.flatnonzero(np.diff(found, append=-1)) + 1
        start = 0
        for end in ends.tolist():
            of_class = int(found[start])
            cosines = x[i[start:end]] @ self.features[of_class].T
            scores[rows[start:end], of_class] -= xp.clip(cosines, max=0.0) @ self.weights[of_class]
            start = end

    def _add_by_pair(self, scores: Array, x: Array, i: Array, rows: Array, k: Array) -> None:
        """One product per pair of a row and a class."""
        xp = namespace(x)
        block = max(1, GATHERED_NUMBERS // (self.features.shape[1] * x.shape[1]))
        for start in range(0, i.shape[0], block):
            of_class, row = k[start : start + block], rows[start : start + block]
            cosines = xp.matmul(self.features[of_class], x[i[start : start + block]][:, :, None])[:, :, 0]
            scores[row, of_class] -= xp.vecdot(xp.clip(cosines, max=0.0), self.weights[of_class])


def _pairs(where: Array) -> tuple[Array, Array]:
    """Row and class of every true value (n, K); several times as fast as `nonzero` of a matrix."""
    places = namespace(where).nonzero(namespace(where).reshape(where, (-1,)))[0]
    return places // where.shape[1], places % where.shape[1]


def _places(part: Any, i: Array) -> Array:
    """Which rows the i-th ones of `part` are: a slice from 0, or row numbers."""
    return i if isinstance(part, slice) else part[i]
