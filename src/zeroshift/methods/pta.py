"""PTA: visual class prototypes, moved by confidence, refine the text classifier."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from zeroshift.arrays import Array, Backend, namespace
from zeroshift.method import OnlineViewMethod
from zeroshift.methods._shared.similarity import inner_products, unit_rows
from zeroshift.parameters import Number, parameter, state
from zeroshift.state_checks import short_rows, unit_length
from zeroshift.zero_shot import Observation, softmax

TIE = 1e-9
"""Probabilities this close to the threshold, relative to it, reach it: products of another shape round differently."""


class PTA(OnlineViewMethod):
    """Each class has a moving average of the samples whose zero-shot probability for it reaches a threshold. It is
    mixed into a second classifier, which starts as the text prototypes. Its logits are added to the zero-shot logits.

    Examples
    --------
    >>> import numpy as np
    >>> from zeroshift.methods import PTA
    >>> PTA(np.eye(2), logit_scale=5.0).adapt_scores(np.array([[0.8, 0.6], [0.6, 0.8]])).round(6)
    array([[8.953178, 7.616219],
           [7.852764, 8.995441]])

    Notes
    -----
    *Prototype-based Test-time Adaptation*, ICML 2026 (arXiv 2604.21360), from the authors' code. The average of a class
    starts at zero. For a probability p it moves by the weight 1 - exp(-p / T). The second classifier is mixed with its
    own previous value at every sample, so the text soon remains only in the zero-shot logits. A sample is learned
    before it is predicted. The authors set T = 50 for Caltech101 and 20 for all other data, with no procedure stated.
    """

    name = "pta"
    headline = "Visual prototypes weighted by confidence"
    linear = True
    state_size = "2 K d"
    complexity = "O(K d) per sample"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"caltech101": {"temperature": 50.0}}
    check_exceptions: ClassVar[Mapping[str, str]] = {
        "predict_before_adapt_is_zero_shot": "adds the logits of two classifiers, which are equal at first"
    }

    alpha: float = parameter(
        Number(0, 1, above=True), "Weight of the previous value when the second classifier is refined.", default=0.01
    )
    temperature: float = parameter(
        Number(low=0, above=True), "T in the weight 1 - exp(-p / T) of a sample.", default=20.0
    )
    threshold: float = parameter(
        Number(low=0), "A class learns from a sample if its zero-shot probability is at least this.", default=0.1
    )

    _averages: Array = state(lambda self: self.zeros(self.n_classes, self.dimension), holds=short_rows)
    _refined: Array = state(lambda self: Backend.of(self.prototypes).copy(self.prototypes64), holds=unit_length)

    @property
    def averages(self) -> Array:
        """Moving averages of the samples of each class (K, d), float64; zero for a class that learned from none."""
        return Backend.of(self.prototypes).copy(self._averages)

    @property
    def refined(self) -> Array:
        """The second classifier (K, d), rows of unit length, float64."""
        return Backend.of(self.prototypes).copy(self._refined)

    def learn(self, x: Observation) -> None:
        xp, p = namespace(x.logits), softmax(x.logits)
        weights = xp.where(p >= self.threshold * (1 - TIE), -xp.expm1(-p / self.temperature), 0.0)[:, None]
        self._averages *= 1 - weights
        self._averages += weights * x.features
        self._refined *= self.alpha
        self._refined += (1 - self.alpha) * self._averages
        self._refined = unit_rows(self._refined)

    def score(self, x: Observation) -> Array:
        return x.logits + self.logit_scale * inner_products(x.features, self._refined)
