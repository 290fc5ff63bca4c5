"""OnZeta: labels balanced over the stream, and class proxies in the space of the images."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import numpy as np

from zeroshift.arrays import Array, Backend, Rows, namespace, to_numpy
from zeroshift.frozen import Expression
from zeroshift.linalg import minus_outer, thin_product
from zeroshift.method import Method
from zeroshift.methods._shared.similarity import unit_rows
from zeroshift.parameters import Number, Optional, parameter, state
from zeroshift.state_checks import check_lengths, check_range
from zeroshift.zero_shot import logits, softmax

__all__ = ["OnZeta"]

BLOCK_ROWS = 64
"""Samples learned together: between them, only inner products change."""

SAMPLES_PER_CLASS = 50
"""Assumed for a stream of unknown length: those of ImageNet's test set, for which the authors' constants are."""

TINY = 1e-24
"""A proxy whose squared length would fall to this is not moved: the sample would cancel it."""


class OnZeta(Method):
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
    protocol = "online"
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

    _proxies: Array = state(
        lambda self: Backend.of(self.prototypes).copy(self.prototypes64),
        check=lambda self, rows: check_lengths("proxies", rows, unit=True),
    )
    _dual: np.ndarray = state(
        lambda self: np.zeros(self.n_classes), check=lambda self, dual: check_range("dual", dual, 0)
    )

    @property
    def proxies(self) -> Array:
        """The classifier in the space of the images (K, d), rows of unit length, float64."""
        return Backend.of(self.prototypes).copy(self._proxies)

    @property
    def dual(self) -> np.ndarray:
        """What is added to the zero-shot logits (K,), at least 0."""
        return self._dual.copy()

    def _weight(self, n_before: int) -> float:
        """Weight of the proxies for a sample that this many came before."""
        length = self.stream_length or SAMPLES_PER_CLASS * self.n_classes
        return self.proxy_weight * math.sqrt(min(1.0, (n_before + 1) / length))

    def _prepare(self) -> None:
        self._text = self.prototypes64

    def _adapt_scores(self, rows: Rows) -> Iterator[tuple[slice, Array]]:
        for block, x in rows.blocks(BLOCK_ROWS):
            yield block, self._learn_one(x) if x.shape[0] == 1 else self._learn(x)

    def _learn_one(self, x: Array) -> Array:
        """`_learn` for one sample (1, d): there are no products between samples, and every proxy moves once."""
        backend = Backend.of(x)
        text, cosines = (to_numpy(thin_product(x, rows))[0] for rows in (self._text, self._proxies))
        answer, dual, step = self._step(self._n_seen, self.logit_scale * text, cosines, self._dual)
        proxies = minus_outer(self._proxies, backend.asarray(step, x.dtype), x[0])
        squares = to_numpy(backend.xp.vecdot(proxies, proxies))
        if squares.min() <= TINY:
            kept = backend.index(np.flatnonzero(squares <= TINY))
            proxies[kept] = unit_rows(self._proxies[kept])
            squares = to_numpy(backend.xp.vecdot(proxies, proxies))
        proxies *= backend.asarray(1 / np.sqrt(squares), x.dtype)[:, None]
        with self._learning():
            self._proxies, self._dual = proxies, dual
        return backend.asarray(answer[None, :], x.dtype)

    def _learn(self, x: Array) -> Array:
        """Learn from samples (n, d) in order; return their scores.

        A proxy stays a combination of what it was and of the samples. Between samples only inner products change.
        """
        backend, n = Backend.of(x), x.shape[0]
        text = to_numpy(logits(x, self._text, self.logit_scale))
        cosines, products = to_numpy(x @ self._proxies.T).copy(), to_numpy(x @ x.T)
        own = to_numpy(backend.xp.sum(self._proxies**2, axis=1))  # prototypes have unit length within rounding only
        dual, kept, added = self._dual, np.ones(self.n_classes), np.zeros((n, self.n_classes))
        answers = np.empty_like(text)
        for i in range(n):
            answers[i], dual, step = self._step(self._n_seen + i, text[i], cosines[i], dual)
            squares = own - 2 * step * cosines[i] + step * step * products[i, i]
            moves = squares > TINY
            step, lengths = np.where(moves, step, 0.0), np.sqrt(np.where(moves, squares, 1.0))
            cosines[i + 1 :] -= products[i + 1 :, i, None] * step
            cosines[i + 1 :] /= lengths
            own = np.where(moves, 1.0, own)
            added[i] = -step
            added[: i + 1] /= lengths
            kept /= lengths
        proxies = backend.asarray(kept, x.dtype)[:, None] * self._proxies + backend.asarray(added, x.dtype).T @ x
        proxies = unit_rows(proxies)
        with self._learning(n):
            self._proxies, self._dual = proxies, dual
        return backend.asarray(answers, x.dtype)

    def _step(
        self, n_before: int, text: np.ndarray, cosines: np.ndarray, dual: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The scores (K,) of a sample that this many came before, the dual variables after it, and how much of it is
        subtracted from each proxy."""
        q, v = softmax(np.array([text + dual, cosines / self.proxy_temperature]))
        weight, slower = self._weight(n_before), math.sqrt(n_before + 1)
        raised = np.maximum(dual - self.dual_step / slower * (q - self.minimal_share / self.n_classes), 0.0)
        step = self.proxy_step / (slower * self.proxy_temperature) * (v - q)
        return weight * v + (1 - weight) * q, raised, step

    def _predict_scores(self, features: Array) -> Array:
        xp, backend = namespace(features), Backend.of(features)
        weight = self._weight(self._n_seen)
        dual = xp.asarray(self._dual, dtype=features.dtype, device=backend.device)
        q = softmax(logits(features, self._text, self.logit_scale) + dual)
        return weight * softmax(features @ self._proxies.T / self.proxy_temperature) + (1 - weight) * q

    def _frozen(self, x: Expression) -> Expression:
        weight = self._weight(self._n_seen)
        text = x.linear(self.logit_scale * self._text, self._dual).softmax()
        return x.linear(self._proxies / self.proxy_temperature).softmax() * weight + text * (1 - weight)

    def _probabilities(self, scores: Array) -> Array:
        return scores  # means of two posteriors
