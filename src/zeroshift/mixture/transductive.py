"""The transductive mixture: rounds over the whole set that predict every sample and count it by its prediction."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import reduce

from zeroshift.arrays import Array, Backend, Rows, check_matrix
from zeroshift.interrupts import Watch
from zeroshift.mixture.base import AnchoredMixture
from zeroshift.mixture.statistics import Mixture, normalize_scores
from zeroshift.mixture.sums import Sums
from zeroshift.parameters import Number, Optional, parameter, state
from zeroshift.state_checks import check_range

__all__ = ["TransductiveAnchoredMixture"]

MIN_ROWS = 16
"""Rows processed together even with a tiny budget: fewer make the products slow and save almost nothing."""

CACHED_NUMBERS = 1_000_000
"""Numbers in the features and scores of one chunk on a CPU, chosen so that they stay in its caches."""

ARRAYS_PER_ROW = 10
"""Arrays of K numbers in memory per row: posteriors, distances and temporary values. Measured: up to nine."""


class TransductiveAnchoredMixture(AnchoredMixture):
    """Adapts to a whole set: rounds of estimating a Gaussian mixture, with means anchored at the text, from the
    posterior of every sample, and of predicting every sample from it.

    `adapt` replaces what was learned before; `predict` scores other features with what was learned from the last set.
    For a set stored in several places, see `survey` and `merge`, or `adapt_shards`.

    Examples
    --------
    >>> import numpy as np
    >>> from zeroshift import TransductiveAnchoredMixture
    >>> features = np.eye(3, 8)[[0, 1, 2, 1] * 3]
    >>> TransductiveAnchoredMixture(np.eye(3, 8), logit_scale=10.0).adapt(features).argmax(axis=1)[:4]
    array([0, 1, 2, 1])

    Notes
    -----
    Our own method; docs/anchored-mixture.md derives it. The last round sets the temperature of the answers, with means
    that leave out each sample's own contribution.
    """

    name = "anchored_mixture_transductive"
    protocol = "transductive"
    complexity = "O(R (N K d + K d^2 + d^3)), R = rounds"

    rounds: int = parameter(
        Number(low=1, integer=True), "How many times every sample is predicted and counted.", default=10
    )
    memory_budget: int = parameter(
        Number(low=1, integer=True),
        "Bytes of working memory in addition to the features and the answer, 256 MB by default. Rows are processed in "
        "chunks that fit. Features may be memory-mapped and larger than memory.",
        default=256_000_000,
        reload=True,
    )
    chunk_size: int | None = parameter(
        Optional(Number(low=1, integer=True)),
        "Rows processed together, instead of as many as the budget allows. It changes the answer only by rounding.",
        default=None,
        reload=True,
    )

    few_classes_weight: float = parameter(
        Number(low=0, high=1),
        "Share of its weight that the Gaussian log-likelihood has in a set with few of the classes.",
        default=0.5,
    )
    proportions: float = parameter(
        Number(low=0),
        "Weight of the proportions of the classes in a set with few of them; none if all classes occur.",
        default=1.0,
    )

    ordered_weight, relative_samples = 1.0, 1.0  # a set has no order

    _sums: Sums = state(
        lambda self: self._zero_sums(),
        saved_as="",
        merge="sum",
        check=lambda self, sums: check_range("the sum of posteriors", round(sums.n_samples, 3), *2 * [self.n_seen]),
    )

    def _current_sums(self) -> Sums:
        return self._sums

    def _adapt_scores(self, rows: Rows) -> Iterator[tuple[slice, Array]]:
        sums = self._count(rows, self._estimate(self._zero_sums()), last_round=self.rounds == 1)
        mixture = self._estimate(sums)
        for number in range(2, self.rounds + 1):
            if mixture is None:
                break  # too few samples, in every round
            sums = self._count_again(rows, sums, mixture, last_round=number == self.rounds)
            mixture = self._estimate(sums)
        with self._learning(len(rows), replace=True):
            self._sums, self._mixture = sums, mixture
        yield from self._predict_blocks(rows)

    def _adapt_view_scores(self, images: Rows) -> Iterator[tuple[slice, Array]]:
        return self._adapt_scores(self._averaged(images).materialize())

    def survey(self, features: Array, *, second: Array | None = None) -> TransductiveAnchoredMixture:
        """One round over a part of a set: a method that has learned only these rows, with the present statistics.

        The surveys of all parts, merged, are the statistics of the next round; `adapt` does this `rounds` times,
        starting from a method that has learned nothing.
        """
        if second is None:
            rows = self._rows(check_matrix("features", features, columns=self.dimension, classes=self.n_classes))
        else:
            rows = self._both_rows(features, second)[0]
        return self._turns.run(False, self._survey, rows)

    def _survey(self, rows: Rows) -> TransductiveAnchoredMixture:
        self._check_usable()
        self._check_second(rows[:1].shape[1], self._sums.second_dimension)
        part = self.clone()
        with Backend.of(self.prototypes).computing(), part._learning(len(rows)):
            part._sums = self._count(rows, self._mixture, last_round=True)
            part._derive()
        return part

    def adapt_shards(self, shards: Iterable[Array]) -> list[Array]:
        """`adapt` for a set that is stored in several arrays: the answers for each, as if they were one."""
        if not isinstance(shards, Iterable):
            raise TypeError(f"shards must be a list of arrays of features; got {type(shards).__name__}. Fix: [shards].")
        checked = [
            check_matrix(f"shards[{i}]", shard, columns=self.dimension, classes=self.n_classes)
            for i, shard in enumerate(shards)
        ]
        if not checked:
            raise ValueError("shards is empty; at least one array of features is needed.")
        return self._turns.run(True, self._adapt_shards, checked)

    def _adapt_shards(self, shards: Sequence[Array]) -> list[Array]:
        self._check_usable()
        whole = self.clone()
        for _ in range(self.rounds):
            whole = reduce(TransductiveAnchoredMixture.merge, [whole.survey(shard) for shard in shards])
        with Watch(), self._learning(whole.n_seen, replace=True):
            self._sums, self._mixture = whole._sums, whole._mixture
        return [self.predict(shard) for shard in shards]

    def _count(self, rows: Rows, mixture: Mixture | None, *, last_round: bool) -> Sums:
        """The sums over the rows, with the mixture's posteriors as labels, or zero-shot's if there is none yet."""
        xp = Backend.of(self.prototypes).xp
        sums = self._zero_sums()
        for _, both in rows.blocks(self._chunk_rows, reuse=True):
            x, second = self._parts(both)
            if second is not None and not sums.second_dimension:
                sums = self._zero_sums(second.shape[1])
            log_y = self._log_posterior(x)
            y = q = xp.exp(log_y)
            if mixture is not None:
                q, sums = self._soft_labels(x, second, log_y, mixture, sums, with_confidences=last_round)
            sums = sums.add_samples(x, q, second).add_posteriors(y, second)
        return sums

    def _count_again(self, rows: Rows, sums: Sums, mixture: Mixture, *, last_round: bool) -> Sums:
        """The sums over the rows with new labels; what does not depend on labels is kept from the earlier round."""
        sums = sums.without_labels()
        head = None
        if not last_round and mixture.second is None:
            head = mixture.linear_head(self._wide_prototypes, self.logit_scale)
        for _, both in rows.blocks(self._chunk_rows, reuse=True):
            x, second = self._parts(both)
            if head is not None:
                q = head.posteriors(x)
            else:
                q, sums = self._soft_labels(
                    x, second, self._log_posterior(x), mixture, sums, with_confidences=last_round
                )
            sums = sums.add_labels(x, q, second)
        return sums

    def _soft_labels(
        self,
        x: Array,
        second: Array | None,
        log_y: Array,
        mixture: Mixture,
        sums: Sums,
        *,
        with_confidences: bool,
    ) -> tuple[Array, Sums]:
        """Posteriors to count by, and the sums with what the last round needs for the temperature and, with a second
        encoder, every round for its weight."""
        distances = mixture.distances(x, second)
        scores = mixture.log_likelihoods(distances)
        scores += log_y
        answer, posteriors = normalize_scores(scores)
        if not with_confidences and distances.second is None:
            return posteriors, sums
        others = mixture.leave_one_out(distances, posteriors)
        if others.second is not None:
            sums = sums.add_agreement(*mixture.single_posteriors(log_y, others))
        if with_confidences:
            sums = sums.add_confidences(mixture.confidences(log_y, others, answer))
        return posteriors, sums

    @property
    def _chunk_rows(self) -> int:
        """Rows processed together."""
        if self.chunk_size:
            return self.chunk_size
        classes, d = self.n_classes, self.dimension
        bytes_for_statistics = 8 * (8 * classes * d + 6 * d * d)
        rows = (self.memory_budget - bytes_for_statistics) // (8 * (ARRAYS_PER_ROW * classes + 3 * d))
        if not Backend.of(self.prototypes).on_gpu:
            rows = min(rows, CACHED_NUMBERS // (classes + d))
        return max(MIN_ROWS, rows)

    @property
    def _predict_rows(self) -> int:
        return self._chunk_rows
