"""OGA: Gaussians with one covariance, fitted to a small memory of the most confident samples."""

from __future__ import annotations

import math

import numpy as np

from zeroshift.adapt.statistics import discriminant, linear_head
from zeroshift.arrays import Array, Backend
from zeroshift.frozen import Expression
from zeroshift.linalg import ZERO_TRACE, pseudo_inverse, residual_precision
from zeroshift.method import OnlineMethod
from zeroshift.methods._shared.class_memory import ClassMemory
from zeroshift.methods._shared.similarity import normalize_rows, unit_rows
from zeroshift.parameters import Choice, Flag, Number, parameter, state
from zeroshift.zero_shot import Observation, observe, quantize, softmax

RIDGE_UP_TO = 4
"""Samples per dimension up to which covariance="auto" uses the ridge."""


class OGA(OnlineMethod):
    """Keeps the most confident samples of each class, fits Gaussians with one covariance to them, and multiplies the
    zero-shot posterior by their tempered likelihood. Zero-shot entropies alone decide which samples are kept, so errors
    do not reinforce themselves.

    Examples
    --------
    >>> import numpy as np
    >>> from zeroshift.methods import OGA
    >>> method = OGA(np.eye(2), logit_scale=5.0, capacity=4)
    >>> _ = method.adapt(np.array([[0.8, 0.6], [0.96, 0.28]]))
    >>> method.means
    array([[0.88, 0.44],
           [0.  , 1.  ]])

    Notes
    -----
    Fuchs, Zanella and De Vleeschouwer, *Online Gaussian Test-Time Adaptation of Vision-Language Models*, 2025
    (arXiv 2501.04352); released code cfuchs2023/OGA, commit b91d449. Scores are the probabilities themselves.

    Differences from that code: means are true means (`released=True` divides as the code does); the memory is in
    float64, not in float16; entropies are exact, without 1e-9 added inside the logarithm; the rank for the
    pseudo-inverse is decided in float64; before anything is learned, `predict` returns the zero-shot posterior.
    """

    name = "oga"
    headline = "Gaussians from samples of low entropy"
    overconfident = True
    state_size = "K M d + K d, M = capacity"
    complexity = "O(K d) per sample, O(K M d^2 + d^3) if it enters the memory"

    logit_scale: float = parameter(Number(low=0, above=True), "Scale of the logits; 100 for CLIP.", default=100.0)
    capacity: int = parameter(Number(low=1, integer=True), "Samples kept per class.", default=8, sizes_state=True)
    tau: float = parameter(Number(low=0), "Exponent of the likelihood.", default=0.05)
    covariance: str = parameter(
        Choice(("auto", "ridge", "pinv")),
        "How the precision matrix follows from M, the covariance of the n samples kept about their class means: "
        '"ridge" is d ((n - 1) M + tr(M) I)^-1, "pinv" the pseudo-inverse of M, "auto" the ridge up to n = 4 d and the '
        "pseudo-inverse above.",
        default="auto",
    )
    normalize_means: bool = parameter(Flag(), "Scale class means to unit length.", default=False)
    batch_size: int = parameter(
        Number(low=1, integer=True),
        "Samples that enter the memory together, before any of them is predicted. The authors use 32. The last batch "
        "of a call may be smaller.",
        default=1,
    )
    released: bool = parameter(
        Flag(),
        "Divide the sum of a class by `capacity`, not by its number of samples, as the released code does.",
        default=False,
    )

    _memory: ClassMemory = state(
        lambda self: ClassMemory(
            Backend.of(self.prototypes), self.n_classes, self.capacity, self.dimension, ties="first slot"
        ),
        saved_as="",
    )

    def _derive(self) -> None:
        """Gaussians from the memory; the precision is d I until some class has three samples."""
        backend = Backend.of(self.prototypes)
        xp = backend.xp
        counts = self._memory.counts
        self._means = backend.copy(self.prototypes64)
        for k in np.flatnonzero(counts >= 2).tolist():
            mean = xp.sum(self._memory.of_class(k), axis=0) / (self.capacity if self.released else int(counts[k]))
            self._means[k] = unit_rows(mean) if self.normalize_means else mean
        self._precision = self.dimension * xp.eye(self.dimension, dtype=xp.float64, device=backend.device)
        self._residuals = None
        if (counts > 2).any():
            self._residuals = self._memory.samples - self._means[backend.index(self._memory.classes)]
            self._precision = self._precision_of(self._residuals)
        self._head = linear_head(self._means, self._precision)

    def _precision_of(self, residuals: Array) -> Array:
        if self.covariance == "ridge" or (self.covariance == "auto" and len(residuals) <= RIDGE_UP_TO * self.dimension):
            return residual_precision(residuals)
        covariance = _covariance(residuals)
        spread = Backend.of(covariance).xp.linalg.trace(covariance) > ZERO_TRACE
        return pseudo_inverse(covariance) if spread else 0 * covariance

    @property
    def means(self) -> Array:
        """Class means (K, d), float64; the prototype while a class has fewer than two samples."""
        return Backend.of(self.prototypes).copy(self._means)

    @property
    def precision_matrix(self) -> Array:
        """Precision matrix of all classes (d, d), float64; d I until some class has three samples."""
        return Backend.of(self.prototypes).copy(self._precision)

    @property
    def residual_covariance(self) -> Array:
        """Unbiased covariance M (d, d) of the samples kept about their class means; I / d until some class has three
        samples."""
        if self._residuals is None:
            return self._precision / self.dimension**2
        return _covariance(self._residuals)

    @property
    def bank_counts(self) -> Array:
        """Samples kept per class (K,)."""
        return self.as_own(self._memory.counts)

    def observe(self, features: Array) -> Observation:
        return observe(features, self.prototypes64, self.logit_scale)

    def learn(self, batch: Observation) -> None:
        # A sample with a uniform posterior never enters.
        largest = quantize(np.float64(math.log(self.n_classes)))
        entered = 0
        for k, h, x in zip(batch.k, batch.entropy, batch.features, strict=True):
            entered += quantize(h) < largest and self._memory.offer(k, h, x)
        if entered:
            self._derive()

    def score(self, x: Observation) -> Array:
        # The initial Gaussians about the prototypes would sharpen the posterior without having seen a sample.
        tau = self.tau if self._n_seen else 0.0
        return softmax(x.logits + tau * discriminant(x.features, *self._head))

    def _frozen(self, x: Expression) -> Expression:
        weights, offsets = self._head
        tau = self.tau if self._n_seen else 0.0
        return x.linear(self.logit_scale * self.prototypes64 + tau * weights, tau * offsets).softmax()

    def _probabilities(self, scores: Array) -> Array:
        return normalize_rows(scores)


def _covariance(residuals: Array) -> Array:
    """Unbiased covariance (d, d) of residuals (n, d)."""
    centred = residuals - residuals.mean(axis=0)
    return centred.T @ centred / (len(residuals) - 1)
