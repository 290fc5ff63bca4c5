"""TDA: a training-free dynamic adapter with two caches."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

from zeroshift.arrays import Array, Backend
from zeroshift.frozen import Expression
from zeroshift.method import OnlineViewMethod
from zeroshift.methods._shared.class_memory import ClassMemory
from zeroshift.methods._shared.similarity import SHARPNESS
from zeroshift.parameters import Flag, Number, Pair, parameter, state
from zeroshift.zero_shot import Observation

SHARE = Number(0, 1)


class TDA(OnlineViewMethod):
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

    With several views per image, the mean of the views kept, not scaled to unit length, is stored and predicted. With
    fewer than ten views the authors' code keeps none and returns NaN; here the most confident view is kept.
    """

    name = "tda"
    headline = "Caches of samples vote for and against classes"
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
    released: bool = parameter(
        Flag(),
        "Divide entropies by log2 K, as the authors' code does, and not by ln K, their largest value.",
        default=False,
    )

    _positive: ClassMemory = state(lambda self: self._empty_cache(self.positive_capacity))
    _negative: ClassMemory = state(lambda self: self._empty_cache(self.negative_capacity, masks=True))

    def _validate(self) -> None:
        for name in ("entropy_window", "probability_window"):
            low, high = getattr(self, name)
            if low > high:
                raise ValueError(f"{name} must be a pair (low, high); got {(low, high)}. Fix: {(high, low)}.")

    def _empty_cache(self, capacity: int, *, masks: bool = False) -> ClassMemory:
        return ClassMemory(Backend.of(self.prototypes), self.n_classes, capacity, self.dimension, masks=masks)

    @property
    def positive_counts(self) -> Array:
        """Entries per class in the positive cache, (K,)."""
        return self.as_own(self._positive.counts)

    @property
    def negative_counts(self) -> Array:
        """Entries per class in the negative cache, (K,)."""
        return self.as_own(self._negative.counts)

    def learn(self, x: Observation) -> None:
        self._positive.offer(x.k, x.entropy, x.features)
        if self._is_uncertain(float(x.entropy)):
            self._negative.offer(x.k, self._negative_rank(x), x.features, self._between(x.y))

    def _is_uncertain(self, entropy: float) -> bool:
        low, high = self.entropy_window
        largest = math.log2(self.n_classes) if self.released else math.log(self.n_classes)
        return low * largest < entropy < high * largest

    def _negative_rank(self, x: Observation) -> float:
        """The negative cache keeps the samples of each class for which this is smallest."""
        return x.entropy

    def _between(self, y: Array) -> Array:
        low, high = self.probability_window
        return (low < y) & (y < high)

    def score(self, x: Observation) -> Array:
        scores = x.logits + self.positive_alpha * self._positive.votes(x.features, self.positive_beta)
        return scores - self.negative_alpha * self._negative.votes(x.features, self.negative_beta)

    def _frozen(self, x: Expression) -> Expression:
        scores = x.linear(self.logit_scale * self.prototypes64)
        if len(self._positive.samples):
            scores = scores + self._positive.frozen(x, self.positive_beta, self.positive_alpha)
        if len(self._negative.samples):
            scores = scores - self._negative.frozen(x, self.negative_beta, self.negative_alpha)
        return scores.softmax()
