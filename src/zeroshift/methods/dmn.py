"""DMN: dual memory networks, the training-free zero-shot variant."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from zeroshift.arrays import Array, Home, Rows, to_numpy
from zeroshift.methods._shared.low_entropy_memory import Insertion, InsertionPlan, LowEntropyMemory
from zeroshift.methods._shared.similarity import exponential_kernel, single_sample_stats
from zeroshift.methods._shared.whole_steps import WholeViews
from zeroshift.parameters import Number, parameter
from zeroshift.views import average_views
from zeroshift.zero_shot import confidence, log_softmax, logits, pseudo_class, softmax

__all__ = ["DMN", "KernelBank", "Reading"]


# Class vectors read from a memory through a kernel around each new sample: DMN's dynamic memory.


TINY = 1e-24


class Reading(NamedTuple):
    """What following a plan gives: the answer, and what `KernelBank.keep` needs to carry the plan out."""

    cosines: Array
    """Of every sample with the class vectors at its turn, (n, K)."""
    grams: dict[int, Array]
    """Inner products of the banks that changed."""


class KernelBank:
    """A bank B_k of each class's prototype and its `capacity` samples of lowest entropy.

    A sample x reads the class vector v_k = sum_j w_j B_kj / |sum_j w_j B_kj| with w_j = exp(-beta (1 - B_kj.x)). It is
    never formed: v_k.x needs the cosines B_kj.x, and the length w'Gw with the bank's inner products G, of which an
    entry changes one row and one column. Empty slots are zero and add to neither.

    Slots come first in the layout, so that those in use by any class lie together.

    >>> bank = KernelBank(np.eye(2), capacity=2, beta=5.5)
    >>> x = np.array([[0.8, 0.6]])
    >>> bank.follow(bank.memory.plan(np.array([0]), np.array([0.58])), x).cosines.round(6)
    array([[0.987789, 0.6     ]])
    """

    def __init__(self, prototypes: Array, capacity: int, beta: float) -> None:
        home = Home.of(prototypes)
        classes, width = prototypes.shape
        self._home, self._beta = home, beta
        self.memory = LowEntropyMemory(home, classes, capacity, 0)  # who is held; the features are here
        self.entries = home.zeros((1 + capacity, classes, width), prototypes.dtype)
        self.entries[0] = prototypes
        self.grams = home.zeros((classes, 1 + capacity, 1 + capacity), prototypes.dtype)
        self.grams[:, 0, 0] = home.xp.sum(prototypes * prototypes, axis=1)
        self._used = 1

    def read(self, features: Array) -> Array:
        """Cosines (n, K) of features with the class vectors they read."""
        cosines = self._entry_cosines(features, self._used)
        weights = exponential_kernel(cosines, self._beta)
        return self._class_cosines(cosines, weights, self._squares(weights, self._used))

    def enter(self, entry: Insertion, feature: Array) -> None:
        """Store one sample (d,) where `memory.entry` says. Doing it again changes nothing."""
        k, slot = entry.k, 1 + entry.slot
        used = max(self._used, 1 + slot)
        self.entries[slot, k] = feature
        self.grams[k, slot, :used] = self.grams[k, :used, slot] = self.entries[:used, k] @ feature
        self.memory.record(entry)
        self._used = used

    def follow(self, plan: InsertionPlan, features: Array) -> Reading:
        """The same while the bank changes as planned; nothing is stored yet."""
        used = _used(plan.entropies)
        cosines = self._entry_cosines(features, used)
        places = [(slot // self.memory.capacity, 1 + slot % self.memory.capacity) for slot in plan.slots.tolist()]
        entering = list(zip(plan.rows.tolist(), places, strict=True))
        among = features @ features.T
        for row, (k, slot) in entering:
            cosines[slot, k, row:] = among[row, row:]  # from its turn on, until another takes the slot
        weights = exponential_kernel(cosines, self._beta)
        squares = self._squares(weights, used)
        grams: dict[int, Array] = {}
        for row, (k, slot) in entering:
            if k not in grams:
                grams[k] = self._home.copy(self.grams[k, :used, :used])
            gram = grams[k]
            gram[slot, :] = gram[:, slot] = cosines[:, k, row]
            w = weights[:, k, row:]
            squares[k, row:] = self._home.xp.sum(w * (gram @ w), axis=0)
        return Reading(self._class_cosines(cosines, weights, squares), grams)

    def keep(self, plan: InsertionPlan, features: Array, reading: Reading) -> None:
        """Carry out a plan that was followed. Doing it again changes nothing."""
        staying = plan.kept()
        if len(staying):
            classes, slots = np.divmod(plan.slots[staying], self.memory.capacity)
            rows = self._home.index(plan.rows[staying])
            self.entries[self._home.index(1 + slots), self._home.index(classes)] = features[rows]
        for k, gram in reading.grams.items():
            self.grams[k, : gram.shape[0], : gram.shape[0]] = gram
        self.memory.record_plan(plan)
        self._used = _used(plan.entropies)

    def _entry_cosines(self, features: Array, used: int) -> Array:
        """(used, K, n)."""
        _, classes, width = self.entries.shape
        held = self.entries[:used].reshape(used * classes, width)
        n = features.shape[0]
        # For one sample with a vector: on a GPU several times as fast.
        return (held @ features.T if n > 1 else held @ features[0]).reshape(used, classes, n)

    def _squares(self, weights: Array, used: int) -> Array:
        """Squared lengths (K, n) of the weighted sums."""
        by_class = self._home.xp.permute_dims(weights, (1, 0, 2))
        return (by_class * (self.grams[:, :used, :used] @ by_class)).sum(axis=1)

    def _class_cosines(self, cosines: Array, weights: Array, squares: Array) -> Array:
        return ((weights * cosines).sum(axis=0) / squares.clip(TINY) ** 0.5).T

    def arrays(self) -> dict[str, Array]:
        """What to save."""
        held = {name: array for name, array in self.memory.arrays().items() if name != "features"}
        return {"entries": self.entries, "grams": self.grams, **held}

    def restore(self, arrays: Mapping[str, Array]) -> None:
        """Take up what `arrays` gave."""
        for name in ("entries", "grams"):
            saved, own = tuple(arrays[name].shape), tuple(getattr(self, name).shape)
            if saved != own:
                raise ValueError(f"{name} of shape {saved}, not {own}, were saved")
        self.memory.restore({**arrays, "features": self.memory.features})
        self.entries, self.grams = arrays["entries"], arrays["grams"]
        self._used = _used(self.memory.entropies)


def _used(entropies: np.ndarray) -> int:
    """Slots in use by any class, the prototypes' included; they are filled in order."""
    return 1 + int(np.isfinite(entropies).any(axis=0).sum())


BLOCK_ROWS = 256

WORK_NUMBERS = 4_000_000
"""Cosines with all entries held at once."""


class DMN(WholeViews):
    """Each class remembers its surest samples beside its prototype, and answers a sample with their mean, weighed by
    how near they are to it. The posterior of these class vectors is averaged with the zero-shot posterior.

    Examples
    --------
    >>> import numpy as np
    >>> from zeroshift.methods import DMN
    >>> DMN(np.eye(2), logit_scale=5.0, text_weight=0.0).adapt(np.array([0.8, 0.6])).round(6)
    array([0.874236, 0.125764])

    Notes
    -----
    Zhang et al., *Dual Memory Networks: A Versatile Adaptation Approach for Vision-Language Models*, CVPR 2024: the
    zero-shot variant, which has no static memory of labelled samples. `adapt_scores` gives the weighted mean of the two
    posteriors. The authors' code searches `memory_weight` on the test labels and reports the best; here it is 1 for
    all data. They also encode 32 views of each image: the surest 3 choose class and entropy, while the image itself,
    view 0, is remembered and predicted.

    The authors add 1e-8 to probabilities before taking logarithms for the entropy; here it is exact. Entropies and the
    zero-shot posterior are computed in float64, the memory in the prototypes' precision.
    """

    name = "dmn"
    protocol = "online"
    state_size = "K (M + 1) (d + M + 1), in the prototypes' precision"
    complexity = "O(K M (d + M)) a sample"

    logit_scale: float = parameter(Number(low=0, above=True), "Scale of the logits; 100 for CLIP.", default=100.0)
    memory_size: int = parameter(Number(low=1, integer=True), "Samples remembered a class.", default=50)
    beta: float = parameter(Number(low=0), "Sharpness of the kernel exp(-beta (1 - cosine)).", default=5.5)
    text_weight: float = parameter(Number(low=0), "Weights of the two posteriors; not both 0.", default=1.0)
    memory_weight: float = parameter(Number(low=0), "Weights of the two posteriors; not both 0.", default=1.0)
    view_ratio: float = parameter(
        Number(0, 1, above=True),
        "Share of the views `adapt_views` keeps, those of lowest entropy; at least one.",
        default=0.1,
    )

    def _validate(self) -> None:
        if self.text_weight + self.memory_weight == 0:
            raise ValueError(
                "text_weight and memory_weight are both 0, which leaves nothing to predict with. "
                "Fix: memory_weight=0 for the zero-shot posterior, text_weight=0 for the memory alone."
            )

    def _begin(self) -> None:
        home = Home.of(self.prototypes)
        self._text = home.bring(self.prototypes, home.xp.float64)
        self._bank = KernelBank(self.prototypes, self.memory_size, self.beta)

    @property
    def bank_counts(self) -> Array:
        """Samples remembered a class, (K,)."""
        self._finish()
        home = Home.of(self.prototypes)
        return home.xp.asarray(self._bank.memory.counts, device=home.device)

    def _adapt_scores(self, rows: Rows) -> Iterator[tuple[slice, Array]]:
        for block, features in rows.blocks(self._predict_rows):
            if features.shape[0] == 1:
                yield block, self._adapt_one(features)
                continue
            log_y = log_softmax(logits(features, self._text, self.logit_scale))
            classes, entropies = to_numpy(pseudo_class(log_y)), -to_numpy(confidence(log_y))
            answer, keep = self._learned(features, Home.of(log_y).xp.exp(log_y), classes, entropies)
            self._commit(keep, features.shape[0])
            yield block, answer

    def _adapt_one(self, features: Array) -> Array:
        """One sample enters before it is predicted, so there is nothing to plan: learn, then predict."""
        one = single_sample_stats(features, self._text, self.logit_scale)
        keys = self._own(features)
        entry = self._bank.memory.plan_one(one.k, one.entropy)
        if entry is None:
            self.n_seen += 1
        else:
            self._commit(partial(self._bank.enter, entry, keys[0]))
        return self._fused(softmax(one.logits), self._bank.read(keys))

    def _adapt_view(self, views: Array) -> Array:
        self._finish()
        surest = average_views(views[None, ...], self._text, self.logit_scale, ratio=self.view_ratio)
        classes, entropies = to_numpy(pseudo_class(surest.probabilities)), to_numpy(surest.entropy)
        image = views[:1, :]
        text = softmax(logits(image, self._text, self.logit_scale))
        answer, keep = self._learned(image, text, classes, entropies)
        self._decide(keep)
        return answer[0]

    def _learned(
        self, features: Array, text: Array, classes: np.ndarray, entropies: np.ndarray
    ) -> tuple[Array, partial[None]]:
        """Scores (n, K), and how to keep what was learned on the way."""
        keys = self._own(features)
        plan = self._bank.memory.plan(classes, entropies)
        reading = self._bank.follow(plan, keys)
        return self._fused(text, reading.cosines), partial(self._bank.keep, plan, keys, reading)

    def _own(self, features: Array) -> Array:
        """A copy in the precision of the bank: a step keeps it until it is written."""
        return Home.of(self.prototypes).xp.astype(features, self.prototypes.dtype, copy=True)

    def _predict_scores(self, features: Array) -> Array:
        keys = Home.of(self.prototypes).bring(features, self.prototypes.dtype)
        return self._fused(softmax(logits(features, self._text, self.logit_scale)), self._bank.read(keys))

    def _fused(self, text: Array, cosines: Array) -> Array:
        home = Home.of(text)
        memory = softmax(self.logit_scale * home.bring(cosines, text.dtype))
        total = self.text_weight + self.memory_weight
        return (self.text_weight / total) * text + (self.memory_weight / total) * memory

    def _probabilities(self, scores: Array) -> Array:
        return scores  # a mean of two posteriors

    @property
    def _predict_rows(self) -> int:
        return max(1, min(BLOCK_ROWS, WORK_NUMBERS // (self.n_classes * (1 + self.memory_size))))

    def _state(self) -> tuple[dict[str, Array], dict[str, Any]]:
        return self._bank.arrays(), {}

    def _restore(self, arrays: Mapping[str, Array], values: Mapping[str, Any]) -> None:
        self._bank.restore(arrays)
