"""The online mixture: every sample is predicted from those before it, and is then counted by its soft label."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, Self

import numpy as np

from zeroshift.arrays import Array, Backend, Rows, to_numpy
from zeroshift.frozen import Expression
from zeroshift.mixture.base import AnchoredMixture
from zeroshift.mixture.statistics import FULL_ORDER, normalize_scores
from zeroshift.mixture.sums import Sums
from zeroshift.mixture.temperature import N_TEMPERATURES
from zeroshift.mixture.transductive import TransductiveAnchoredMixture
from zeroshift.ordered import OrderedBlock, OrderedMethod
from zeroshift.parameters import Choice, Number, Optional, parameter, state
from zeroshift.state_checks import check_range
from zeroshift.sticky import LateAnswers, StickyClasses
from zeroshift.sticky_blocks import observe_together
from zeroshift.zero_shot import log_softmax

__all__ = ["OnlineAnchoredMixture"]

MAX_PENDING = 256
"""Largest number of samples counted together, which bounds the memory for pending samples."""

CHECKED_UPDATES = 16
"""Updates of the statistics from one check of float32 products to the next."""

MANY_ROWS = 16
"""Rows from which the order is estimated on the GPU."""

SMALLEST_STAY = 1e-3
"""A smaller probability of staying counts as zero: then no recursion over the samples is needed."""


class Pending(NamedTuple):
    """Memory for samples that were predicted but are not in the sums yet, one row per sample."""

    features: Array
    """Of both encoders, if there is a second one."""
    posteriors: Array
    soft_labels: Array
    confidences: Array
    first_posteriors: Array
    """From the first encoder alone; no columns without a second encoder."""
    second_posteriors: Array
    """From the second encoder's Gaussians alone; zero while there are none."""

    def first(self, rows: int) -> Pending:
        return Pending(*(array[:rows] for array in self))


class MixtureStep(NamedTuple):
    """What `plan` computes: the answers, and what `learn` keeps."""

    pending: Pending
    chain: StickyClasses
    late: LateAnswers
    scores: Array
    """(n, K)."""
    block: OrderedBlock
    final: np.ndarray
    """Late answers that are final now."""


class StreamSums:
    """Everything learned from a stream: sums up to the last update of the statistics, and the samples since."""

    def __init__(self, sums: Sums, rows: int, half_life: float | None) -> None:
        self.sums = sums
        self.n_counted = 0
        """Samples in the sums."""
        self.stay: float | None = None
        """The probability of staying when the statistics were estimated from the sums; None if they were not."""
        self.half_life = half_life
        self.rows = rows
        self.pending = self._empty_pending()
        self.n_pending = 0

    def _empty_pending(self) -> Pending:
        backend = Backend.of(self.sums.counts)
        (classes, d), e = self.sums.weighted.shape, self.sums.second_dimension
        both = classes if e else 0
        widths = (d + e, classes, classes, 1 + N_TEMPERATURES, both, both)
        return Pending(*(backend.zeros((self.rows, width)) for width in widths))

    def begin(self, sums: Sums) -> None:
        """Start with other empty sums, for a second encoder."""
        self.sums = sums
        self.pending = self._empty_pending()

    def add(self, block: Pending) -> None:
        """Keep samples for the next update."""
        rows = slice(self.n_pending, self.n_pending + block.features.shape[0])
        for array, new in zip(self.pending, block, strict=True):
            array[rows] = new
        self.n_pending = rows.stop

    def all_sums(self) -> Sums:
        """The sums including pending samples."""
        if not self.n_pending:
            return self.sums
        x, y, soft_labels, confidences, first, second = self.pending.first(self.n_pending)
        sums = self.sums
        if self.half_life is not None:
            sums = sums.faded(0.5 ** (self.n_pending / self.half_life))
        d = sums.total.shape[0]
        other = x[:, d:] if sums.second_dimension else None
        sums = sums.add_samples(x[:, :d], soft_labels, other).add_posteriors(y, other).add_confidences(confidences)
        judged = other is not None and bool(Backend.of(y).xp.any(second > 0))
        return sums.add_agreement(first, second) if judged else sums

    def count_pending(self) -> None:
        """Move the pending samples into the sums."""
        if self.n_pending:
            self.sums, self.n_counted, self.n_pending = self.all_sums(), self.n_counted + self.n_pending, 0
            self.stay = None

    def merged(self, other: StreamSums) -> StreamSums:
        """The sums of both streams."""
        both = StreamSums(self.all_sums() + other.all_sums(), self.rows, self.half_life)
        both.n_counted = self.n_counted + self.n_pending + other.n_counted + other.n_pending
        return both

    def state(self) -> tuple[dict[str, Array], dict[str, Any]]:
        pending = self.pending.first(self.n_pending)._asdict()
        arrays = {f"pending_{name}": array for name, array in pending.items()}
        return {**self.sums.arrays(), **arrays}, {"n_counted": self.n_counted, "stay_of_sums": self.stay}

    def restore(self, arrays: Mapping[str, Array], values: Mapping[str, Any]) -> StreamSums:
        restored = StreamSums(self.sums.restore(arrays, values), self.rows, self.half_life)
        if type(values["n_counted"]) is not int or values["n_counted"] < 0:
            raise ValueError(f"n_counted is {values['n_counted']!r}; it must be a number of samples")
        restored.n_counted = values["n_counted"]
        if "order_of_sums" not in values:  # of earlier versions, which kept less than the probability of staying
            restored.stay = float(values["stay_of_sums"])
            check_range("stay_of_sums", restored.stay, 0, 1)
        restored.n_pending = int(arrays["pending_features"].shape[0])
        if restored.n_pending > self.rows:
            raise ValueError(f"pending_features has {restored.n_pending} rows, more than are ever kept")
        for name, array in restored.pending.first(restored.n_pending)._asdict().items():
            saved = arrays[f"pending_{name}"]
            if tuple(saved.shape) != tuple(array.shape):
                raise ValueError(f"pending_{name} has shape {tuple(saved.shape)}, not {tuple(array.shape)}")
            if name != "features":
                check_range(f"pending_{name}", saved, 0, 1)
            array[:] = saved
        return restored


class OnlineAnchoredMixture(AnchoredMixture, OrderedMethod):
    """Predicts each sample from all before it, then counts it by its soft label: a Gaussian mixture with means anchored
    at the text and one shrunk covariance, which is trusted as far as the samples seen allow.

    The class of a sample often is that of the sample before: the probability of that is estimated without labels, and
    answers use it. In random order it is zero. `adapt_late` and `smooth` also use the samples after each one.

    Examples
    --------
    >>> import numpy as np
    >>> from zeroshift import OnlineAnchoredMixture
    >>> features = np.eye(3, 8)[[0, 1, 2, 1] * 4]
    >>> method = OnlineAnchoredMixture(np.eye(3, 8), logit_scale=10.0)
    >>> method.adapt(features).argmax(axis=1)[:4]
    array([0, 1, 2, 1])

    Notes
    -----
    Our own method; docs/anchored-mixture.md derives it and says where it is worse than others. The state is sums:
    `merge` adds those of another stream. `save` also keeps the samples since the last update of the statistics, so that
    a loaded method continues bit for bit.
    """

    name = "anchored_mixture_online"
    headline = "Gaussian mixture anchored at the prototypes"
    protocol = "online"
    scored = "before"
    state_size = "K d + d^2"
    complexity = "O(K d + d^2) per sample; an update of the statistics O(K d^2 + d^3), after 1/32 of the samples seen"

    order: str = parameter(
        Choice(("auto", "none")),
        '"auto" estimates from the zero-shot posteriors whether neighbouring samples share their class, and uses it; '
        '"none" treats every stream as if it were in random order.',
        default="auto",
    )
    relative_samples: float = parameter(
        Number(low=0, above=True),
        "In an ordered stream, samples of a class at which its own distance and the typical one count the same.",
        default=32.0,
    )
    balance: float = parameter(
        Number(low=0, high=1),
        "In an ordered stream, zero-shot posteriors are divided by this power of their mean over the stream: classes "
        "that zero-shot favours throughout would otherwise win more and more as neighbours add up.",
        default=0.75,
    )
    half_life: float | None = parameter(
        Optional(Number(low=16)),
        "Number of samples after which a sample counts half, for domains that change; None never forgets.",
        default=None,
    )
    staleness: float = parameter(
        Number(low=0, high=1),
        "The statistics are updated when this share of the samples seen (of K if fewer were seen) has arrived since "
        "the last update. With 1/32 and fewer than 64 classes that is every sample up to the 64th and every eighth at "
        "the 256th; with 1000 classes every 31st up to the 1024th. At least every 256 samples. 0 updates "
        "at every sample.",
        default=0.03125,
    )

    _trust = 0.95
    few_classes_weight, proportions = 1.0, 0.0  # a stream may bring other classes later, so none is made improbable

    _stream: StreamSums = state(
        lambda self: StreamSums(self._zero_sums(), MAX_PENDING if self.staleness else 1, self.half_life),
        saved_as="",
        merge=StreamSums.merged,
    )

    @classmethod
    def from_set(cls, mixture: TransductiveAnchoredMixture, **parameters: Any) -> Self:
        """A stream that continues from what a transductive mixture has learned from a set, which counts like the same
        number of samples in random order. The parameters that both have are those of `mixture`, unless they are given.

        >>> import numpy as np
        >>> from zeroshift import TransductiveAnchoredMixture
        >>> mixture = TransductiveAnchoredMixture(np.eye(3, 8), logit_scale=10.0)
        >>> answer = mixture.adapt(np.eye(3, 8)[[0, 1, 2, 1] * 4])
        >>> OnlineAnchoredMixture.from_set(mixture)
        OnlineAnchoredMixture(<prototypes 3 x 8, numpy>, logit_scale=10.0, n_seen=16)
        """
        if not isinstance(mixture, TransductiveAnchoredMixture):
            raise TypeError(
                f"mixture must be a TransductiveAnchoredMixture; got {type(mixture).__name__}. "
                "Fix: an online method continues by itself, and others cannot."
            )
        shared = {name: value for name, value in mixture.get_params().items() if name in cls.declared_parameters}
        stream = cls(**{**shared, **parameters})
        states, n_seen = mixture._in_turn(False, mixture._copied_states)
        with Backend.of(stream.prototypes).computing():
            stream._stream.begin(states["_sums"])
            stream._stream.n_counted, stream._stream.stay, stream._n_seen = n_seen, None, n_seen
            stream._derive()
        return stream

    def sums(self) -> dict[str, np.ndarray]:
        """Everything learned, as sums over the samples by name; differences of two such sums may be added to the sums
        of another stream with `add_sums`. For `zeroshift.distributed.Replica`."""
        return self._in_turn(False, self._copied_sums)

    def _copied_sums(self) -> dict[str, np.ndarray]:
        self._check_usable()
        if self.half_life is not None:
            raise ValueError(
                f"sums of streams that forget cannot be exchanged; got half_life={self.half_life!r}. Fix: None."
            )
        return {name: np.array(to_numpy(array)) for name, array in self._stream.all_sums().arrays().items()}

    def add_sums(self, sums: Mapping[str, np.ndarray], n_samples: int) -> None:
        """Learn what another stream learned from `n_samples` samples. Unlike `merge`, it keeps this stream's own order:
        which class came last, and how often classes stay."""
        self._in_turn(True, self._add_sums, sums, n_samples)

    def _add_sums(self, sums: Mapping[str, np.ndarray], n_samples: int) -> None:
        self._check_usable()
        backend = Backend.of(self.prototypes)
        with backend.computing():
            added = Sums(**{name: backend.asarray(array, backend.xp.float64) for name, array in sums.items()})
            total = self._stream.all_sums() + added
            with self._learning(n_samples):
                self._stream.count_pending()
                self._stream.sums, self._stream.stay = total, None
                self._stream.n_counted += n_samples
                self._derive()

    def _current_sums(self) -> Sums:
        return self._stream.sums

    def _all_sums(self) -> Sums:
        return self._stream.all_sums()

    def _derive(self) -> None:
        if self._stream.stay is None:
            self._stream.stay = self.stay
        super()._derive()

    @property
    def _stay(self) -> float:
        return self._stream.stay or 0.0

    @property
    def stay(self) -> float:
        """The estimated probability that the next sample has the class of the one before, as the filter uses it."""
        stay = self._chain.stay
        return stay if stay >= SMALLEST_STAY else 0.0

    def _update_interval(self) -> int:
        """Samples from the last update of the statistics to the next.

        Fewer samples than classes say too little to be worth an update each, so they count as at least K. Samples that
        are forgotten do not count.
        """
        n = self._stream.n_counted if self.half_life is None else int(self._stream.sums.n_samples)
        return max(1, min(int(self.staleness * max(n, self.n_classes)), MAX_PENDING))

    def _adapt_scores(self, rows: Rows) -> Iterator[tuple[slice, Array]]:
        self._check_none_due("adapt")
        for block, step in self._adapt_blocks(rows, late=False, ordered=False):
            yield block, step.scores

    def adapt_late(self, features: Array, *, second: Array | None = None) -> Array:
        """Learn from `features` and return the answers that are final now, (m, K): those of samples with `lag` samples
        after them, in order. The others come with later calls, or with `finish`; m may be 0. `second` is as in `adapt`.
        """
        if second is None:
            return super().adapt_late(features)
        return self._adapt_late(*self._both_rows(features, second, empty=True)[:2])

    def smooth(self, features: Array, *, second: Array | None = None) -> Array:
        """Learn from a recording, features (N, d) in order, and answer every sample from all of them: (N, K).

        One probability of staying, that at the end of the recording, is used for all samples. `second` is as in
        `adapt`.
        """
        if second is None:
            return super().smooth(features)
        return self._smooth(*self._both_rows(features, second, empty=True)[:2])

    def _ordered_blocks(self, rows: Rows, *, late: bool) -> Iterator[tuple[OrderedBlock, np.ndarray]]:
        for _, step in self._adapt_blocks(rows, late=late, ordered=True):
            yield step.block, step.final

    def _adapt_blocks(self, rows: Rows, *, late: bool, ordered: bool) -> Iterator[tuple[slice, MixtureStep]]:
        """Predict samples with the present statistics, which contain none of them; then count them."""
        start = 0
        while start < len(rows):
            left = self._update_interval() - self._stream.n_pending
            stop = min(len(rows), start + left)
            step = self.plan(rows[start:stop], late=late, ordered=ordered)
            with self._learning(stop - start):
                self.learn(step)
            yield slice(start, stop), step
            start = stop

    def plan(self, both: Array, *, late: bool = False, ordered: bool = False) -> MixtureStep:
        """The answers to samples with the present statistics, and what is kept of them."""
        self._check_second(both.shape[1], self._stream.sums.second_dimension)
        scorer, mixture = self._scorer, self._mixture
        both = self._in_product_precision(both)
        x, second = self._parts(both)
        logits, distances = scorer.logits_and_distances(x, second)
        log_y, y = normalize_scores(logits)
        log_likelihoods = None if mixture is None or distances is None else mixture.log_likelihoods(distances)
        filtered = _Filtered.of(
            self._chain,
            log_y,
            y,
            log_likelihoods,
            auto=self.order == "auto",
            balance=self.balance,
            temperature=self.temperature,
            ordered=ordered,
        )
        answer, posteriors = filtered.answer, filtered.posteriors
        scores, soft_labels, confidences = answer, posteriors, 0.0
        first: Array | float = 0.0
        alone: Array | float = 0.0
        if mixture is not None and distances is not None:
            share = 1.0 - (1.0 - mixture.reliability) * (1.0 - 0.5 * mixture.stream.order)
            soft_labels = share * posteriors + (1.0 - share) * y
            scores = mixture.temperature * answer
            if distances.second is not None:
                first, alone = mixture.single_posteriors(log_y, distances)
            confidences = mixture.confidences(filtered.log_prior, distances, answer)
        final, still_due = np.zeros((0, self.n_classes)), self._late
        if late:
            block = filtered.block
            final, still_due = self._late.add(block.filtered, block.balanced, block.stay)
            final = self._final(final, block.stay)  # with the temperature in use when they become final
        pending = Pending(both, y, soft_labels, confidences, first, alone)
        return MixtureStep(pending, filtered.chain, still_due, scores, filtered.block, final)

    def _in_product_precision(self, both: Array) -> Array:
        """The samples in the precision of products with them, which is checked from time to time."""
        scorer = self._scorer
        both = self._for_products(both, scorer, scorer.temperature)
        if self._until_check <= 0 and both.dtype != Backend.of(both).xp.float64:
            self._until_check = CHECKED_UPDATES
            if not self._float32_passes(both, scorer):
                both = self._for_products(both, scorer, scorer.temperature)
        return both

    def learn(self, step: MixtureStep) -> None:
        """Keep the samples of a plan; update the statistics when enough have arrived."""
        second_dimension = step.pending.features.shape[1] - self.dimension
        if self._stream.sums.second_dimension != second_dimension:
            self._stream.begin(self._zero_sums(second_dimension))
        self._stream.add(step.pending)
        self._chain, self._late = step.chain, step.late
        if self._stream.n_pending >= self._update_interval():
            self._stream.count_pending()
            self._derive()
            self._until_check -= 1

    def _predict_scores(self, features: Array) -> Array:
        scores, offsets = super()._predict_scores(features), self._order_offsets()
        backend = Backend.of(features)
        return scores if offsets is None else scores - backend.asarray(offsets, backend.xp.float64)

    def _frozen(self, x: Expression) -> Expression:
        scores, offsets = self._scorer.frozen(x), self._order_offsets()
        return (scores if offsets is None else scores - offsets).softmax()

    def _order_offsets(self) -> np.ndarray | None:
        """(K,) what is subtracted from the scores of a sample that comes without the one before it: what zero-shot
        favours throughout an ordered stream. None in random order."""
        order = float(_order_of(np.array(self.stay)))
        if not order or self._mixture is None:
            return None
        means = self._chain.evidence / self._chain.evidence.sum()
        return self._mixture.temperature * self.balance * order * np.log(means)

    def _adapt_view_scores(self, images: Rows) -> Iterator[tuple[slice, Array]]:
        return self._adapt_scores(self._averaged(images))

    def _final(self, log_posteriors: np.ndarray, stay: np.ndarray, temperature: np.ndarray | None = None) -> np.ndarray:
        exponents: Any = self.temperature if temperature is None else temperature[:, None]
        return np.exp(log_softmax(exponents * log_posteriors))

    def _rebalanced(self, start: StickyClasses, evidence: np.ndarray, stay: np.ndarray) -> np.ndarray:
        means = self._chain.evidence / self._chain.evidence.sum()
        return evidence - (self.balance * _order_of(stay))[:, None] * np.log(means)

    def _restore(self, arrays: Mapping[str, Array], values: Mapping[str, Any]) -> None:
        super()._restore(arrays, values)
        if self.order == "none":
            self._chain.check(0)
        counted, pending = self._stream.n_counted, self._stream.n_pending
        if counted + pending != self.n_seen or pending > self._update_interval():
            raise ValueError(f"{counted} samples in the sums and {pending} pending do not make n_seen = {self.n_seen}")
        least = counted if self.half_life is None else 0
        check_range("the sum of posteriors", self._stream.sums.n_samples, least, counted)


class _Filtered(NamedTuple):
    """A block of samples whose posteriors use the samples before them."""

    answer: Array
    """(n, K) log-posteriors."""
    posteriors: Array
    log_prior: Array
    """(n, K) log-posteriors without the Gaussians, up to a constant per row."""
    chain: StickyClasses
    """After the block."""
    block: OrderedBlock

    @classmethod
    def of(
        cls,
        chain: StickyClasses,
        log_y: Array,
        y: Array,
        log_likelihoods: Array | None,
        *,
        auto: bool,
        balance: float,
        temperature: float,
        ordered: bool,
    ) -> _Filtered:
        """From zero-shot posteriors and what the Gaussians say; without `auto` as if in random order. The block is
        filled only if it is needed, with `ordered`."""
        backend, before, stay = Backend.of(log_y), chain, np.zeros(log_y.shape[0])
        if auto:
            together = observe_together(chain, y) if backend.on_gpu and y.shape[0] >= MANY_ROWS else None
            stay, chain = together or chain.observe(to_numpy(y))
            stay[stay < SMALLEST_STAY] = 0.0
        if not stay.any() and not ordered:
            scores = backend.copy(log_y) if log_likelihoods is None else log_y + log_likelihoods
            answer, posteriors = normalize_scores(scores)
            if auto:
                chain = chain.in_random_order(chain.posteriors - before.posteriors, backend.copy(posteriors[-1]))
            empty = np.zeros((0, log_y.shape[1]))
            return cls(answer, posteriors, log_y, chain, OrderedBlock(empty, empty, empty, stay, 1.0))
        host = to_numpy(log_y)
        balanced, chain = chain.balance(host, balance * _order_of(stay))
        evidence = host
        if log_likelihoods is not None:
            likelihoods = to_numpy(log_likelihoods)
            evidence, balanced = evidence + likelihoods, balanced + likelihoods
        filtered, chain = chain.filter(balanced, stay)
        answer = backend.asarray(filtered, backend.xp.float64)
        log_prior = answer if log_likelihoods is None else answer - log_likelihoods
        block = OrderedBlock(evidence, balanced, filtered, stay, temperature)
        return cls(answer, backend.xp.exp(answer), log_prior, chain if auto else before, block)


def _order_of(stay: np.ndarray) -> np.ndarray:
    """How much of an order there is, from 0 to 1, given the probability of staying."""
    return np.where(stay < SMALLEST_STAY, 0.0, np.minimum(1.0, stay / FULL_ORDER))
