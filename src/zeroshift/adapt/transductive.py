"""Transductive ADAPT (Algorithm 2): the whole set at once, in two passes over row chunks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from zeroshift.adapt.bank import KnowledgeBank
from zeroshift.adapt.base import ADAPT
from zeroshift.adapt.engines.direct import CONVERGED
from zeroshift.adapt.fusion import Fusion, log_normaliser
from zeroshift.adapt.gaussians import Gaussians, estimate
from zeroshift.adapt.soft_counts import SoftCounts
from zeroshift.adapt.survey import SoftSums, added, survey
from zeroshift.adapt.work_space import keeps_normalisers, rows_at_once
from zeroshift.arrays import Array, Home, Rows
from zeroshift.parameters import Constraint, Number, Optional
from zeroshift.zero_shot import log_posterior, softmax

__all__ = ["TransductiveADAPT"]


class TransductiveADAPT(ADAPT):
    """Adapts to a whole set at once: class means from every sample's soft posterior and from banks of the surest, one
    shared covariance from the banks, then one closed-form prediction of every sample.

    `adapt` starts afresh from the set it is given; `predict` then scores other features with what that set taught.

    Parameters
    ----------
    prototypes, logit_scale, alpha, beta, use_bank_term, update_mean, update_covariance, covariance, support, view_ratio
        As for `OnlineADAPT`.
    bank_size : int
        Surest samples kept a class (L), 6 in the paper. 0 turns the bank off.
    iterations : int
        1 is the closed form. More alternate predictions and means (Table 8); this holds one (N, K) array of scores.
    memory_budget : int
        Bytes of work space `adapt` and `predict` may use beside the features and the answer, 256 MB by default: the
        rows are worked on in chunks that fit. The bank and the statistics come first, and making them takes up to four
        times the bank's own size; where that exceeds the budget the chunks are small, not refused. Features may be
        memory-mapped and larger than memory.
    chunk_size : int, optional
        Rows worked on together, in place of as many as the budget allows. Neither changes the answer beyond rounding.

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

    `adapt_views` averages each image's surest views as `OnlineADAPT` does, once, and holds the averages, (N, d) in
    float64, beside what `memory_budget` is for.
    """

    name = "adapt_transductive"
    protocol = "transductive"
    state_size = "K L d + d^2"
    complexity = "O(N K d + d^3)"
    reload_parameters = ("memory_budget", "chunk_size")
    constraints: ClassVar[Mapping[str, Constraint]] = {
        **ADAPT.constraints,
        "memory_budget": Number(low=1, integer=True),
        "chunk_size": Optional(Number(low=1, integer=True)),
    }

    memory_budget: int
    chunk_size: int | None

    def __init__(
        self,
        prototypes: Array,
        *,
        logit_scale: float = 100.0,
        bank_size: int = 6,
        alpha: float = 0.9,
        beta: float | None = None,
        use_bank_term: bool = True,
        update_mean: bool = True,
        update_covariance: bool = True,
        covariance: str = "shared",
        iterations: int = 1,
        support: tuple[Array, Array] | None = None,
        memory_budget: int = 256_000_000,
        chunk_size: int | None = None,
        view_ratio: float = 0.1,
    ) -> None:
        super().__init__(
            prototypes,
            logit_scale=logit_scale,
            bank_size=bank_size,
            alpha=alpha,
            beta=beta,
            use_bank_term=use_bank_term,
            update_mean=update_mean,
            update_covariance=update_covariance,
            covariance=covariance,
            iterations=iterations,
            support=support,
            memory_budget=memory_budget,
            chunk_size=chunk_size,
            view_ratio=view_ratio,
        )

    def _begin(self) -> None:
        self._evidence = self._fresh_evidence()
        self._soft_sums = self._no_sums()
        self._estimate()

    def _no_sums(self) -> SoftSums:
        """Soft sums before any sample: nothing, or the labelled samples where no bank holds them."""
        if isinstance(self._evidence, SoftCounts):
            return self._fresh_evidence().sums()
        home = Home.of(self.prototypes)
        return home.zeros((self.n_classes, self.dimension)), home.zeros((self.n_classes,))

    def _chunk_rows(self, rows: Rows) -> int:
        """Rows worked on together."""
        return self.chunk_size or rows_at_once(self.memory_budget, len(rows), self.prototypes, self._evidence)

    def _estimate(self) -> None:
        """Eq. 12: every sample and, once more, the banked ones; with the bank off, the samples alone."""
        weighted_sum, weight = self._soft_sums
        if isinstance(self._evidence, KnowledgeBank):
            bank_sum, bank_weight = self._evidence.sums()
            weighted_sum, weight = weighted_sum + bank_sum, weight + bank_weight
        prototypes = self._wide_prototypes
        self._estimated = estimate(self._evidence, (weighted_sum, weight), prototypes, self._rule)
        self._fusion = Fusion.of(self.logit_scale * prototypes, self._estimated, self._evidence, self._rule)

    @property
    def _gaussians(self) -> Gaussians:
        return self._estimated

    def _adapt_scores(self, rows: Rows) -> Iterator[tuple[slice, Array]]:
        self.reset()
        try:
            log_normalisers = self._look_at(rows)
            self._estimate()
            scores = self._iterate(rows, log_normalisers) if self.iterations > 1 else None
        except BaseException:
            # Interrupted, or out of memory: half a set teaches nothing.
            self.reset()
            raise
        self.n_seen = len(rows)
        if scores is None:
            yield from self._scores(rows, log_normalisers)
        else:
            yield slice(0, len(rows)), scores

    def _adapt_view_scores(self, images: Rows) -> Iterator[tuple[slice, Array]]:
        return self._adapt_scores(self._averaged(images).held())

    def _look_at(self, rows: Rows) -> Array | None:
        """First pass: what the means and the covariance are estimated from. Answers the rows' zero-shot
        log-normalisers, which spare the second pass a product, where the budget has room for them."""
        if not isinstance(self._evidence, KnowledgeBank):
            for _, features in rows.blocks(self._chunk_rows(rows)):
                self._evidence.offer(features, log_posterior(features, self._wide_prototypes, self.logit_scale))
            self._soft_sums = self._evidence.sums()
            return None
        home = Home.of(self.prototypes)
        kept = home.zeros((len(rows),)) if keeps_normalisers(self.memory_budget, len(rows)) else None
        prototypes, chunk_rows = self._wide_prototypes, self._chunk_rows(rows)
        self._soft_sums = survey(rows, chunk_rows, prototypes, self.logit_scale, self._evidence, kept)
        return kept

    def _scores(self, rows: Rows, log_normalisers: Array | None) -> Iterator[tuple[slice, Array]]:
        """Second pass: every row scored by one product, or by two where its log-normaliser is not known."""
        home = Home.of(self.prototypes)
        scaled = (self.logit_scale * self._wide_prototypes).T
        chunk_rows = self._chunk_rows(rows)
        # One array serves every chunk: a fresh one costs as much as the arithmetic done in it. Whoever takes a chunk's
        # scores is done with them before asking for the next.
        space = home.zeros((min(chunk_rows, len(rows)), self.n_classes))
        for chunk, x in rows.blocks(chunk_rows, reuse=True):
            scores = space[: x.shape[0]]
            if log_normalisers is None:
                known = log_normaliser(home.xp.matmul(x, scaled, out=scores))
            else:
                known = log_normalisers[chunk]
            yield chunk, self._fusion.scores(x, known, self._evidence, scores)

    def _iterate(self, rows: Rows, log_normalisers: Array | None) -> Array:
        """Table 8: means from the predictions in place of the zero-shot posteriors, and predictions again."""
        home = Home.of(self.prototypes)
        xp = home.xp
        scores = home.zeros((len(rows), self.n_classes))
        for iteration in range(self.iterations):
            moved = 0.0
            soft_sums = self._no_sums()
            for chunk, new in self._scores(rows, log_normalisers):
                before = softmax(scores[chunk])
                scores[chunk] = new
                z = softmax(new)
                moved = max(moved, float(xp.max(xp.abs(z - before))))
                soft_sums = added(soft_sums, rows[chunk], z)
            if (iteration > 0 and moved < CONVERGED) or iteration == self.iterations - 1:
                break
            self._soft_sums = soft_sums
            self._estimate()
        return scores

    def _predict_blocks(self, rows: Rows) -> Iterator[tuple[slice, Array]]:
        return self._scores(rows, None)

    def _predict_scores(self, features: Array) -> Array:
        logits = features @ (self.logit_scale * self._wide_prototypes).T
        return self._fusion.scores(features, log_normaliser(logits), self._evidence, logits)

    def _probabilities(self, scores: Array) -> Array:
        # In place: the scores are this call's own; another array costs a share of the budget and a pass over memory.
        xp = Home.of(scores).xp
        scores -= xp.max(scores, axis=1)[:, None]
        xp.exp(scores, out=scores)
        scores /= xp.sum(scores, axis=1)[:, None]
        return scores

    def _state(self) -> tuple[dict[str, Array], dict[str, Any]]:
        weighted_sum, weight = self._soft_sums
        return {"weighted_sum": weighted_sum, "weight": weight, **self._evidence.arrays()}, {}

    def _restore(self, arrays: Mapping[str, Array], values: Mapping[str, Any]) -> None:
        self._evidence.restore(arrays)
        self._soft_sums = (arrays["weighted_sum"], arrays["weight"])
        self._estimate()
