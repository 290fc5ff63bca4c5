"""Transductive ADAPT (Algorithm 2): adapts to a whole set in two passes over chunks of rows.

The first pass (`collect_statistics`) sums the soft posteriors and selects the most confident samples per class
(`MostConfident`). The second scores every row with one linear classifier (`Fusion`). `rows_per_chunk` selects chunks
that fit the memory budget. `transductive_float32` has both passes with products in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial, reduce
from typing import Any, ClassVar, NamedTuple, cast

import numpy as np

from zeroshift.adapt.bank import KnowledgeBank
from zeroshift.adapt.bank_term_bounds import CosineBounds, add_excess
from zeroshift.adapt.base import ADAPT
from zeroshift.adapt.engines.direct import CONVERGED
from zeroshift.adapt.statistics import AdaptSettings, Evidence, Gaussians, bank_term, bounded_precision, estimate
from zeroshift.adapt.transductive_float32 import LARGEST_SCORE_ERROR, Candidates, FirstPass, NarrowFusion
from zeroshift.adapt.transductive_gpu import GpuBank
from zeroshift.arrays import Array, Backend, Rows, check_matrix, namespace, to_numpy
from zeroshift.linalg import positive_inverse
from zeroshift.method import Collecting, Probabilities
from zeroshift.parameters import Number, Optional, parameter, state
from zeroshift.passes import Learning, Pass, RowsWanted, on_device
from zeroshift.precision import FLOAT32_TOLERANCE, ProductDiagnostics, precision_parameter
from zeroshift.state_checks import check_range
from zeroshift.threads import Threads, count_threads, own_threads
from zeroshift.zero_shot import TIE, log_posterior, quantize, softmax, zero_shot_stats

__all__ = [
    "CHUNK_ROWS",
    "MIN_COSINES",
    "PENDING",
    "Fusion",
    "MostConfident",
    "SoftSums",
    "TransductiveADAPT",
    "collect_statistics",
    "log_normaliser",
    "normalisers_fit",
    "rows_per_chunk",
]

PENDING = 32_768
"""Samples accumulated between two sorts. Sorting after every chunk would cost more than the chunk itself."""


class MostConfident:
    """The `capacity` samples of highest confidence of every class, the earlier one on a tie.

    Samples are offered chunk by chunk; memory does not grow with their number.

    >>> import numpy as np
    >>> most_confident = MostConfident(Backend.of(np.zeros(1)), capacity=1)
    >>> most_confident.offer(np.array([0, 1, 1]), np.array([-0.5, -0.2, -0.1]), np.array([0.7, 0.8, 0.9]), first_row=0)
    >>> most_confident.offer(np.array([0]), np.array([-0.5]), np.array([0.7]), first_row=3)
    >>> classes, ranks, rows, confidences, probabilities = most_confident.chosen()
    >>> classes, rows
    (array([0, 1]), array([0, 2]))
    """

    def __init__(self, backend: Backend, capacity: int) -> None:
        self._backend = backend
        self._capacity = capacity
        self._parts: list[tuple[Array, ...]] = []
        self._pending = 0

    def offer(self, classes: Array, confidences: Array, probabilities: Array, first_row: int) -> None:
        """Add consecutive samples, from row `first_row`: pseudo-class, confidence and own-class probability (n,)."""
        xp = self._backend.xp
        n = int(classes.shape[0])
        rows = xp.arange(first_row, first_row + n, dtype=xp.int64, device=self._backend.device)
        self.offer_rows(classes, confidences, probabilities, rows)

    def offer_rows(self, classes: Array, confidences: Array, probabilities: Array, rows: Array) -> None:
        """Add samples of any rows, in order of their rows."""
        n = int(classes.shape[0])
        self._parts.append((classes, rows, confidences, probabilities))
        self._pending += n
        if self._pending >= PENDING:
            self.chosen()

    def chosen(self) -> tuple[Array, Array, Array, Array, Array]:
        """(class, rank in its class, row, confidence, probability) of the samples held, sorted by class and rank."""
        classes, ranks, *others = self.ranked()
        keep = self._backend.xp.nonzero(ranks < self._capacity)[0]  # once: a GPU waits for it
        ranks, (classes, *others) = ranks[keep], (values[keep] for values in (classes, *others))
        self._parts, self._pending = [(classes, *others)], 0
        return classes, ranks, others[0], others[1], others[2]

    def ranked(self) -> tuple[Array, Array, Array, Array, Array]:
        """The same of all samples since the last selection, too."""
        xp = self._backend.xp
        classes, rows, confidences, probabilities = (
            part[0] if len(part) == 1 else xp.concat(list(part), axis=0) for part in zip(*self._parts, strict=True)
        )
        # By class, then highest confidence, then row: both sorts are stable, and samples already held have lower rows.
        order = xp.argsort(-quantize(confidences), stable=True)
        order = order[xp.argsort(classes[order], stable=True)]
        by_class = classes[order]
        ranks = xp.arange(by_class.shape[0], device=self._backend.device) - xp.searchsorted(by_class, by_class)
        return by_class, ranks, rows[order], confidences[order], probabilities[order]


CHUNK_ROWS = 2048
"""Rows processed together if a method has no setting of its own."""


class SoftSums(NamedTuple):
    """Sums over samples x_i with posteriors y_i."""

    weighted_sum: Array
    """sum_i y_ik x_i, (K, d)."""
    weight: Array
    """sum_i y_ik, (K,)."""

    def add(self, features: Array, posterior: Array) -> SoftSums:
        """These sums plus the given samples, weighted by `posterior` (n, K)."""
        weight = self.weight + namespace(posterior).sum(posterior, axis=0)
        return SoftSums(self.weighted_sum + posterior.T @ features, weight)

    @classmethod
    def total(cls, parts: Sequence[SoftSums]) -> SoftSums:
        """The sums over the samples of all parts."""
        return reduce(
            lambda total, part: cls(total.weighted_sum + part.weighted_sum, total.weight + part.weight), parts
        )


def collect_statistics(
    rows: Rows,
    chunk_rows: int,
    prototypes: Array,
    logit_scale: float,
    bank: KnowledgeBank,
    log_normalisers: Array | None = None,
) -> SoftSums:
    """First pass: fill `bank` with the L most confident samples per pseudo-class; return the soft sums of all samples.

    If `log_normalisers` (N,) is given, it receives log sum_k exp(s t_k.x) of every row.
    """
    backend = Backend.of(prototypes)
    scaled = (logit_scale * prototypes).T

    def collect(part: slice) -> tuple[SoftSums, MostConfident]:
        return _collect_part(rows, part, chunk_rows, scaled, bank.capacity, log_normalisers)

    with own_threads(backend.library, scores=len(rows) * prototypes.shape[0]) as threads:
        parts = threads.map(collect, threads.split(len(rows)))
    most_confident = MostConfident(backend, bank.capacity)
    for _, of_part in parts:
        classes, _, at, confidences, probabilities = of_part.chosen()
        most_confident.offer_rows(classes, confidences, probabilities, at)
    chosen, ranks, at, confidences, probabilities = most_confident.chosen()
    bank.fill(rows.take(at), chosen, ranks, probabilities, confidences)
    return SoftSums.total([sums for sums, _ in parts])


def _collect_part(
    rows: Rows, part: slice, chunk_rows: int, scaled: Array, capacity: int, log_normalisers: Array | None
) -> tuple[SoftSums, MostConfident]:
    """The soft sums and the most confident samples of a part of the rows; `scaled` are s t_k (d, K)."""
    backend = Backend.of(scaled)
    xp = backend.xp
    d, classes = scaled.shape
    weighted_sum, weight = backend.zeros((classes, d)), backend.zeros((classes,))
    most_confident = MostConfident(backend, capacity)
    # All chunks reuse these arrays: allocating new ones would cost as much as the arithmetic.
    buffer_rows = min(chunk_rows, part.stop - part.start)
    logit_buffer, posterior_buffer, feature_buffer = (
        backend.zeros((buffer_rows, width)) for width in (classes, classes, d)
    )
    row_numbers = xp.arange(buffer_rows, device=backend.device)
    for block, x in rows.blocks(chunk_rows, reuse=True, within=part):
        n = x.shape[0]
        logits = xp.matmul(x, scaled, out=logit_buffer[:n])
        top = xp.max(logits, axis=1)
        logits -= top[:, None]
        # The settings of `zero_shot.pseudo_class`: the first of the classes within TIE of the largest.
        pseudo = xp.argmax((logits >= -TIE).view(xp.int8), axis=1)
        y = xp.exp(logits, out=posterior_buffer[:n])
        # y is not normalised: scaling the d columns of x is cheaper than scaling the K columns of y.
        total = xp.sum(y, axis=1)
        log_total, share = xp.log(total), 1.0 / total
        weighted_sum += y.T @ xp.multiply(x, share[:, None], out=feature_buffer[:n])
        weight += share @ y
        if log_normalisers is not None:
            log_normalisers[block] = top + log_total
        confidences = xp.vecdot(y, logits) * share - log_total
        own = y[row_numbers[:n], pseudo] * share
        most_confident.offer(pseudo, confidences, own, block.start)
    return SoftSums(weighted_sum, weight), most_confident


PENDING_ON_GPU = 1_000_000
"""The same on a GPU, which sorts faster than it answers how many samples remain."""


FEW_CANDIDATES = 1024
"""So many more candidates than the bank has slots are not unusual."""


def collect_statistics_float32(
    first: FirstPass, rows: Rows, chunk_rows: int, bank: KnowledgeBank, log_normalisers: Array | None = None
) -> SoftSums:
    """`collect_statistics` with float32 products: rows in float32; the bank is the same."""
    backend = Backend.of(first.prototypes)
    exact_rows = max(1, chunk_rows // (2 if backend.on_gpu else 4))  # float64, and more arrays

    def statistics(numbers: Array) -> tuple[Array, Array, Array, Array]:
        """Class, confidence, probability and number of these rows, in float64."""
        log_y, classes, confidences = zero_shot_stats(rows.wide().take(numbers), first.prototypes, first.logit_scale)
        own = log_y[backend.xp.arange(numbers.shape[0], device=backend.device), classes]
        return classes, confidences, backend.xp.exp(own), numbers

    def select(numbers: Array, threads: Threads) -> tuple[Array, Array, Array, Array, Array]:
        """The most confident of these rows: class, rank, row, confidence and probability."""
        best = MostConfident(backend, bank.capacity)
        starts = range(0, numbers.shape[0], exact_rows)
        for found in threads.map(lambda start: statistics(numbers[start : start + exact_rows]), starts):
            best.offer_rows(*found)
        return best.chosen()

    def select_ahead(candidates: Candidates) -> tuple[Array, Array, Array, Array, Array] | None:
        """The same of the candidates, unless they are unusually many. On a GPU the host does not wait before it has
        prepared all of it."""
        xp, classes = backend.xp, first.prototypes.shape[0]
        expected = classes * bank.capacity
        count = min(expected + max(expected // 4, FEW_CANDIDATES), len(rows))
        if not backend.on_gpu or count > 2 * chunk_rows // 3 or len(rows) >= pending:
            return None
        numbers, n_candidates = candidates.first_rows(count)
        of_class, confidences, probabilities, _ = statistics(numbers)
        is_candidate = xp.arange(count, device=backend.device) < n_candidates
        best = MostConfident(backend, bank.capacity)
        best.offer_rows(xp.where(is_candidate, of_class, classes), confidences, probabilities, numbers)
        of_class, ranks, numbers, confidences, probabilities = best.ranked()
        columns = [xp.astype(values, xp.float64) for values in (of_class, ranks, n_candidates.expand(count))]
        host = to_numpy(xp.stack([*columns, confidences]))
        if host[2, 0] > count:
            return None
        kept = np.flatnonzero((host[0] < classes) & (host[1] < bank.capacity))
        place, numbers_only = backend.index(kept), host[:2, kept].astype(np.int64)
        return *numbers_only, numbers[place], host[3, kept], probabilities[place]

    def select_again(numbers: Array) -> tuple[Array, Array, Array]:
        classes, _, at, confidences, _ = select(numbers, Threads())  # the other threads have parts of their own
        return classes, confidences, at

    def collect(part: slice) -> tuple[SoftSums, Candidates]:
        candidates = Candidates(backend, first.prototypes.shape[0], bank.capacity, pending, select_again)
        return SoftSums(*first.collect(rows, part, chunk_rows, candidates, log_normalisers)), candidates

    pending = PENDING_ON_GPU if backend.on_gpu else PENDING
    with own_threads(backend.library, scores=len(rows) * first.prototypes.shape[0]) as threads:
        parts = threads.map(collect, threads.split(len(rows)))
        # Of all parts together, before anything is computed again: each part alone has the L best of its own.
        candidates = parts[0][1]
        for _, of_part in parts[1:]:
            candidates.include(of_part)
        found = select_ahead(candidates)
        if found is None:
            found = select(candidates.rows(), threads)
    chosen, ranks, at, confidences, probabilities = found
    bank.fill(rows.wide().take(at), chosen, ranks, probabilities, confidences)
    return SoftSums.total([sums for sums, _ in parts])


MIN_COSINES = 50_000
"""Cosines computed together, at least, even if few rows are scored."""

CACHED_BOUNDS = 1_000_000
"""Bounds on cosines computed together on a CPU, at most: they should stay in its caches until they are compared."""


def log_normaliser(logits: Array) -> Array:
    """log sum_k exp(logit_k) of every row (n, K); the logits are overwritten."""
    xp = namespace(logits)
    top = xp.max(logits, axis=1)
    logits -= top[:, None]
    return top + xp.log(xp.sum(xp.exp(logits, out=logits), axis=1))


@dataclass(frozen=True)
class Fusion:
    """The fused prediction (Eq. 8) as one linear classifier: logits, discriminant and bank term in one product.

    log y_k + g_k + r_k = x.directions_k + offsets_k - log_normaliser(x), plus what negative cosines add to r_k.
    Without any evidence it is log y, the zero-shot classifier.
    """

    not_state: ClassVar[frozenset[str]] = frozenset({"bounds", "narrow", "gpu_bank"})

    directions: Array
    offsets: Array
    bank: KnowledgeBank | None
    """If the bank term is used."""

    @classmethod
    def of(
        cls,
        scaled_prototypes: Array,
        gaussians: Gaussians,
        evidence: Evidence,
        settings: AdaptSettings,
        bank_sum: Array,
    ) -> Fusion:
        """The classifier for s t_k (K, d) and what has been learned; `bank_sum` is sum_j p_j x_j of the bank (K, d)."""
        if evidence.size == 0:
            return cls(scaled_prototypes, namespace(scaled_prototypes).zeros_like(gaussians.offsets), None)
        directions = scaled_prototypes + gaussians.directions
        bank = evidence if settings.use_bank_term and isinstance(evidence, KnowledgeBank) else None
        if bank is not None:
            directions += bank_sum
        return cls(directions, gaussians.offsets, bank)

    @cached_property
    def bounds(self) -> CosineBounds:
        assert self.bank is not None
        return CosineBounds.of(self.bank.features, self.bank.weights)

    @cached_property
    def narrow(self) -> NarrowFusion:
        """The same in float32."""
        return NarrowFusion.of(self.directions, self.offsets, self.bank, self.gpu_bank)

    @cached_property
    def gpu_bank(self) -> GpuBank | None:
        """The bank as `narrow` uses it on a GPU."""
        return GpuBank.of(self.bank) if self.bank is not None and Backend.of(self.directions).on_gpu else None

    def exact(self, x: Array) -> Array:
        """Scores (n, K) of a few rows `x` (float64), up to a number per row, with the whole bank term."""
        scores = x @ self.directions.T + self.offsets
        if self.bank is not None:
            scores += bank_term(-x, self.bank.features, self.bank.weights)  # what negative cosines add
        return scores

    def scores(self, x: Array, log_normalisers: Array, out: Array) -> Array:
        """Scores (n, K) of the rows `x`, written to `out`, given their zero-shot log-normalisers (n,)."""
        scores = namespace(x).matmul(x, self.directions.T, out=out)
        scores += self.offsets
        scores -= log_normalisers[:, None]
        if self.bank is not None:
            # Bounds in float32, or exact cosines in three float64 arrays, take about as much memory as the scores.
            n, classes = scores.shape
            features, weights = self.bank.features, self.bank.weights
            max_cosines = max(n * classes // 4, MIN_COSINES)
            n_bounds = min(4 * max_cosines, CACHED_BOUNDS) if str(Backend.of(x).device) == "cpu" else 4 * max_cosines
            block_rows = max(1, n_bounds // (classes * weights.shape[1]))
            for rows, uncertain in self.bounds.uncertain_rows(x, block_rows):
                corrected = scores[rows]
                add_excess(corrected, x[rows], features, weights, uncertain, max_cosines)
                scores[rows] = corrected
        return scores


MIN_ROWS = 16
"""Smallest chunk, for any budget: fewer rows make the products slow and save little memory."""

CACHED_NUMBERS, CACHED_NARROW = 3_000_000, 1_500_000
"""Features plus scores of one chunk on a CPU, at most, in float64 and in float32, which has one array more and less
time per number: chunks that stay in its caches are twice as fast."""

NORMALISERS_SHARE = 8
"""The second pass reuses the log-normalisers if they fit in the budget divided by this number."""

CANDIDATE_BYTES = 100
"""Per sample accumulated between two sorts: class, row, confidence, probability, and memory for sorting."""


def rows_per_chunk(
    memory_budget: int, rows: int, prototypes: Array, evidence: Evidence, *, narrow: bool = False
) -> int:
    """How many of `rows` rows fit, with their scores, in the memory budget (bytes) next to the statistics, if every
    thread has as many; with `narrow` in float32."""
    threads = count_threads(Backend.of(prototypes).library)
    classes, d = prototypes.shape
    slots = evidence.weights.shape[1] if isinstance(evidence, KnowledgeBank) else 0
    # The bank and a copy of up to half of it for exact sums; prototypes, means and sums; scatter and precision.
    learned = 8 * (classes * slots * d * 3 // 2 + 7 * classes * d + 3 * d * d)
    kept = 8 * rows if normalisers_fit(memory_budget, rows) else 0
    candidates = CANDIDATE_BYTES * min(rows, PENDING + classes * slots)
    learned += 8 * (threads - 1) * classes * d  # sums of every thread
    if narrow and Backend.of(prototypes).on_gpu:
        # Logits and posteriors, or scores and products with the bank; features in three forms (`transductive_gpu`).
        row = 4 * (2 * classes + 3 * d) + 64
    elif narrow:
        learned += 4 * (2 + threads) * classes * d  # prototypes, directions, and sums of a chunk
        # Four arrays of scores (logits and posteriors, or scores and bounds), a few bytes per score; features twice.
        row = 4 * (4 * classes + 2 * d) + 4 * classes + 64
    else:
        # Two arrays of scores (logits and posteriors, or scores and bounds), two bytes per score; features twice.
        # With the bank off, the posteriors come from `zero_shot`, which allocates an array at every step.
        row = 8 * ((2 if slots else 4) * classes + 2 * d) + 2 * classes + 64
    fitting = (memory_budget - learned - kept - candidates) // (threads * row)
    if str(Backend.of(prototypes).device) == "cpu":
        fitting = min(fitting, (CACHED_NARROW if narrow else CACHED_NUMBERS) // (classes + d))
    return max(MIN_ROWS, fitting)


def normalisers_fit(memory_budget: int, rows: int) -> bool:
    """Whether one float64 per row may be kept between the two passes."""
    return 8 * rows <= memory_budget // NORMALISERS_SHARE


CHECK_EVERY, CHECKED_ROWS = 512, 32
"""One row in so many is scored in float64 as well (before the others, on a GPU after them): one at least in the first
call, and no more than this number."""


class LearnedSet(NamedTuple):
    """What was learned from one set, and the resulting classifier."""

    evidence: Evidence
    soft_sums: SoftSums
    gaussians: Gaussians
    fusion: Fusion


class TransductiveADAPT(ADAPT):
    """Adapts to a whole set: estimates class means from the soft posteriors of all samples and from banks of the most
    confident ones, one shared covariance from the banks, then predicts every sample in closed form.

    Each call of `adapt` starts again from the given set; `predict` then scores other features with what was learned.

    Examples
    --------
    >>> import numpy as np
    >>> from zeroshift import TransductiveADAPT
    >>> features = np.eye(3, 8)[[0, 1, 2, 1]]
    >>> TransductiveADAPT(np.eye(3, 8), logit_scale=10.0).adapt(features).argmax(axis=1)
    array([0, 1, 2, 1])

    Notes
    -----
    *Backpropagation-Free Test-Time Adaptation via Probabilistic Gaussian Alignment*, NeurIPS 2025. A class
    whose soft weight underflows to zero keeps its prototype as mean. The authors' released code computes
    something else: see `ReleasedTransductiveADAPT`.

    `adapt_views` averages the most confident views of each image once, as `OnlineADAPT` does, and stores the averages,
    (N, d) in float64. They do not count towards `memory_budget`.

    `iterations` above 1 and `bank_size=0` use float64 products for any `precision`.
    """

    name = "adapt_transductive"
    headline = "ADAPT: Gaussians from banks and the whole set"
    not_state: ClassVar[frozenset[str]] = frozenset({"_diagnostics", "_float32_failed", "_narrow_prototypes"})
    protocol = "transductive"
    state_size = "K L d + d^2"
    complexity = "O(N K d + d^3)"

    bank_size: int = parameter(
        Number(low=0, integer=True),
        "Most confident samples kept per class (L), 6 in the paper. 0 turns the bank off.",
        default=6,
    )
    memory_budget: int = parameter(
        Number(low=1, integer=True),
        "Bytes of working memory for `adapt` and `predict` in addition to the features and the answer, 256 MB by "
        "default. Rows are processed in chunks that fit. Bank and statistics come first and need up to four times the "
        "size of the bank; if that exceeds the budget, the chunks are small. Features may be memory-mapped and larger "
        "than memory.",
        default=256_000_000,
        reload=True,
    )
    chunk_size: int | None = parameter(
        Optional(Number(low=1, integer=True)),
        "Rows that a thread processes together, instead of as many as the budget allows. It changes the answer only by "
        "rounding.",
        default=None,
        reload=True,
    )

    precision: str = precision_parameter()

    _soft_sums: SoftSums = state(
        lambda self: self._initial_sums(),
        saved_as="",
        check=lambda self, sums: check_range("weight", sums.weight, 0),
    )

    def _initial_sums(self) -> SoftSums:
        """Soft sums before any sample: zero, or those of the labelled samples if no bank holds them."""
        if self.bank_size == 0:
            return SoftSums(*self._initial_evidence().sums())
        backend = Backend.of(self.prototypes)
        return SoftSums(backend.zeros((self.n_classes, self.dimension)), backend.zeros((self.n_classes,)))

    def _prepare(self) -> None:
        self._diagnostics = ProductDiagnostics()
        self._float32_failed = False

    @property
    def diagnostics(self) -> ProductDiagnostics:
        """The precision of the products, and what the checks of float32 products found since the last reset."""
        return replace(self._diagnostics)

    @cached_property
    def _narrow_prototypes(self) -> FirstPass:
        return FirstPass.of(self._wide_prototypes, self.logit_scale)

    def _in_products_precision(self, rows: Rows) -> Rows:
        """The rows in float64 if the products have to be; settings in which they decide more than a bank, too."""
        if rows.dtype == Backend.of(self.prototypes).xp.float32:
            fits = self.bank_size > 0 and self.iterations == 1 and not self._float32_failed
            if fits and not self._narrow_prototypes.is_accurate:
                self._diagnostics.float64_fallbacks += 1
                fits = False
            if fits:
                self._diagnostics.products = "float32"
                return rows
        self._diagnostics.products = "float64"
        return rows.wide()

    def _chunk_rows(self, rows: Rows, evidence: Evidence) -> int:
        """Rows processed together."""
        backend = Backend.of(self.prototypes)
        return self.chunk_size or rows_per_chunk(
            self.memory_budget, len(rows), self.prototypes, evidence, narrow=rows.dtype == backend.xp.float32
        )

    def _derive(self) -> None:
        self._learned = self._estimate(self._evidence, self._soft_sums)

    def _estimate(self, evidence: Evidence, soft_sums: SoftSums) -> LearnedSet:
        """Eq. 12: all samples, and those in the bank a second time; with the bank off, only the samples."""
        weighted_sum, weight = soft_sums
        bank_sum = weighted_sum  # not used without a bank
        if isinstance(evidence, KnowledgeBank):
            bank_sum, bank_weight = evidence.sums()
            weighted_sum, weight = weighted_sum + bank_sum, weight + bank_weight
        prototypes = self._wide_prototypes
        gaussians = estimate(evidence, (weighted_sum, weight), prototypes, self._settings, _precision)
        fusion = Fusion.of(self.logit_scale * prototypes, gaussians, evidence, self._settings, bank_sum)
        return LearnedSet(evidence, soft_sums, gaussians, fusion)

    @property
    def _gaussians(self) -> Gaussians:
        return self._learned.gaussians

    def _collecting(
        self,
        rows: Rows,
        given: Array,
        run: Callable[[Any], Iterator[tuple[slice, Array]]],
        learn: bool,
        probabilities: bool,
    ) -> Collecting:
        # Probabilities need less than scores: see `NarrowFusion`.
        if probabilities:
            run = partial(cast(Any, run), complete=False)
        return super()._collecting(rows, given, run, learn, probabilities)

    def learn_in_passes(self, first: Array, *, sampled: bool = False) -> Learning:
        """Learn a set that is stored in parts, in one pass over it: see `zeroshift.passes`. `first` are its first rows,
        at least one. A sample is of no use, because there is only one pass: `sampled` has no effect."""
        if self.bank_size == 0 or self.iterations != 1:
            raise ValueError(
                f"a set in parts needs bank_size of at least 1 and iterations=1; got bank_size={self.bank_size} and "
                f"iterations={self.iterations}. Fix: leave out both, or adapt to one array."
            )
        check_matrix("first", first[:1], columns=self.dimension, classes=self.n_classes)
        params = self.get_params()
        work = AdaptPass(type(self), {**params, "prototypes": to_numpy(params["prototypes"])})
        total = yield work
        backend, evidence = Backend.of(self.prototypes), self._initial_evidence()
        assert isinstance(evidence, KnowledgeBank)
        chosen, ranks, at, confidences, probabilities = (to_numpy(one) for one in work.chosen(total))
        rows = yield RowsWanted(at)
        wide = backend.xp.float64
        evidence.fill(
            backend.asarray(rows, wide), chosen, ranks, backend.asarray(probabilities, wide),
            backend.asarray(confidences, wide),
        )  # fmt: skip
        sums = SoftSums(backend.asarray(total["weighted_sum"], wide), backend.asarray(total["weight"], wide))
        self._in_turn(True, self._publish, self._estimate(evidence, sums), int(total["samples"]))

    def _publish(self, learned: LearnedSet, samples: int) -> None:
        with self._learning(samples, replace=True):
            self._evidence, self._soft_sums, self._learned = *learned[:2], learned

    def _adapt_scores(self, rows: Rows, *, complete: bool = True) -> Iterator[tuple[slice, Array]]:
        rows = self._in_products_precision(rows)
        learned, log_normalisers = self._first_pass(rows, complete)
        scores = None
        if self.iterations > 1:
            learned, scores = self._iterate(rows, learned, log_normalisers)
        self._publish(learned, len(rows))
        if scores is None:
            yield slice(0, len(rows)), self._scoring(rows, learned, log_normalisers, complete=complete)
        else:
            yield slice(0, len(rows)), scores

    def _adapt_view_scores(self, images: Rows, *, complete: bool = True) -> Iterator[tuple[slice, Array]]:
        averages = self._averaged(images).materialize()
        return self._adapt_scores(averages.astype(images.dtype), complete=complete)

    def _first_pass(self, rows: Rows, complete: bool) -> tuple[LearnedSet, Array | None]:
        """Learn from the rows, starting from nothing. Also returns the rows' zero-shot log-normalisers if they fit in
        the budget; they save the second pass one product."""
        evidence = self._initial_evidence()
        chunk_rows = self._chunk_rows(rows, evidence)
        if not isinstance(evidence, KnowledgeBank):
            for _, features in rows.blocks(chunk_rows):
                evidence.offer(features, log_posterior(features, self._wide_prototypes, self.logit_scale))
            return self._estimate(evidence, SoftSums(*evidence.sums())), None
        backend = Backend.of(self.prototypes)
        kept = backend.zeros((len(rows),)) if normalisers_fit(self.memory_budget, len(rows)) else None
        if rows.dtype == backend.xp.float32:
            kept = kept if complete else None  # the same for all classes: no probability depends on it
            soft_sums = collect_statistics_float32(self._narrow_prototypes, rows, chunk_rows, evidence, kept)
        else:
            soft_sums = collect_statistics(rows, chunk_rows, self._wide_prototypes, self.logit_scale, evidence, kept)
        return self._estimate(evidence, soft_sums), kept

    def _scoring(
        self, rows: Rows, learned: LearnedSet, log_normalisers: Array | None, *, complete: bool
    ) -> Callable[[slice], Iterator[tuple[slice, Array]]]:
        """Second pass: a function that scores a part of the rows, each with one product; with two if its log-normaliser
        is needed and not known."""
        if rows.dtype == Backend.of(self.prototypes).xp.float32:
            bank, ahead = learned.fusion.gpu_bank, []
            if bank is not None:
                ahead = bank.lengths_ahead(rows, self._chunk_rows(rows, learned.evidence))
            narrow = learned.fusion.narrow
            if narrow.error > LARGEST_SCORE_ERROR:
                self._note_fallback()
            elif narrow.gpu is not None or self._accepts(self._float32_error(rows, learned.fusion)):
                return partial(self._scores_float32, rows, learned, log_normalisers, ahead, complete)
            rows = rows.wide()
        return partial(self._scores_float64, rows, learned, log_normalisers)

    def _scores_float64(
        self, rows: Rows, learned: LearnedSet, log_normalisers: Array | None, part: slice
    ) -> Iterator[tuple[slice, Array]]:
        backend = Backend.of(self.prototypes)
        scaled = (self.logit_scale * self._wide_prototypes).T
        chunk_rows = self._chunk_rows(rows, learned.evidence)
        # All chunks reuse one array: a new one costs as much as the arithmetic. The caller must have finished with the
        # scores of one chunk before it requests the next.
        buffer = backend.zeros((min(chunk_rows, part.stop - part.start), self.n_classes))
        for chunk, x in rows.blocks(chunk_rows, reuse=True, within=part):
            scores = buffer[: x.shape[0]]
            if log_normalisers is None:
                known = log_normaliser(backend.xp.matmul(x, scaled, out=scores))
            else:
                known = log_normalisers[chunk]
            yield chunk, learned.fusion.scores(x, known, scores)

    def _scores_float32(
        self,
        rows: Rows,
        learned: LearnedSet,
        log_normalisers: Array | None,
        ahead: list[Array],
        complete: bool,
        part: slice,
    ) -> Iterator[tuple[Any, Array]]:
        backend = Backend.of(self.prototypes)
        xp, narrow, first = backend.xp, learned.fusion.narrow, self._narrow_prototypes
        chunk_rows = self._chunk_rows(rows, learned.evidence)

        def shared(chunk: Any, x: Array, spare: Array) -> Array:
            """(n,) what is missing from the scores of these rows, the same for all classes."""
            if log_normalisers is None:
                return narrow.means(x) - log_normaliser(first.logits(x, spare[: x.shape[0]])) - x @ first.centre
            return narrow.means(x) - xp.astype(log_normalisers[chunk], xp.float32)

        def step(chunk: Any, x: Array, scores: Array) -> tuple[Any, Any]:
            """Scores or probabilities of these rows, from scores without what they share, or from probabilities."""
            if complete:
                scores += shared(chunk, x, scores)[:, None]
            scores = xp.astype(scores, xp.float32, copy=False)
            return chunk, scores if complete else Probabilities(scores)

        if narrow.gpu is not None:
            largest: list[Array] = []
            for chunk, x, scores in narrow.gpu.scores_of_rows(
                rows, part, chunk_rows, ahead, largest if narrow.has_doubts else None, complete=complete
            ):
                yield step(chunk, x, scores)
            # The device still has work while the host prepares the check. Only then does it wait.
            error = self._float32_error(rows, learned.fusion)
            if narrow.has_doubts:
                numbers = xp.nonzero(narrow.are_doubtful(xp.concat(largest)))[0] + part.start
                for some, x, scores in narrow.gpu.exact_scores(rows, numbers, chunk_rows // 2, complete=complete):
                    yield step(some, x, scores)
            if not self._accepts(error):
                yield from self._scores_float64(rows.wide(), learned, log_normalisers, part)
            return
        shape = (min(chunk_rows, part.stop - part.start), self.n_classes)
        buffer, *spare = (backend.zeros(shape, xp.float32) for _ in range(3))
        for chunk, x in rows.blocks(chunk_rows, reuse=True, within=part):
            scores = narrow.scores(x, buffer[: x.shape[0]], (spare[0], spare[1]), complete=complete)
            if narrow.has_doubts:
                doubtful = narrow.are_doubtful(narrow.largest_probabilities(scores, spare[0]))
                self._score_again(xp.nonzero(doubtful)[0], x, scores, learned.fusion, complete)
            if complete:
                scores += shared(chunk, x, spare[0])[:, None]
            yield chunk, scores

    def _score_again(self, doubtful: Array, x: Array, scores: Array, fusion: Fusion, complete: bool) -> None:
        """Replace the scores of these rows, less `NarrowFusion.means`, by those of float64 products."""
        backend = Backend.of(x)
        xp = backend.xp
        block_rows = max(MIN_ROWS, x.shape[0] // 4)  # float64, and more arrays
        for start in range(0, doubtful.shape[0], block_rows):
            some = x[doubtful[start : start + block_rows]]
            wide = xp.astype(some, xp.float64)
            out = backend.zeros((some.shape[0], self.n_classes))
            exact = fusion.scores(wide, xp.astype(fusion.narrow.means(some), xp.float64), out)
            if not complete:
                exact -= xp.max(exact, axis=1)[:, None]  # of a large score, float32 has few digits after the point
            scores[doubtful[start : start + block_rows]] = xp.astype(exact, xp.float32)

    def _float32_error(self, rows: Rows, fusion: Fusion) -> tuple[int, Array] | None:
        """Score some of the rows with float64 products, too: how many, and the largest difference of a probability.
        None if no check is due."""
        if len(rows) < CHECK_EVERY and self._diagnostics.float32_checks > 0:
            return None
        backend = Backend.of(self.prototypes)
        xp = backend.xp
        wanted = np.unique(np.linspace(0, len(rows) - 1, min(CHECKED_ROWS, -(-len(rows) // CHECK_EVERY))).round())
        x = rows.take(backend.index(wanted.astype(np.int64)))
        shape = (len(wanted), self.n_classes)
        scores, *spare = (xp.empty(shape, dtype=xp.float32, device=backend.device) for _ in range(3))
        scores = fusion.narrow.scores(x, scores, (spare[0], spare[1]), complete=False)
        exact = fusion.exact(xp.astype(x, xp.float64))
        return len(wanted), xp.max(xp.abs(softmax(exact) - softmax(xp.astype(scores, xp.float64))))

    def _accepts(self, checked: tuple[int, Array] | None) -> bool:
        """Note the result of a check. Whether float32 products may score the rows."""
        if checked is None:
            return True
        counts, error = self._diagnostics, float(checked[1])
        counts.float32_checks += checked[0]
        counts.largest_float32_error = max(counts.largest_float32_error, error)
        self._float32_failed = not error <= FLOAT32_TOLERANCE
        if self._float32_failed:
            self._note_fallback()
        return not self._float32_failed

    def _note_fallback(self) -> None:
        self._diagnostics.float64_fallbacks += 1
        self._diagnostics.products = "float64"

    def _iterate(self, rows: Rows, learned: LearnedSet, log_normalisers: Array | None) -> tuple[LearnedSet, Array]:
        """Table 8: repeat with means from the predictions instead of the zero-shot posteriors."""
        backend = Backend.of(self.prototypes)
        xp = backend.xp
        scores = backend.zeros((len(rows), self.n_classes))
        for iteration in range(self.iterations):
            moved = 0.0
            soft_sums = self._initial_sums()
            score = self._scoring(rows, learned, log_normalisers, complete=True)
            for chunk, new in score(slice(0, len(rows))):
                before = softmax(scores[chunk])
                scores[chunk] = new
                z = softmax(new)
                moved = max(moved, float(xp.max(xp.abs(z - before))))
                soft_sums = soft_sums.add(rows[chunk], z)
            if (iteration > 0 and moved < CONVERGED) or iteration == self.iterations - 1:
                break
            learned = self._estimate(learned.evidence, soft_sums)
        return learned, scores

    def _predict_blocks(self, rows: Rows, *, complete: bool = True) -> Iterator[tuple[slice, Array]]:
        score = self._scoring(self._in_products_precision(rows), self._learned, None, complete=complete)
        yield slice(0, len(rows)), score

    def _predict_scores(self, features: Array) -> Array:
        features = Backend.of(features).asarray(features, namespace(features).float64)
        logits = features @ (self.logit_scale * self._wide_prototypes).T
        return self._learned.fusion.scores(features, log_normaliser(logits), logits)

    def _probabilities(self, scores: Array) -> Array:
        backend = Backend.of(scores)
        if backend.on_gpu:
            return softmax(scores)  # one operation instead of five; the budget has room for it there
        # In place: the scores belong to this call, and another array would count towards the memory budget.
        xp = backend.xp
        scores -= xp.max(scores, axis=1)[:, None]
        xp.exp(scores, out=scores)
        scores /= xp.sum(scores, axis=1)[:, None]
        return scores


def _precision(_: int, scatter: Array, count: float) -> tuple[Array, bool]:
    return bounded_precision(scatter, count, positive_inverse)


@dataclass
class AdaptPass(Pass):
    """The first pass of ADAPT over a part: soft sums, and which samples are the most confident of each class."""

    not_state: ClassVar[frozenset[str]] = frozenset({"_ready"})

    method: type[TransductiveADAPT]
    params: Mapping[str, Any]
    _ready: dict[str | None, TransductiveADAPT] = field(default_factory=dict, repr=False)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_ready": {}}

    def part(self, rows: Array, first_row: int, device: str | None) -> dict[str, np.ndarray]:
        if device not in self._ready:
            self._ready[device] = self.method(**on_device(self.params, device))
        method = self._ready[device]
        backend = Backend.of(method.prototypes)
        with backend.computing():
            checked = method._in_products_precision(method._rows(rows))
            # Without labelled samples: a bank is filled here only to find the most confident samples of this part.
            bank = KnowledgeBank(backend, method.n_classes, method.dimension, method.bank_size)
            numbered = _NumberedRows(checked)
            chunk_rows = method._chunk_rows(checked, bank)
            if checked.dtype == backend.xp.float32:
                sums = collect_statistics_float32(method._narrow_prototypes, numbered, chunk_rows, bank)
            else:
                sums = collect_statistics(
                    numbered, chunk_rows, method._wide_prototypes, method.logit_scale, bank
                )  # fmt: skip
        weights, confidences = to_numpy(bank.weights), bank.confidences
        classes = np.repeat(np.arange(method.n_classes), bank.sample_counts)
        ranks = np.concatenate([np.arange(count) for count in bank.sample_counts])
        return {
            "weighted_sum": to_numpy(sums.weighted_sum),
            "weight": to_numpy(sums.weight),
            "samples": np.array(len(checked)),
            "classes": classes,
            "rows": first_row + numbered.taken,
            "confidences": confidences[classes, ranks],
            "probabilities": weights[classes, ranks],
        }

    def add(self, total: dict[str, np.ndarray], part: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        if not total:
            return dict(part)
        for name in ("weighted_sum", "weight", "samples"):
            total[name] = total[name] + part[name]
        total |= {name: np.concatenate([total[name], part[name]]) for name in CHOSEN}
        classes, _, rows, confidences, probabilities = self.chosen(total)
        return {**total, "classes": classes, "rows": rows, "confidences": confidences, "probabilities": probabilities}

    def chosen(self, total: Mapping[str, np.ndarray]) -> tuple[np.ndarray, ...]:
        """(class, rank in its class, row, confidence, probability) of the most confident samples so far."""
        best = MostConfident(Backend.of(total["weight"]), self.params["bank_size"])
        order = np.argsort(total["rows"], kind="stable")
        best.offer_rows(*(total[name][order] for name in ("classes", "confidences", "probabilities", "rows")))
        return best.chosen()


CHOSEN = ("classes", "rows", "confidences", "probabilities")


class _NumberedRows(Rows):
    """Rows that remember the numbers of those that were taken last, for a bank."""

    def __init__(self, rows: Rows) -> None:
        super().__init__(rows._features, rows._backend, rows.dtype)
        self.taken = np.zeros(0, np.int64)
        self._last = self

    def wide(self) -> Rows:
        found = _NumberedRows(super().wide())
        found._last = self
        return found

    def take(self, rows: Array) -> Array:
        self._last.taken = to_numpy(rows)
        return super().take(rows)
