"""DMN: dual memory networks, the training-free zero-shot variant."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from zeroshift.arrays import Array, Backend, Rows, to_numpy
from zeroshift.frozen import Expression
from zeroshift.method import ViewMethod
from zeroshift.methods._shared.low_entropy_memory import LowEntropyMemory, MemoryInsertion, MemoryPlan, check_memory
from zeroshift.methods._shared.similarity import SHARPNESS, exponential_kernel, single_sample_stats
from zeroshift.parameters import Number, parameter, state
from zeroshift.state_checks import check_lengths, check_range
from zeroshift.views import average_views
from zeroshift.zero_shot import confidence, log_softmax, logits, pseudo_class, softmax

__all__ = ["DMN", "KernelBank", "PlannedReading"]

TINY = 1e-24


class PlannedReading(NamedTuple):
    """Result of `KernelBank.read_during`: the cosines, and what `KernelBank.keep` needs to execute the plan."""

    cosines: Array
    """Cosines (n, K) of every sample with the class vectors at its turn."""
    grams: dict[int, Array]
    """Inner products of the banks that change, by class."""


class KernelBank:
    """The dynamic memory: for each class a bank B_k of its prototype and its `capacity` samples of lowest entropy.

    A sample x reads the class vector v_k = sum_j w_j B_kj / |sum_j w_j B_kj| with w_j = exp(-beta (1 - B_kj.x)). The
    vector itself is never computed: v_k.x needs only the cosines B_kj.x and the squared length w'Gw, where G are the
    inner products of the bank. A new entry changes one row and one column of G. Empty slots are zero and add nothing.

    Slots are the first axis, so that the slots in use by any class are contiguous.

    >>> bank = KernelBank(np.eye(2), capacity=2, beta=5.5)
    >>> x = np.array([[0.8, 0.6]])
    >>> bank.read_during(bank.memory.plan(np.array([0]), np.array([0.58])), x).cosines.round(6)
    array([[0.987789, 0.6     ]])
    """

    def __init__(self, prototypes: Array, capacity: int, beta: float) -> None:
        backend = Backend.of(prototypes)
        classes, width = prototypes.shape
        self._backend, self._beta = backend, beta
        self.memory = LowEntropyMemory(
            backend, classes, capacity, 0
        )  # which samples are stored; their features are in `entries`
        self.entries = backend.zeros((1 + capacity, classes, width), prototypes.dtype)
        self.entries[0] = prototypes
        self.grams = backend.zeros((classes, 1 + capacity, 1 + capacity), prototypes.dtype)
        self.grams[:, 0, 0] = backend.xp.sum(prototypes * prototypes, axis=1)
        self._used = 1

    def read(self, features: Array) -> Array:
        """Cosines (n, K) of features with the class vectors they read."""
        cosines = self._entry_cosines(features, self._used)
        weights = exponential_kernel(cosines, self._beta)
        return self._class_cosines(cosines, weights, self._squares(weights, self._used))

    def frozen(self, x: Expression) -> Expression:
        """`read` as an expression."""
        entries, grams = to_numpy(self.entries)[: self._used], to_numpy(self.grams)[:, : self._used, : self._used]
        cosines = x.to_each(np.swapaxes(entries, 0, 1))
        weights = (cosines * self._beta - self._beta).exp()
        squares = (weights * (weights @ grams)).sum()
        return ((weights * cosines).sum() / ((squares - TINY).relu() + TINY).sqrt()).columns()

    def insert(self, insertion: MemoryInsertion, feature: Array) -> None:
        """Store one sample (d,) at the slot given by `memory.plan_one`."""
        k, slot = insertion.k, 1 + insertion.slot
        used = max(self._used, 1 + slot)
        self.entries[slot, k] = feature
        self.grams[k, slot, :used] = self.grams[k, :used, slot] = self.entries[:used, k] @ feature
        self.memory.record(insertion)
        self._used = used

    def read_during(self, plan: MemoryPlan, features: Array) -> PlannedReading:
        """Like `read`, with the bank as it is at each sample's turn. Nothing is stored yet."""
        used = _used(plan.entropies)
        cosines = self._entry_cosines(features, used)
        places = [(slot // self.memory.capacity, 1 + slot % self.memory.capacity) for slot in plan.slots.tolist()]
        entering = list(zip(plan.rows.tolist(), places, strict=True))
        products = features @ features.T
        for row, (k, slot) in entering:
            cosines[slot, k, row:] = products[row, row:]  # from its turn on, until another sample replaces it
        weights = exponential_kernel(cosines, self._beta)
        squares = self._squares(weights, used)
        grams: dict[int, Array] = {}
        for row, (k, slot) in entering:
            if k not in grams:
                grams[k] = self._backend.copy(self.grams[k, :used, :used])
            gram = grams[k]
            gram[slot, :] = gram[:, slot] = cosines[:, k, row]
            w = weights[:, k, row:]
            squares[k, row:] = self._backend.xp.sum(w * (gram @ w), axis=0)
        return PlannedReading(self._class_cosines(cosines, weights, squares), grams)

    def keep(self, plan: MemoryPlan, features: Array, reading: PlannedReading) -> None:
        """Store the samples of a plan that `read_during` was called with."""
        kept = plan.kept()
        if len(kept):
            classes, slots = np.divmod(plan.slots[kept], self.memory.capacity)
            rows = self._backend.index(plan.rows[kept])
            self.entries[self._backend.index(1 + slots), self._backend.index(classes)] = features[rows]
        for k, gram in reading.grams.items():
            self.grams[k, : gram.shape[0], : gram.shape[0]] = gram
        self.memory.record_plan(plan)
        self._used = _used(plan.entropies)

    def _entry_cosines(self, features: Array, used: int) -> Array:
        """Cosines (used, K, n) of features with the slots in use."""
        _, classes, width = self.entries.shape
        entries = self.entries[:used].reshape(used * classes, width)
        n = features.shape[0]
        # A single sample as a vector: on a GPU this is several times faster.
        return (entries @ features.T if n > 1 else entries @ features[0]).reshape(used, classes, n)

    def _squares(self, weights: Array, used: int) -> Array:
        """Squared lengths (K, n) of the weighted sums."""
        by_class = self._backend.xp.permute_dims(weights, (1, 0, 2))
        return (by_class * (self.grams[:, :used, :used] @ by_class)).sum(axis=1)

    def _class_cosines(self, cosines: Array, weights: Array, squares: Array) -> Array:
        return ((weights * cosines).sum(axis=0) / squares.clip(TINY) ** 0.5).T

    def state(self) -> tuple[dict[str, Array], dict[str, Any]]:
        memory = {name: array for name, array in self.memory.state()[0].items() if name != "features"}
        return {"entries": self.entries, "grams": self.grams, **memory}, {}

    def restore(self, arrays: Mapping[str, Array], values: Mapping[str, Any]) -> None:
        for name in ("entries", "grams"):
            saved, own = tuple(arrays[name].shape), tuple(getattr(self, name).shape)
            if saved != own:
                raise ValueError(f"{name} of shape {saved}, not {own}, were saved")
        self.memory.restore({**arrays, "features": self.memory.features}, values)
        check_lengths("entries", arrays["entries"])
        check_range("grams", arrays["grams"], -1.1, 1.1)
        self.entries, self.grams = arrays["entries"], arrays["grams"]
        self._used = _used(self.memory.entropies)


def _used(entropies: np.ndarray) -> int:
    """Number of slots in use by any class, including that of the prototypes. Slots are filled in order."""
    return 1 + int(np.isfinite(entropies).any(axis=0).sum())


BLOCK_ROWS = 256

WORK_NUMBERS = 4_000_000
"""Cosines with all entries in memory at one time."""


class DMN(ViewMethod):
    """Each class stores its most confident samples next to its prototype. A new sample is compared with their mean,
    weighted by their similarity to it. The posterior of these class vectors is averaged with the zero-shot posterior.

    Examples
    --------
    >>> import numpy as np
    >>> from zeroshift.methods import DMN
    >>> DMN(np.eye(2), logit_scale=5.0, text_weight=0.0).adapt(np.array([0.8, 0.6])).round(6)
    array([0.874236, 0.125764])

    Notes
    -----
    Zhang et al., *Dual Memory Networks: A Versatile Adaptation Approach for Vision-Language Models*, CVPR 2024: the
    zero-shot variant, which has no static memory of labelled samples. `adapt_scores` returns the weighted mean of the
    two posteriors. The authors' code searches `memory_weight` on the test labels and reports the best; here it is 1 for
    all data. They also encode 32 views of each image: the 3 most confident ones determine class and entropy, while the
    image itself, view 0, is stored and predicted.

    The authors add 1e-8 to probabilities before they take logarithms for the entropy; here the entropy is exact.
    Entropies and the zero-shot posterior are computed in float64, the memory in the precision of the prototypes.
    """

    name = "dmn"
    headline = "Class vectors from memories of sure samples"
    protocol = "online"
    state_size = "K (M + 1) (d + M + 1), in the precision of the prototypes"
    complexity = "O(K M (d + M)) per sample"

    logit_scale: float = parameter(Number(low=0, above=True), "Scale of the logits; 100 for CLIP.", default=100.0)
    memory_size: int = parameter(Number(low=1, integer=True), "Samples stored per class.", default=50, sizes_state=True)
    beta: float = parameter(SHARPNESS, "Sharpness of the kernel exp(-beta (1 - cosine)).", default=5.5)
    text_weight: float = parameter(Number(low=0), "Weight of the zero-shot posterior.", default=1.0)
    memory_weight: float = parameter(
        Number(low=0), "Weight of the posterior of the memory. Not both weights may be 0.", default=1.0
    )
    view_ratio: float = parameter(
        Number(0, 1, above=True),
        "Share of the views that `adapt_views` keeps, those of lowest entropy; at least one.",
        default=0.1,
    )

    _bank: KernelBank = state(
        lambda self: KernelBank(self.prototypes, self.memory_size, self.beta),
        saved_as="",
        check=lambda self, bank: check_memory(bank.memory, self.n_seen),
    )

    def _validate(self) -> None:
        if self.text_weight + self.memory_weight == 0:
            raise ValueError(
                "text_weight and memory_weight are both 0, so there is nothing to predict with. "
                "Fix: memory_weight=0 for the zero-shot posterior, text_weight=0 for the memory alone."
            )

    def _prepare(self) -> None:
        backend = Backend.of(self.prototypes)
        self._text = backend.asarray(self.prototypes, backend.xp.float64)

    @property
    def bank_counts(self) -> Array:
        """Samples stored per class, (K,)."""
        backend = Backend.of(self.prototypes)
        return backend.xp.asarray(self._bank.memory.counts, device=backend.device)

    def _adapt_scores(self, rows: Rows) -> Iterator[tuple[slice, Array]]:
        for block, features in rows.blocks(self._predict_rows):
            if features.shape[0] == 1:
                yield block, self._adapt_one(features)
                continue
            log_y = log_softmax(logits(features, self._text, self.logit_scale))
            classes, entropies = to_numpy(pseudo_class(log_y)), -to_numpy(confidence(log_y))
            yield block, self._adapt_block(features, Backend.of(log_y).xp.exp(log_y), classes, entropies)

    def _adapt_one(self, features: Array) -> Array:
        """A sample is stored before it is predicted, so a single one needs no plan: learn, then predict."""
        one = single_sample_stats(features, self._text, self.logit_scale)
        keys = self._to_bank_dtype(features)
        insertion = self._bank.memory.plan_one(one.k, one.entropy)
        with self._learning():
            if insertion is not None:
                self._bank.insert(insertion, keys[0])
        return self._fuse(softmax(one.logits), self._bank.read(keys))

    def _adapt_view(self, views: Array) -> Array:
        average = average_views(views[None, ...], self._text, self.logit_scale, ratio=self.view_ratio)
        classes, entropies = to_numpy(pseudo_class(average.probabilities)), to_numpy(average.entropy)
        image = views[:1, :]
        text = softmax(logits(image, self._text, self.logit_scale))
        return self._adapt_block(image, text, classes, entropies)[0]

    def _adapt_block(self, features: Array, text: Array, classes: np.ndarray, entropies: np.ndarray) -> Array:
        """Scores (n, K) of samples in order, each with the bank as it is at its turn; then store the samples.

        `text` (n, K) is their zero-shot posterior; `classes` and `entropies` (n,) decide where they are stored.
        """
        keys = self._to_bank_dtype(features)
        plan = self._bank.memory.plan(classes, entropies)
        reading = self._bank.read_during(plan, keys)
        scores = self._fuse(text, reading.cosines)
        with self._learning(len(keys)):
            self._bank.keep(plan, keys, reading)
        return scores

    def _to_bank_dtype(self, features: Array) -> Array:
        """A copy in the precision of the bank."""
        return Backend.of(self.prototypes).xp.astype(features, self.prototypes.dtype, copy=True)

    def _predict_scores(self, features: Array) -> Array:
        keys = Backend.of(self.prototypes).asarray(features, self.prototypes.dtype)
        return self._fuse(softmax(logits(features, self._text, self.logit_scale)), self._bank.read(keys))

    def _frozen(self, x: Expression) -> Expression:
        total = self.text_weight + self.memory_weight
        text = x.linear(self.logit_scale * self._text).softmax() * (self.text_weight / total)
        memory = (self._bank.frozen(x) * self.logit_scale).softmax() * (self.memory_weight / total)
        return text + memory

    def _fuse(self, text: Array, cosines: Array) -> Array:
        backend = Backend.of(text)
        memory = softmax(self.logit_scale * backend.asarray(cosines, text.dtype))
        total = self.text_weight + self.memory_weight
        return (self.text_weight / total) * text + (self.memory_weight / total) * memory

    def _probabilities(self, scores: Array) -> Array:
        return scores  # a mean of two posteriors

    @property
    def _predict_rows(self) -> int:
        return max(1, min(BLOCK_ROWS, WORK_NUMBERS // (self.n_classes * (1 + self.memory_size))))
