"""DMN: dual memory networks, the training-free zero-shot variant."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from zeroshift.arrays import Array, Backend, namespace, to_numpy
from zeroshift.frozen import Expression
from zeroshift.method import PREDICT_ROWS, OnlineViewMethod
from zeroshift.methods._shared.class_memory import ClassMemory
from zeroshift.methods._shared.similarity import SHARPNESS, exponential_kernel, inner_products
from zeroshift.parameters import Number, parameter, state
from zeroshift.views import observe_views
from zeroshift.zero_shot import Observation, pseudo_class, softmax

TINY = 1e-24
"""Smallest squared length of a class vector."""

WORK_NUMBERS = 4_000_000
"""Cosines with all samples in memory together."""


class DMN(OnlineViewMethod):
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
    """

    name = "dmn"
    headline = "Class vectors from memories of sure samples"
    state_size = "K M (d + M)"
    complexity = "O(K M d) per sample"

    memory_size: int = parameter(Number(low=1, integer=True), "Samples stored per class.", default=50, sizes_state=True)
    beta: float = parameter(SHARPNESS, "Sharpness of the kernel exp(-beta (1 - cosine)).", default=5.5)
    text_weight: float = parameter(Number(low=0), "Weight of the zero-shot posterior.", default=1.0)
    memory_weight: float = parameter(
        Number(low=0), "Weight of the posterior of the memory. Not both weights may be 0.", default=1.0
    )

    _memory: ClassMemory = state(
        lambda self: ClassMemory(Backend.of(self.prototypes), self.n_classes, self.memory_size, self.dimension),
        saved_as="",
    )

    def _validate(self) -> None:
        if self.text_weight + self.memory_weight == 0:
            raise ValueError(
                "text_weight and memory_weight are both 0, so there is nothing to predict with. "
                "Fix: memory_weight=0 for the zero-shot posterior, text_weight=0 for the memory alone."
            )

    @property
    def bank_counts(self) -> Array:
        """Samples stored per class, (K,)."""
        return self.as_own(self._memory.counts)

    def observe_views(self, views: Array) -> Observation:
        chosen = observe_views(views, self.prototypes64, self.logit_scale, self.view_ratio)
        return self.observe(views[:1])._replace(k=pseudo_class(chosen.y), entropy=chosen.entropy)

    def _derive(self) -> None:
        size = 1 + self.memory_size
        self._grams = self.zeros(self.n_classes, size, size)
        """Inner products of what each class holds."""
        for k in range(self.n_classes):
            self._multiply(k)

    def _multiply(self, k: int) -> None:
        bank = self._bank([k])[0]
        self._grams[k] = bank @ bank.T

    def _bank(self, classes: Sequence[int]) -> Array:
        """The prototype and the samples of classes (k, 1 + M, d), with rows of zeros for empty slots."""
        index = Backend.of(self.prototypes).index
        samples = self._memory.entries[index(self._memory.rows[classes])]
        return namespace(samples).concat([self.prototypes64[index(np.asarray(classes))][:, None], samples], axis=1)

    def learn(self, x: Observation) -> None:
        if self._memory.offer(x.k, x.entropy, x.features):
            self._multiply(int(x.k))

    def score(self, x: Observation) -> Array:
        """With w_j = exp(-beta (1 - b_j.x)) over the samples b_j of a class and its prototype, the class vector that x
        reads is v = sum_j w_j b_j / |sum_j w_j b_j|. Of it only v.x and, from the inner products, the length matter.
        """
        xp, memory = namespace(x.logits), self._memory
        rows = memory.rows[:, : memory.counts.max()]
        cosines = inner_products(x.features, memory.entries[: memory.used])
        by_slot = xp.take(cosines, Backend.of(cosines).index(rows.reshape(-1)), axis=1).reshape(
            len(cosines), *rows.shape
        )
        cosines = xp.concat([(x.logits / self.logit_scale)[:, :, None], by_slot], axis=2)
        weights = exponential_kernel(cosines, self.beta)
        by_class, used = xp.permute_dims(weights, (1, 0, 2)), cosines.shape[2]
        squares = ((by_class @ self._grams[:, :used, :used]) * by_class).sum(axis=-1).T
        read = (weights * cosines).sum(axis=-1) / xp.sqrt(xp.clip(squares, min=TINY))
        return self._share * softmax(x.logits) + (1 - self._share) * softmax(self.logit_scale * read)

    @property
    def _share(self) -> float:
        """The share of the zero-shot posterior."""
        return self.text_weight / (self.text_weight + self.memory_weight)

    def _frozen(self, x: Expression) -> Expression:
        bank = to_numpy(self._bank(range(self.n_classes)))
        cosines = x.to_each(bank)
        weights = (cosines * self.beta - self.beta).exp()
        squares = (weights * (weights @ to_numpy(self._grams))).sum()
        read = ((weights * cosines).sum() / ((squares - TINY).relu() + TINY).sqrt()).columns()
        text = x.linear(self.logit_scale * self.prototypes64).softmax() * self._share
        return text + (read * self.logit_scale).softmax() * (1 - self._share)

    def _probabilities(self, scores: Array) -> Array:
        return scores  # a mean of two posteriors

    @property
    def _predict_rows(self) -> int:
        return max(1, min(PREDICT_ROWS, WORK_NUMBERS // (self.n_classes * (1 + self.memory_size))))
