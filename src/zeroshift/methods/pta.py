"""PTA: visual class prototypes, moved by confidence, refine the text classifier."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import numpy as np

from zeroshift.arrays import Array, Backend, Rows, to_numpy
from zeroshift.linalg import thin_product
from zeroshift.method import ViewMethod
from zeroshift.methods._shared.similarity import unit_rows
from zeroshift.parameters import Number, parameter, state
from zeroshift.state_checks import check_lengths
from zeroshift.views import RATIO, average_views
from zeroshift.zero_shot import logits, softmax

__all__ = ["PTA"]

BLOCK_ROWS = 64
"""Samples learned together: between them, only inner products change."""

TIE = 1e-9
"""Probabilities this close to the threshold, relative to it, reach it: products of another shape round differently."""

SMALLEST = float(np.finfo(np.float64).tiny)
"""Squared lengths count as at least this, so that a row whose two parts cancel is not divided by zero."""


class PTA(ViewMethod):
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
    protocol = "online"
    linear = True
    state_size = "2 K d"
    complexity = "O(K d) per sample"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"caltech101": {"temperature": 50.0}}
    check_exceptions: ClassVar[Mapping[str, str]] = {
        "predict_before_adapt_is_zero_shot": "adds the logits of two classifiers, which are equal at first"
    }

    logit_scale: float = parameter(Number(low=0, above=True), "Scale of the logits; 100 for CLIP.", default=100.0)
    alpha: float = parameter(
        Number(0, 1, above=True), "Weight of the previous value when the second classifier is refined.", default=0.01
    )
    temperature: float = parameter(
        Number(low=0, above=True), "T in the weight 1 - exp(-p / T) of a sample.", default=20.0
    )
    threshold: float = parameter(
        Number(low=0), "A class learns from a sample if its zero-shot probability is at least this.", default=0.1
    )
    view_ratio: float = parameter(
        Number(0, 1, above=True),
        "Share of the views that `adapt_views` keeps, those of lowest entropy; at least one.",
        default=RATIO,
    )

    _averages: Array = state(
        lambda self: self.zeros(self.n_classes, self.dimension),
        check=lambda self, rows: check_lengths("averages", rows),
    )
    _refined: Array = state(
        lambda self: Backend.of(self.prototypes).copy(self.prototypes64),
        check=lambda self, rows: check_lengths("refined", rows, unit=True),
    )

    @property
    def averages(self) -> Array:
        """Moving averages of the samples of each class (K, d), float64; zero for a class that learned from none."""
        return Backend.of(self.prototypes).copy(self._averages)

    @property
    def refined(self) -> Array:
        """The second classifier (K, d), rows of unit length, float64."""
        return Backend.of(self.prototypes).copy(self._refined)

    def _prepare(self) -> None:
        self._text = self.prototypes64

    def _adapt_scores(self, rows: Rows) -> Iterator[tuple[slice, Array]]:
        for block, x in rows.blocks(BLOCK_ROWS):
            if x.shape[0] == 1:
                yield block, self._learn_one(x, self.logit_scale * thin_product(x, self._text))
            else:
                yield block, self._learn(x, logits(x, self._text, self.logit_scale))

    def _adapt_view(self, views: Array) -> Array:
        one = average_views(views[None, ...], self._text, self.logit_scale, ratio=self.view_ratio)
        return self._learn_one(one.features, one.logits)[0]

    def _learn_one(self, x: Array, text: Array) -> Array:
        """`_learn` for one sample (1, d): every row changes once, and there are no products between samples."""
        backend = Backend.of(x)
        p = to_numpy(softmax(text))[0]
        learns = np.flatnonzero(p >= self.threshold * (1 - TIE))
        averages = backend.copy(self._averages)
        if len(learns):
            k = backend.index(learns)
            w = backend.asarray(-np.expm1(-p[learns] / self.temperature), x.dtype)
            averages[k] += w[:, None] * (x - averages[k])
        refined = self.alpha * self._refined
        refined += (1 - self.alpha) * averages
        refined *= (1 / backend.xp.sqrt(backend.xp.vecdot(refined, refined) + SMALLEST))[:, None]
        with self._learning():
            self._refined, self._averages = refined, averages
        return text + self.logit_scale * thin_product(x, refined)

    def _learn(self, x: Array, text: Array) -> Array:
        """Learn from samples (n, d) with zero-shot logits `text` (n, K), in order; return their scores.

        With P the averages and R the refined rows, every row stays a combination of the R and P it had at first and of
        the samples. Between samples only inner products change, so that the rows are computed once, at the end.
        """
        backend, n = Backend.of(x), x.shape[0]
        p = to_numpy(softmax(text))
        learns = p >= self.threshold * (1 - TIE)
        weights = -np.expm1(-p / self.temperature)
        R, P = self._refined, self._averages
        with_R, with_P = to_numpy(x @ R.T).T.copy(), to_numpy(x @ P.T).T.copy()  # (K, n)
        products = to_numpy(x @ x.T)
        R_R, R_P, P_P = (to_numpy(backend.xp.sum(a * b, axis=1)).copy() for a, b in ((R, R), (R, P), (P, P)))
        # Coefficients (K, 2 + n) of R, P and the samples. A refined row is u base + v P, with `base` fixed between the
        # samples that a class learns from.
        base = np.zeros((self.n_classes, 2 + n))
        average = np.zeros((self.n_classes, 2 + n))
        base[:, 0] = average[:, 1] = 1.0
        u, v = np.ones(self.n_classes), np.zeros(self.n_classes)
        a, b = self.alpha, 1 - self.alpha
        answers = np.empty((n, self.n_classes))
        for i in range(n):
            k = np.flatnonzero(learns[i])
            if len(k):
                w, uk, vk = weights[i, k], u[k, None], v[k, None]
                base[k] = uk * base[k] + vk * average[k]
                with_R[k] = uk * with_R[k] + vk * with_P[k]
                R_R[k] = u[k] ** 2 * R_R[k] + 2 * u[k] * v[k] * R_P[k] + v[k] ** 2 * P_P[k]
                R_P[k] = u[k] * R_P[k] + v[k] * P_P[k]
                u[k], v[k] = 1.0, 0.0
                R_P[k] = (1 - w) * R_P[k] + w * with_R[k, i]
                P_P[k] = (1 - w) ** 2 * P_P[k] + 2 * w * (1 - w) * with_P[k, i] + w * w * products[i, i]
                average[k] *= 1 - w[:, None]
                average[k, 2 + i] += w
                with_P[k] = (1 - w[:, None]) * with_P[k] + w[:, None] * products[i]
            u *= a
            v *= a
            v[P_P > 0] += b
            lengths = np.sqrt(np.maximum(u * u * R_R + 2 * u * v * R_P + v * v * P_P, SMALLEST))
            u /= lengths
            v /= lengths
            answers[i] = u * with_R[:, i] + v * with_P[:, i]
        base = u[:, None] * base + v[:, None] * average

        def rows(coefficients: np.ndarray) -> Array:
            c = backend.asarray(coefficients, x.dtype)
            return c[:, :1] * R + c[:, 1:2] * P + c[:, 2:] @ x

        refined, averages = unit_rows(rows(base)), rows(average)
        with self._learning(n):
            self._refined, self._averages = refined, averages
        return text + self.logit_scale * backend.asarray(answers, x.dtype)

    def _predict_scores(self, features: Array) -> Array:
        return self.logit_scale * (features @ (self._text + self._refined).T)
