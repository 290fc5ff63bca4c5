"""OnZeta: labels balanced over the stream, and class proxies in the space of the images."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

from zeroshift.arrays import Array, Backend, namespace
from zeroshift.frozen import Expression
from zeroshift.method import OnlineMethod
from zeroshift.methods._shared.similarity import inner_products
from zeroshift.parameters import Number, Optional, parameter, state
from zeroshift.state_checks import unit_length, within
from zeroshift.zero_shot import softmax

SAMPLES_PER_CLASS = 50
"""Assumed for a stream of unknown length: those of ImageNet's test set, for which the authors' constants are."""

TINY = 1e-12
"""A proxy whose length would fall to this is not moved: the sample would cancel it."""


class Posteriors(NamedTuple):
    """Samples, and what both classifiers say about them now."""

    features: Array
    """(n, d)."""
    text: Array
    """Of the text, with corrected labels (n, K)."""
    proxies: Array
    """(n, K)."""


class OnZeta(OnlineMethod):
    """Corrects the zero-shot posterior so that every class gets its share of the stream, and learns a classifier in the
    space of the images from the corrected labels. The answer is a mean of both, with more weight on the learned
    classifier towards the end of the stream. A sample is predicted before it is learned.

    Examples
    --------
    >>> import numpy as np
    >>> from zeroshift.methods import OnZeta
    >>> method = OnZeta(np.eye(2), stream_length=2, logit_scale=5.0, proxy_temperature=0.2, proxy_step=0.1, dual_step=1)
    >>> method.adapt(np.array([[0.8, 0.6], [0.6, 0.8]])).round(6)
    array([[0.731059, 0.268941],
           [0.260352, 0.739648]])

    Notes
    -----
    Qian and Hu, *Online Zero-Shot Classification with CLIP*, ECCV 2024 (arXiv 2408.13320), from the authors' code. The
    weight of the learned classifier is `proxy_weight` sqrt(i / n) for sample i of a stream of n. The length n is a
    parameter, because the samples of one call need not be the whole stream. If it is None, n = 50 K, as in ImageNet's
    test set. After n samples the weight stays at `proxy_weight`. Labels are corrected by dual variables of "every class
    gets at least the share `minimal_share` / K"; 1 asks for equal shares, which hurts if classes are rare, and 0
    disables the correction.

    The released constants are for ImageNet; those for the paper's other data sets, and how any were chosen, are not in
    the code. With few classes the first proxy steps are much longer than the rows themselves, so that small differences
    of the input grow; a `proxy_step` of 0.1 avoids that. The authors' script counts the classes in the test labels;
    here they are the prototypes.
    """

    name = "onzeta"
    headline = "Balanced labels teach an image classifier"
    scored = "before"
    state_size = "K d + K"
    complexity = "O(K d) per sample"
    check_exceptions: ClassVar[Mapping[str, str]] = {
        "predict_before_adapt_is_zero_shot": "averages two posteriors of different temperatures from the start"
    }
    example_parameters: ClassVar[Mapping[str, Any]] = {"proxy_step": 0.1}  # at 0.5 rounding errors grow: see Notes

    stream_length: int | None = parameter(
        Optional(Number(low=1, integer=True)),
        "Number of samples of the whole stream. None: unknown; 50 per class are assumed.",
        default=None,
    )
    logit_scale: float = parameter(Number(low=0, above=True), "Scale of the logits; 100 for CLIP.", default=100.0)
    proxy_temperature: float = parameter(
        Number(low=0, above=True), "Cosines with the proxies are divided by this.", default=0.04
    )
    proxy_step: float = parameter(
        Number(low=0), "Step of the proxies at the first sample; it falls with 1 / sqrt(i).", default=0.5
    )
    dual_step: float = parameter(
        Number(low=0), "Step of the dual variables at the first sample; it falls with 1 / sqrt(i).", default=20.0
    )
    minimal_share: float = parameter(
        Number(0, 1), "Smallest share of the stream that a class should get, times K.", default=1.0
    )
    proxy_weight: float = parameter(
        Number(0, 1), "Weight of the proxies' posterior at the end of the stream.", default=0.8
    )

    _proxies: Array = state(lambda self: Backend.of(self.prototypes).copy(self.prototypes64), holds=unit_length)
    _dual: Array = state(lambda self: self.zeros(self.n_classes), holds=within(0))

    @property
    def proxies(self) -> Array:
        """The classifier in the space of the images (K, d), rows of unit length, float64."""
        return Backend.of(self.prototypes).copy(self._proxies)

    @property
    def dual(self) -> Array:
        """What is added to the zero-shot logits (K,), at least 0."""
        return Backend.of(self.prototypes).copy(self._dual)

    def _weight(self) -> float:
        """Weight of the proxies for the next sample."""
        length = self.stream_length or SAMPLES_PER_CLASS * self.n_classes
        return self.proxy_weight * math.sqrt(min(1.0, (self._n_seen + 1) / length))

    def observe(self, features: Array) -> Posteriors:
        text = self.logit_scale * inner_products(features, self.prototypes64) + self._dual
        proxies = inner_products(features, self._proxies) / self.proxy_temperature
        return Posteriors(features, softmax(text), softmax(proxies))

    def learn(self, x: Posteriors) -> None:
        xp, slower = namespace(x.features), math.sqrt(self._n_seen + 1)
        step = self.proxy_step / (slower * self.proxy_temperature)
        moved = self._proxies - (step * (x.proxies - x.text))[:, None] * x.features
        lengths = xp.linalg.vector_norm(moved, axis=1, keepdims=True)
        self._proxies = xp.where(lengths > TINY, moved / xp.clip(lengths, min=TINY), self._proxies)
        missing = self.minimal_share / self.n_classes - x.text
        self._dual = xp.clip(self._dual + self.dual_step / slower * missing, min=0.0)

    def score(self, x: Posteriors) -> Array:
        weight = self._weight()
        return weight * x.proxies + (1 - weight) * x.text

    def _frozen(self, x: Expression) -> Expression:
        weight = self._weight()
        text = x.linear(self.logit_scale * self.prototypes64, self._dual).softmax()
        return x.linear(self._proxies / self.proxy_temperature).softmax() * weight + text * (1 - weight)

    def _probabilities(self, scores: Array) -> Array:
        return scores  # means of two posteriors
