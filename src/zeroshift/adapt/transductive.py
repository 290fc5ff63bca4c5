"""Transductive ADAPT (Algorithm 2): the whole set at once, in two passes over row chunks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from zeroshift.adapt.bank import KnowledgeBank
from zeroshift.adapt.bank_term_bounds import Sketch, add_excess
from zeroshift.adapt.base import ADAPT
from zeroshift.adapt.engines.direct import CONVERGED
from zeroshift.adapt.statistics import AdaptSettings, Evidence, Gaussians, estimate
from zeroshift.arrays import Array, Home, Rows, namespace, to_numpy
from zeroshift.parameters import Number, Optional, parameter, state
from zeroshift.zero_shot import TIE, log_posterior, quantize, softmax

__all__ = [
    "CHUNK_ROWS",
    "PENDING",
    "WORK_NUMBERS",
    "Fusion",
    "MostConfident",
    "SoftSums",
    "TransductiveADAPT",
    "keeps_normalisers",
    "log_normaliser",
    "rows_per_chunk",
    "survey",
]


# Each class's few most_confident samples, found while the set goes by: what is held never grows with the set.


PENDING = 32_768
"""Samples accumulated between two sorts: sorting after every chunk would cost more than the chunk."""


class MostConfident:
    """The `capacity` samples of highest confidence of every class, the earlier on a tie.

    >>> import numpy as np
    >>> most_confident = MostConfident(Home.of(np.zeros(1)), capacity=1)
    >>> most_confident.offer(np.array([0, 1, 1]), np.array([-0.5, -0.2, -0.1]), np.array([0.7, 0.8, 0.9]), first_row=0)
    >>> most_confident.offer(np.array([0]), np.array([-0.5]), np.array([0.7]), first_row=3)
    >>> classes, ranks, rows, confidences, probabilities = most_confident.chosen()
    >>> classes, rows
    (array([0, 1]), array([0, 2]))
    """

    def __init__(self, home: Home, capacity: int) -> None:
        self._home = home
        self._capacity = capacity
        self._parts: list[tuple[Array, ...]] = []
        self._pending = 0

    def offer(self, classes: Array, confidences: Array, probabilities: Array, first_row: int) -> None:
        """Consecutive samples from row `first_row` on: pseudo-class, confidence and own-class probability (n,)."""
        xp = self._home.xp
        n = int(classes.shape[0])
        rows = xp.arange(first_row, first_row + n, dtype=xp.int64, device=self._home.device)
        self._parts.append((classes, rows, confidences, probabilities))
        self._pending += n
        if self._pending >= PENDING:
            self.chosen()

    def chosen(self) -> tuple[Array, Array, Array, Array, Array]:
        """(class, rank in its class, row, confidence, probability) of every sample held, by class and rank."""
        xp = self._home.xp
        classes, rows, confidences, probabilities = (
            xp.concat(list(part), axis=0) for part in zip(*self._parts, strict=True)
        )
        # By class, then most_confident first, then first come: both sorts are stable, and what is held came earlier.
        order = xp.argsort(-quantize(confidences), stable=True)
        order = order[xp.argsort(classes[order], stable=True)]
        by_class = classes[order]
        ranks = xp.arange(by_class.shape[0], device=self._home.device) - xp.searchsorted(by_class, by_class)
        keep = ranks < self._capacity
        order, ranks = order[keep], ranks[keep]
        held = (classes[order], rows[order], confidences[order], probabilities[order])
        self._parts, self._pending = [held], 0
        return held[0], ranks, *held[1:]


# The first pass over a whole set: soft sums of all samples, and the most confident samples per pseudo-class.


CHUNK_ROWS = 2048
"""Rows worked on together where a method says nothing else."""


class SoftSums(NamedTuple):
    """Sums over samples x_i with posteriors y_i."""

    weighted_sum: Array
    """sum_i y_ik x_i, (K, d)."""
    weight: Array
    """sum_i y_ik, (K,)."""

    def add(self, features: Array, posterior: Array) -> SoftSums:
        """The sums with these samples, weighted by `posterior` (n, K), added."""
        weight = self.weight + namespace(posterior).sum(posterior, axis=0)
        return SoftSums(self.weighted_sum + posterior.T @ features, weight)


def survey(
    rows: Rows,
    chunk_rows: int,
    prototypes: Array,
    logit_scale: float,
    bank: KnowledgeBank,
    log_normalisers: Array | None = None,
) -> SoftSums:
    """Fill `bank` with the L most confident samples per pseudo-class (the earlier on a tie); return all soft sums.

    `log_normalisers` (N,), where given, receives log sum_k exp(s t_k.x) of every row.
    """
    home = Home.of(prototypes)
    xp = home.xp
    classes = prototypes.shape[0]
    scaled = (logit_scale * prototypes).T
    weighted_sum, weight = xp.zeros_like(prototypes), home.zeros((classes,))
    most_confident = MostConfident(home, bank.capacity)
    # The same arrays serve every chunk: fresh ones would cost as much as the arithmetic done in them.
    most = min(chunk_rows, len(rows))
    space, more_space, feature_space = (home.zeros((most, width)) for width in (classes, classes, prototypes.shape[1]))
    numbers = xp.arange(most, device=home.device)
    for block, x in rows.blocks(chunk_rows, reuse=True):
        n = x.shape[0]
        logits = xp.matmul(x, scaled, out=space[:n])
        top = xp.max(logits, axis=1)
        logits -= top[:, None]
        # The rule of `zero_shot.pseudo_class`: the first of the classes within TIE of the largest.
        pseudo = xp.argmax((logits >= -TIE).view(xp.int8), axis=1)
        y = xp.exp(logits, out=more_space[:n])
        # y stays a constant a row away from the posterior: scaling the d columns of x is cheaper than its K.
        total = xp.sum(y, axis=1)
        log_total, share = xp.log(total), 1.0 / total
        weighted_sum += y.T @ xp.multiply(x, share[:, None], out=feature_space[:n])
        weight += share @ y
        if log_normalisers is not None:
            log_normalisers[block] = top + log_total
        confidences = xp.vecdot(y, logits) * share - log_total
        own = y[numbers[:n], pseudo] * share
        most_confident.offer(pseudo, confidences, own, block.start)
    del space, more_space, feature_space, logits, x, y
    chosen, ranks, at, confidences, probabilities = most_confident.chosen()
    bank.fill(rows.take(at), to_numpy(chosen), to_numpy(ranks), probabilities, confidences)
    return SoftSums(weighted_sum, weight)


# The fused prediction (Eq. 8) as one linear classifier: logits, discriminant and bank term in one product.


WORK_NUMBERS = 50_000
"""Cosines held at once at least, however few rows are scored together."""

CACHED_BOUNDS = 1_000_000
"""Bounds on cosines held at once on a processor: few enough to be in its caches still when they are looked at."""


def log_normaliser(logits: Array) -> Array:
    """log sum_k exp(logit_k) of every row (n, K); the logits are overwritten."""
    xp = namespace(logits)
    top = xp.max(logits, axis=1)
    logits -= top[:, None]
    return top + xp.log(xp.sum(xp.exp(logits, out=logits), axis=1))


@dataclass(frozen=True)
class Fusion:
    """log y_k + g_k + r_k = x.directions_k + offsets_k - log_normaliser(x), plus what negative cosines add to r_k.

    With no evidence at all it is log y: the zero-shot classifier unchanged.
    """

    directions: Array
    offsets: Array
    sketch: Sketch | None

    @classmethod
    def of(cls, scaled_prototypes: Array, gaussians: Gaussians, evidence: Evidence, rule: AdaptSettings) -> Fusion:
        """From s t_k (K, d) and what has been learned."""
        if evidence.size == 0:
            return cls(scaled_prototypes, namespace(scaled_prototypes).zeros_like(gaussians.offsets), None)
        directions = scaled_prototypes + gaussians.directions
        sketch = None
        if rule.use_bank_term and isinstance(evidence, KnowledgeBank):
            directions += evidence.sums()[0]
            sketch = Sketch.of(evidence.features, evidence.weights)
        return cls(directions, gaussians.offsets, sketch)

    def scores(self, x: Array, log_normalisers: Array, evidence: Evidence, out: Array) -> Array:
        """Scores (n, K), in `out`, of the rows `x`, whose zero-shot log-normalisers (n,) are known."""
        scores = namespace(x).matmul(x, self.directions.T, out=out)
        scores += self.offsets
        scores -= log_normalisers[:, None]
        if self.sketch is not None and isinstance(evidence, KnowledgeBank):
            # Bounds in float32, or exact cosines in three arrays of float64, take about the space of the scores.
            n, classes = scores.shape
            numbers = max(n * classes // 4, WORK_NUMBERS)
            bounds = min(4 * numbers, CACHED_BOUNDS) if str(Home.of(x).device) == "cpu" else 4 * numbers
            at_once = max(1, bounds // (classes * evidence.weights.shape[1]))
            for rows, doubtful in self.sketch.doubtful(x, at_once):
                mended = scores[rows]
                add_excess(mended, x[rows], evidence.features, evidence.weights, doubtful, numbers)
                scores[rows] = mended
        return scores


# How many rows are worked on together, so that a call keeps to its memory budget.


FEWEST_ROWS = 16
"""However small the budget: fewer rows make the products slow and save next to nothing."""

CACHED_NUMBERS = 3_000_000
"""Numbers in one chunk's features and scores on a processor: what stays in its caches is worked on twice as fast."""

NORMALISERS_SHARE = 8
"""Log-normalisers are kept from one pass to the next where they take at most one part in this of the budget."""

CANDIDATE_BYTES = 100
"""For each of the samples accumulated between two sorts: class, row, confidence and probability, and the sort's own."""


def rows_per_chunk(memory_budget: int, rows: int, prototypes: Array, evidence: Evidence) -> int:
    """Of `rows` rows of d features and K scores, how many the budget (bytes) has room for beside what is learned."""
    classes, d = prototypes.shape
    slots = evidence.weights.shape[1] if isinstance(evidence, KnowledgeBank) else 0
    # The bank, and a copy of the half of it that may be summed exactly; prototypes, means, sums; scatter and precision.
    learned = 8 * (classes * slots * d * 3 // 2 + 7 * classes * d + 3 * d * d)
    kept = 8 * rows if keeps_normalisers(memory_budget, rows) else 0
    candidates = CANDIDATE_BYTES * min(rows, PENDING + classes * slots)
    # Two arrays of scores (logits and posteriors, or scores and bounds) and a byte or two a score; features twice.
    # With the bank off the posteriors come from `zero_shot`, which makes a new array at every step.
    row = 8 * ((2 if slots else 4) * classes + 2 * d) + 2 * classes + 64
    room = (memory_budget - learned - kept - candidates) // row
    if str(Home.of(prototypes).device) == "cpu":
        room = min(room, CACHED_NUMBERS // (classes + d))
    return max(FEWEST_ROWS, room)


def keeps_normalisers(memory_budget: int, rows: int) -> bool:
    """Whether 8 bytes for every row of the set fit."""
    return 8 * rows <= memory_budget // NORMALISERS_SHARE


class Learned(NamedTuple):
    """What one set taught, and the classifier that follows from it."""

    evidence: Evidence
    soft_sums: SoftSums
    gaussians: Gaussians
    fusion: Fusion


class TransductiveADAPT(ADAPT):
    """Adapts to a whole set at once: class means from every sample's soft posterior and from banks of the surest, one
    shared covariance from the banks, then one closed-form prediction of every sample.

    `adapt` starts afresh from the set it is given; `predict` then scores other features with what that set taught.

    Examples
    --------
    >>> import numpy as np
    >>> from zeroshift import TransductiveADAPT
    >>> features = np.eye(3, 8)[[0, 1, 2, 1]]
    >>> TransductiveADAPT(np.eye(3, 8), logit_scale=10.0).adapt(features).argmax(axis=1)
    array([0, 1, 2, 1])

    Notes
    -----
    *Backpropagation-Free Test-Time Adaptation via Probabilistic Gaussian Alignment*, NeurIPS 2025. A class so
    improbable that its soft weight underflows to zero keeps its prototype as mean. The authors' released code computes
    something else: see `ReleasedTransductiveADAPT`.

    `adapt_views` averages the most confident views of each image once, as `OnlineADAPT` does, and keeps them, (N, d) in
    float64, beside what `memory_budget` is for.
    """

    name = "adapt_transductive"
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
        "Rows processed together, instead of as many as the budget allows. It changes the answer only by rounding.",
        default=None,
        reload=True,
    )

    _soft_sums: SoftSums = state(lambda self: self._initial_sums(), saved_as="")

    def _initial_sums(self) -> SoftSums:
        """Soft sums before any sample: zero, or those of the labelled samples if no bank holds them."""
        if self.bank_size == 0:
            return SoftSums(*self._initial_evidence().sums())
        home = Home.of(self.prototypes)
        return SoftSums(home.zeros((self.n_classes, self.dimension)), home.zeros((self.n_classes,)))

    def _chunk_rows(self, rows: Rows, evidence: Evidence) -> int:
        """Rows processed together."""
        return self.chunk_size or rows_per_chunk(self.memory_budget, len(rows), self.prototypes, evidence)

    def _derive(self) -> None:
        self._learned = self._estimate(self._evidence, self._soft_sums)

    def _estimate(self, evidence: Evidence, soft_sums: SoftSums) -> Learned:
        """Eq. 12: every sample and, once more, those in the bank; with the bank off, the samples only."""
        weighted_sum, weight = soft_sums
        if isinstance(evidence, KnowledgeBank):
            bank_sum, bank_weight = evidence.sums()
            weighted_sum, weight = weighted_sum + bank_sum, weight + bank_weight
        prototypes = self._wide_prototypes
        gaussians = estimate(evidence, (weighted_sum, weight), prototypes, self._rule)
        fusion = Fusion.of(self.logit_scale * prototypes, gaussians, evidence, self._rule)
        return Learned(evidence, soft_sums, gaussians, fusion)

    @property
    def _gaussians(self) -> Gaussians:
        return self._learned.gaussians

    def _adapt_scores(self, rows: Rows) -> Iterator[tuple[slice, Array]]:
        learned, log_normalisers = self._first_pass(rows)
        scores = None
        if self.iterations > 1:
            learned, scores = self._iterate(rows, learned, log_normalisers)
        with self._learning(len(rows)):
            self._evidence, self._soft_sums, self._learned, self.n_seen = *learned[:2], learned, 0
        if scores is None:
            yield from self._scores(rows, learned, log_normalisers)
        else:
            yield slice(0, len(rows)), scores

    def _adapt_view_scores(self, images: Rows) -> Iterator[tuple[slice, Array]]:
        return self._adapt_scores(self._averaged(images).materialize())

    def _first_pass(self, rows: Rows) -> tuple[Learned, Array | None]:
        """What the rows say about means and covariance, starting from nothing learned. Also returns the rows' zero-shot
        log-normalisers, which save the second pass a product, if the budget has room for them."""
        evidence = self._initial_evidence()
        chunk_rows = self._chunk_rows(rows, evidence)
        if not isinstance(evidence, KnowledgeBank):
            for _, features in rows.blocks(chunk_rows):
                evidence.offer(features, log_posterior(features, self._wide_prototypes, self.logit_scale))
            return self._estimate(evidence, SoftSums(*evidence.sums())), None
        home = Home.of(self.prototypes)
        kept = home.zeros((len(rows),)) if keeps_normalisers(self.memory_budget, len(rows)) else None
        soft_sums = survey(rows, chunk_rows, self._wide_prototypes, self.logit_scale, evidence, kept)
        return self._estimate(evidence, soft_sums), kept

    def _scores(self, rows: Rows, learned: Learned, log_normalisers: Array | None) -> Iterator[tuple[slice, Array]]:
        """Second pass: one product scores every row, or two if its log-normaliser is not known."""
        home = Home.of(self.prototypes)
        scaled = (self.logit_scale * self._wide_prototypes).T
        chunk_rows = self._chunk_rows(rows, learned.evidence)
        # One array serves every chunk: a fresh one costs as much as the arithmetic done in it. Whoever takes a chunk's
        # scores is done with them before asking for the next.
        space = home.zeros((min(chunk_rows, len(rows)), self.n_classes))
        for chunk, x in rows.blocks(chunk_rows, reuse=True):
            scores = space[: x.shape[0]]
            if log_normalisers is None:
                known = log_normaliser(home.xp.matmul(x, scaled, out=scores))
            else:
                known = log_normalisers[chunk]
            yield chunk, learned.fusion.scores(x, known, learned.evidence, scores)

    def _iterate(self, rows: Rows, learned: Learned, log_normalisers: Array | None) -> tuple[Learned, Array]:
        """Table 8: means from the predictions instead of the zero-shot posteriors, and predictions again."""
        home = Home.of(self.prototypes)
        xp = home.xp
        scores = home.zeros((len(rows), self.n_classes))
        for iteration in range(self.iterations):
            moved = 0.0
            soft_sums = self._initial_sums()
            for chunk, new in self._scores(rows, learned, log_normalisers):
                before = softmax(scores[chunk])
                scores[chunk] = new
                z = softmax(new)
                moved = max(moved, float(xp.max(xp.abs(z - before))))
                soft_sums = soft_sums.add(rows[chunk], z)
            if (iteration > 0 and moved < CONVERGED) or iteration == self.iterations - 1:
                break
            learned = self._estimate(learned.evidence, soft_sums)
        return learned, scores

    def _predict_blocks(self, rows: Rows) -> Iterator[tuple[slice, Array]]:
        return self._scores(rows, self._learned, None)

    def _predict_scores(self, features: Array) -> Array:
        logits = features @ (self.logit_scale * self._wide_prototypes).T
        return self._learned.fusion.scores(features, log_normaliser(logits), self._evidence, logits)

    def _probabilities(self, scores: Array) -> Array:
        # In place: the scores are this call's own; another array costs a share of the budget and a pass over memory.
        xp = Home.of(scores).xp
        scores -= xp.max(scores, axis=1)[:, None]
        xp.exp(scores, out=scores)
        scores /= xp.sum(scores, axis=1)[:, None]
        return scores
