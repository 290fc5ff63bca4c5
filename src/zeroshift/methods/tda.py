"""TDA: a training-free dynamic adapter with two caches."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np

from zeroshift.arrays import Array, Backend, Rows, to_numpy
from zeroshift.frozen import Expression
from zeroshift.method import ViewMethod
from zeroshift.methods._shared.low_entropy_memory import LowEntropyMemory, MemoryInsertion, MemoryPlan, check_memory
from zeroshift.methods._shared.similarity import (
    SHARPNESS,
    exponential_kernel,
    frozen_votes,
    inner_products,
    single_sample_stats,
)
from zeroshift.parameters import Flag, Number, Pair, parameter, state
from zeroshift.state_checks import check_lengths
from zeroshift.views import average_views
from zeroshift.zero_shot import confidence, log_softmax, logits, pseudo_class

__all__ = ["TDA", "VotingCache"]

BLOCK_ROWS = 256

SHARE = Number(0, 1)


class ZeroShotScores(NamedTuple):
    """Samples and their zero-shot predictions: (n, d), (n, K), (n, K) and (n,)."""

    features: Array
    logits: Array
    probabilities: Array
    entropies: np.ndarray


class TDA(ViewMethod):
    """A positive cache stores the most confident samples of each class and votes for that class. A negative cache
    stores samples of intermediate entropy and votes against the classes they were undecided between. Votes are weighted
    by an exponential kernel of the cosine and added to the zero-shot logits.

    Examples
    --------
    >>> import numpy as np
    >>> from zeroshift.methods import TDA
    >>> tda = TDA(np.eye(2), logit_scale=5.0)
    >>> tda.adapt_scores(np.array([[0.8, 0.6], [0.6, 0.8]])).round(6)
    array([[6.      , 3.      ],
           [4.637462, 6.      ]])

    Notes
    -----
    Karmanov et al., *Efficient Test-Time Adaptation of Vision-Language Models*, CVPR 2024. A sample enters the caches
    before it is predicted, so a new entry votes for itself. The defaults are the authors' for ImageNet; they set
    `positive_alpha` and `positive_beta` by hand for each data set (`TDA.preset("dtd")`), with no procedure stated.
    Their code divides entropies in nats by log2 K, so that the relative entropy is at most 0.69: see `released`.

    Entropies and zero-shot logits are computed in float64, caches and votes in the precision of the prototypes. With
    several views per image, the mean of the views kept, not scaled to unit length, is stored and predicted. With fewer
    than ten views the authors' code keeps none and returns NaN; here the most confident view is kept.
    """

    name = "tda"
    headline = "Caches of samples vote for and against classes"
    protocol = "online"
    state_size = "K (M+ + M-) d + K^2 M-"
    complexity = "O(K (M+ + M-) d + K^2 M-) per sample"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        dataset: {"positive_alpha": alpha, "positive_beta": beta}
        for dataset, alpha, beta in (
            ("imagenet", 2.0, 5.0),
            ("imagenet_a", 2.0, 5.0),
            ("imagenetv2", 1.0, 8.0),
            ("imagenet_r", 1.0, 8.0),
            ("imagenet_sketch", 2.363, 7.45),
            ("caltech101", 5.0, 5.0),
            ("dtd", 2.0, 3.0),
            ("ucf101", 3.0, 8.0),
            ("eurosat", 4.0, 8.0),
            ("fgvc_aircraft", 2.0, 2.0),
            ("food101", 1.0, 1.0),
            ("oxford_flowers", 1.0, 5.0),
            ("oxford_pets", 2.0, 7.0),
            ("stanford_cars", 1.0, 7.0),
            ("sun397", 2.0, 3.0),
        )
    }

    logit_scale: float = parameter(Number(low=0, above=True), "Scale of the logits; 100 for CLIP.", default=100.0)
    positive_capacity: int = parameter(
        Number(low=0, integer=True),
        "Entries per class in the positive cache; 0 disables it.",
        default=3,
        sizes_state=True,
    )
    positive_alpha: float = parameter(Number(low=0), "Weight of the positive cache's votes.", default=2.0)
    positive_beta: float = parameter(
        SHARPNESS, "Sharpness of the positive cache's kernel exp(-beta (1 - cosine)).", default=5.0
    )
    negative_capacity: int = parameter(
        Number(low=0, integer=True),
        "Entries per class in the negative cache; 0 disables it.",
        default=2,
        sizes_state=True,
    )
    negative_alpha: float = parameter(Number(low=0), "Weight of the negative cache's votes.", default=0.117)
    negative_beta: float = parameter(
        SHARPNESS, "Sharpness of the negative cache's kernel exp(-beta (1 - cosine)).", default=1.0
    )
    entropy_window: tuple[float, float] = parameter(
        Pair(SHARE, SHARE, ("low", "high")),
        "A sample may enter the negative cache if its entropy, divided by the largest possible, is strictly between "
        "these bounds.",
        default=(0.2, 0.5),
    )
    probability_window: tuple[float, float] = parameter(
        Pair(SHARE, SHARE, ("low", "high")),
        "A negative entry votes against the classes whose probabilities were strictly between these bounds.",
        default=(0.03, 1.0),
    )
    view_ratio: float = parameter(
        Number(0, 1, above=True),
        "Fraction of the views that `adapt_views` keeps, those with the lowest entropy; at least one view.",
        default=0.1,
    )
    released: bool = parameter(
        Flag(),
        "Divide entropies by log2 K, as the authors' code does, and not by ln K, their largest value.",
        default=False,
    )

    _positive: VotingCache = state(
        lambda self: self._empty_cache(self.positive_capacity, self.positive_beta),
        check=lambda self, cache: check_memory(cache.memory, self.n_seen),
    )
    _negative: VotingCache = state(
        lambda self: self._empty_cache(self.negative_capacity, self.negative_beta, masked=True),
        check=lambda self, cache: check_memory(cache.memory, self.n_seen),
    )

    def _validate(self) -> None:
        for name in ("entropy_window", "probability_window"):
            low, high = getattr(self, name)
            if low > high:
                raise ValueError(f"{name} must be a pair (low, high); got {(low, high)}. Fix: {(high, low)}.")

    def _prepare(self) -> None:
        backend = Backend.of(self.prototypes)
        self._text = backend.asarray(self.prototypes, backend.xp.float64)

    def _empty_cache(self, capacity: int, beta: float, *, masked: bool = False) -> VotingCache:
        backend, dtype = Backend.of(self.prototypes), self.prototypes.dtype
        return VotingCache(backend, self.n_classes, capacity, self.dimension, beta=beta, dtype=dtype, masked=masked)

    @property
    def positive_counts(self) -> Array:
        """Entries per class in the positive cache, (K,)."""
        return self._counts(self._positive)

    @property
    def negative_counts(self) -> Array:
        """Entries per class in the negative cache, (K,)."""
        return self._counts(self._negative)

    def _counts(self, cache: VotingCache) -> Array:
        backend = Backend.of(self.prototypes)
        return backend.xp.asarray(cache.memory.counts, device=backend.device)

    def _adapt_scores(self, rows: Rows) -> Iterator[tuple[slice, Array]]:
        for block, features in rows.blocks(BLOCK_ROWS):
            if features.shape[0] == 1:
                yield block, self._adapt_one(features)
                continue
            scores = logits(features, self._text, self.logit_scale)
            log_y = log_softmax(scores)
            probabilities = Backend.of(scores).xp.exp(log_y)
            samples = ZeroShotScores(features, scores, probabilities, -to_numpy(confidence(log_y)))
            yield block, self._adapt_block(samples)

    def _adapt_one(self, features: Array) -> Array:
        """A single sample enters the caches before it is predicted: learn, then predict."""
        one = single_sample_stats(features, self._text, self.logit_scale)
        keys = self._to_cache_dtype(features)
        self._learn_one(keys[0], one.k, one.entropy, one.probabilities)
        return self._add_votes(one.logits, keys)

    def _learn_one(self, key: Array, k: int, entropy: float, probabilities: Array) -> None:
        """Learn from one sample (d,) of pseudo-class k, with its zero-shot entropy and probabilities (K,)."""
        positive = self._positive.memory.plan_one(k, entropy)
        rank = float(self._negative_ranks(entropy))
        negative = self._negative.memory.plan_one(k, rank) if self._is_uncertain(entropy) else None
        mask = None if negative is None else self._mask(probabilities)
        with self._learning():
            if positive is not None:
                self._positive.insert(positive, key)
            if negative is not None:
                self._negative.insert(negative, key, mask)

    def _negative_ranks(self, entropies: Any) -> Any:
        """The negative cache keeps the samples of each class for which these are smallest."""
        return entropies

    def _adapt_view(self, views: Array) -> Array:
        one = average_views(views[None, ...], self._text, self.logit_scale, ratio=self.view_ratio)
        sample = ZeroShotScores(one.features, one.logits, one.probabilities, to_numpy(one.entropy))
        return self._adapt_block(sample)[0]

    def _adapt_block(self, samples: ZeroShotScores) -> Array:
        """Scores (n, K) of samples in order, each with the caches as they are at its turn; then store the samples."""
        keys = self._to_cache_dtype(samples.features)
        classes = to_numpy(pseudo_class(samples.logits))
        masks = self._mask(samples.probabilities)
        positive = self._positive.memory.plan(classes, samples.entropies)
        uncertain = self._is_uncertain(samples.entropies)
        ranks = np.where(uncertain, self._negative_ranks(samples.entropies), np.inf)
        negative = self._negative.memory.plan(classes, ranks)
        scores = (
            samples.logits
            + self.positive_alpha * self._positive.votes_during(positive, keys)
            - self.negative_alpha * self._negative.votes_during(negative, keys, masks)
        )
        with self._learning(len(keys)):
            self._positive.apply(positive, keys)
            self._negative.apply(negative, keys, masks)
        return scores

    def _to_cache_dtype(self, features: Array) -> Array:
        """A copy in the precision of the caches."""
        return Backend.of(self.prototypes).xp.astype(features, self.prototypes.dtype, copy=True)

    def _is_uncertain(self, entropies: Any) -> Any:
        low, high = self.entropy_window
        largest = math.log2(self.n_classes) if self.released else math.log(self.n_classes)
        return (low * largest < entropies) & (entropies < high * largest)

    def _mask(self, probabilities: Array) -> Array:
        low, high = self.probability_window
        backend = Backend.of(self.prototypes)
        return backend.asarray((low < probabilities) & (probabilities < high), self.prototypes.dtype)

    def _predict_scores(self, features: Array) -> Array:
        keys = Backend.of(self.prototypes).asarray(features, self.prototypes.dtype)
        return self._add_votes(logits(features, self._text, self.logit_scale), keys)

    def _frozen(self, x: Expression) -> Expression:
        scores = x.linear(self.logit_scale * self._text)
        if self._positive.n_entries:
            scores = scores + self._positive.frozen(x, self.positive_alpha)
        if self._negative.n_entries:
            scores = scores - self._negative.frozen(x, self.negative_alpha)
        return scores.softmax()

    def _add_votes(self, scores: Array, keys: Array) -> Array:
        scores = scores + self.positive_alpha * self._positive.votes(keys)
        return scores - self.negative_alpha * self._negative.votes(keys)

    @property
    def _predict_rows(self) -> int:
        return BLOCK_ROWS


class VotingCache:
    """At most `capacity` entries per class, those with the lowest entropy. An entry votes for the class it was stored
    under or, in a `masked` cache, for every class of the mask stored with it.

    Entries are stored in the order in which slots are first used, so that the cost of votes depends on the number of
    entries and not on the capacity. Row 0 is not an entry: empty slots point to it.

    >>> cache = VotingCache(Backend.of(np.eye(2)), classes=2, capacity=1, width=2, beta=5.0)
    >>> x = np.array([[0.8, 0.6], [0.6, 0.8]])
    >>> plan = cache.memory.plan(np.array([0, 1]), np.array([0.5, 0.5]))
    >>> cache.votes_during(plan, x).round(6)
    array([[1.      , 0.      ],
           [0.818731, 1.      ]])
    """

    def __init__(
        self,
        backend: Backend,
        classes: int,
        capacity: int,
        width: int,
        *,
        beta: float,
        masked: bool = False,
        dtype: Any = None,
    ) -> None:
        self._backend, self._beta = backend, beta
        self.memory = LowEntropyMemory(backend, classes, capacity, 0)  # without features, which are stored here
        self.entries = backend.zeros((1 + classes * capacity, width), dtype)
        self.masks = backend.zeros((1 + classes * capacity, classes), dtype) if masked else None
        self._ones = backend.zeros((capacity,), dtype) + 1.0
        self._set_rows(np.zeros(classes * capacity, dtype=np.int64))

    def _set_rows(self, rows: np.ndarray) -> None:
        """Set the row of each slot, and derive the number of rows in use."""
        self._rows, self._rows_on_backend = rows, self._backend.index(rows)
        self._used = 1 + int(rows.max(initial=0))

    def votes(self, features: Array, *, without: Sequence[int] = ()) -> Array:
        """Votes (n, K) of the present entries, except for those in the slots `without`."""
        weights = self._weights(features, self.entries[: self._used])
        weights[:, 0] = 0.0
        if len(without):
            weights[:, self._backend.index(self._rows[list(without)])] = 0.0
        return self._sum_by_class(weights)

    @property
    def n_entries(self) -> int:
        return self._used - 1

    def frozen(self, x: Expression, alpha: float) -> Expression:
        """`alpha` times the votes as an expression."""
        entries = to_numpy(self.entries).astype(np.float64)
        if self.masks is not None:
            kernels = (x @ (self._beta * entries[1 : self._used]).T - self._beta).exp()
            return kernels @ (alpha * to_numpy(self.masks)[1 : self._used])
        rows = self._rows.reshape(self.memory.entropies.shape)
        return frozen_votes(x, entries[rows], alpha * (rows > 0), self._beta)

    def insert(self, insertion: MemoryInsertion, feature: Array, mask: Array | None = None) -> None:
        """Store one sample (d,), with its mask (K,), in the slot from `memory.plan_one`."""
        slot = insertion.k * self.memory.capacity + insertion.slot
        rows = self._rows_with([slot])
        row = int(rows[slot])
        self.entries[row] = feature
        if self.masks is not None:
            self.masks[row] = mask
        self.memory.record(insertion)
        self._set_rows(rows)

    def votes_during(self, plan: MemoryPlan, features: Array, masks: Array | None = None) -> Array:
        """Votes (n, K) of the entries present at each sample's turn; `masks` (n, K) belong to the planned samples."""
        replaced_at = np.zeros(self._used, dtype=np.int64)
        replaced_at[self._rows] = plan.old_replaced_at
        present = self._backend.index(replaced_at > np.arange(plan.n_rows)[:, None])
        old = self._sum_by_class(self._weights(features, self.entries[: self._used]) * present)
        if not len(plan.rows):
            return old
        rows = self._backend.index(plan.rows)
        weights = self._weights(features, features[rows]) * self._backend.index(plan.is_present())
        if masks is not None:
            return old + weights @ masks[rows]
        one_hot = np.zeros((len(plan.rows), old.shape[1]))
        one_hot[np.arange(len(one_hot)), plan.slots // self.memory.capacity] = 1.0
        return old + weights @ self._backend.asarray(one_hot, weights.dtype)

    def _weights(self, features: Array, entries: Array) -> Array:
        return exponential_kernel(inner_products(features, entries), self._beta)

    def _sum_by_class(self, weights: Array) -> Array:
        """Votes (n, K) of entries with the weights (n, rows in use)."""
        if self.masks is not None:
            return weights @ self.masks[: self._used]
        by_slot = self._backend.xp.take(weights, self._rows_on_backend, axis=1)
        # A product with ones: a sum over so short an axis takes several times as long.
        return by_slot.reshape(weights.shape[0], *self.memory.entropies.shape) @ self._ones

    def _rows_with(self, slots: list[int]) -> np.ndarray:
        """The rows of slots once these are in use: unused ones get the next free rows."""
        rows, free = self._rows.copy(), self._used
        for slot in slots:
            if not rows[slot]:
                rows[slot], free = free, free + 1
        return rows

    def apply(self, plan: MemoryPlan, features: Array, masks: Array | None = None) -> None:
        """Store the planned samples that are still present at the end."""
        kept = plan.kept()
        if len(kept):
            slots = plan.slots[kept]
            rows = self._rows_with(slots.tolist())
            to, source = self._backend.index(rows[slots]), self._backend.index(plan.rows[kept])
            self.entries[to] = features[source]
            if self.masks is not None and masks is not None:
                self.masks[to] = masks[source]
            self._set_rows(rows)
        self.memory.record_plan(plan)

    def state(self) -> tuple[dict[str, Array], dict[str, Any]]:
        masks = {} if self.masks is None else {"masks": self.masks}
        memory = {name: array for name, array in self.memory.state()[0].items() if name != "features"}
        return {"entries": self.entries, "rows": self._rows_on_backend, **memory, **masks}, {}

    def restore(self, arrays: Mapping[str, Array], values: Mapping[str, Any]) -> None:
        for name in ("entries",) if self.masks is None else ("entries", "masks"):
            saved, own = tuple(arrays[name].shape), tuple(getattr(self, name).shape)
            if saved != own:
                raise ValueError(f"{name} has shape {saved}, not {own}")
        rows = to_numpy(arrays["rows"]).astype(np.int64)
        used = np.sort(rows[rows != 0])
        if rows.shape != self._rows.shape or not np.array_equal(used, 1 + np.arange(len(used))):
            raise ValueError("the rows of the entries are not numbered 1, 2, ...")
        self.memory.restore({**arrays, "features": self.memory.features}, values)
        if not np.array_equal(np.isfinite(self.memory.entropies).reshape(-1), rows != 0):
            raise ValueError("some entries have no entropy, or some entropies no entry")
        check_lengths("entries", arrays["entries"])
        self.entries, self.masks = arrays["entries"], arrays.get("masks")
        self._set_rows(rows)
