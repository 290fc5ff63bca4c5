"""ADAPT's equations as pure functions: class means, scatter, ridge precision, discriminant, bank term, fusion.

Shapes: K classes, d dimensions, n samples, M bank slots per class (unused ones have weight 0). Everything is
float64; the paper's equation numbers are given.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from zeroshift import linalg as ridge
from zeroshift.arrays import Array, Backend, namespace
from zeroshift.linalg import SMALLEST_TRACE, ZERO_TRACE

__all__ = [
    "AdaptSettings",
    "Evidence",
    "Gaussians",
    "bank_scatter",
    "bank_sums",
    "bank_term",
    "bounded_precision",
    "class_means",
    "discriminant",
    "estimate",
    "fuse",
    "linear_head",
    "ridge_precision",
    "score",
    "soft_scatter",
]


def bank_sums(features: Array, weights: Array) -> tuple[Array, Array]:
    """sum_j p_j x_j (K, d) and sum_j p_j (K,) of every class's bank (K, M, d), (K, M)."""
    xp = namespace(features)
    return xp.matmul(weights[:, None, :], features)[:, 0, :], xp.sum(weights, axis=1)


def class_means(weighted_sum: Array, weight: Array, prototypes: Array, alpha: float, beta: float | None) -> Array:
    """Eq. 9 and 12: a mu' + (1 - a) t with mu' = sum w x / sum w; a = `alpha`, or sum w / (sum w + beta). No weight: t.

    >>> import numpy as np
    >>> class_means(np.array([[1.0, 1.0], [0.0, 0.0]]), np.array([2.0, 0.0]), np.eye(2), 0.9, None)
    array([[0.55, 0.45],
           [0.  , 1.  ]])
    """
    xp = namespace(prototypes)
    held = xp.astype(weight > 0, weight.dtype)
    safe = weight + (1.0 - held)
    mixing = (held * (alpha if beta is None else safe / (safe + beta)))[:, None]
    return mixing * (weighted_sum / safe[:, None]) + (1 - mixing) * prototypes


def bank_scatter(features: Array, occupied: Array, means: Array, *, per_class: bool = False) -> Array:
    """Eq. 10 times N: sum over bank entries of (x - mu_k)(x - mu_k)^T, pooled (d, d) or per class (K, d, d)."""
    xp = namespace(features)
    centred = features - means[:, None, :]
    centred *= occupied[:, :, None]
    if per_class:
        return xp.matmul(xp.matrix_transpose(centred), centred)
    flat = xp.reshape(centred, (-1, centred.shape[2]))
    return flat.T @ flat


def soft_scatter(second_moment: Array, weighted_sum: Array, weight: Array, means: Array) -> Array:
    """sum_i sum_k y_ik (x_i - mu_k)(x_i - mu_k)^T from sum x x^T, sum y x and sum y (for the bank switched off)."""
    cross = means.T @ weighted_sum
    return second_moment - cross - cross.T + means.T @ (weight[:, None] * means)


def ridge_precision(scatter: Array, count: float) -> Array:
    """Eq. 10: d ((N - 1) Sigma + tr(Sigma) I)^-1 with Sigma = scatter / N; the identity where there is no spread.

    A tr(Sigma) below `SMALLEST_TRACE` counts as that.

    >>> import numpy as np
    >>> ridge_precision(np.diag([3.0, 1.0]), 1)
    array([[0.5, 0. ],
           [0. , 0.5]])
    """
    return bounded_precision(scatter, count)[0]


def bounded_precision(
    scatter: Array, count: float, invert: Callable[[Array], Array] | None = None
) -> tuple[Array, bool]:
    """`ridge_precision`, and whether `SMALLEST_TRACE` took effect; `invert` as in `linalg.ridge_precision`."""
    xp = namespace(scatter)
    covariance = scatter / max(count, 1)
    trace = float(xp.linalg.trace(covariance))
    if trace <= ZERO_TRACE:
        return xp.eye(scatter.shape[-1], dtype=scatter.dtype, device=Backend.of(scatter).device), False
    precision = ridge.ridge_precision((count - 1) * covariance, max(trace, SMALLEST_TRACE), invert)
    return precision, trace < SMALLEST_TRACE


def linear_head(means: Array, precision: Array) -> tuple[Array, Array]:
    """Directions P mu_k (K, d) and offsets -1/2 mu_k^T P mu_k (K,); P is shared (d, d) or per class (K, d, d)."""
    xp = namespace(means)
    directions = means @ precision if len(precision.shape) == 2 else xp.matmul(means[:, None, :], precision)[:, 0, :]
    return directions, -0.5 * xp.sum(directions * means, axis=1)


def discriminant(features: Array, directions: Array, offsets: Array) -> Array:
    """Eq. 4: g_k = mu_k^T P x - 1/2 mu_k^T P mu_k, (n, K), with directions and offsets from `linear_head`.

    >>> import numpy as np
    >>> discriminant(np.array([[1.0, 0.0]]), *linear_head(np.eye(2), 2 * np.eye(2)))
    array([[ 1., -1.]])
    """
    return features @ directions.T + offsets


def bank_term(features: Array, bank_features: Array, weights: Array) -> Array:
    """r_k = sum_{j in B_k} max(0, x.x_j) p_j, (n, K)."""
    xp = namespace(features)
    classes, slots, d = bank_features.shape
    cosines = features @ xp.reshape(bank_features, (classes * slots, d)).T
    agreeing = cosines * (cosines > 0) * xp.reshape(weights, (-1,))
    return xp.sum(xp.reshape(agreeing, (-1, classes, slots)), axis=2)


def fuse(log_posterior: Array, discriminants: Array, bank_terms: Array | float = 0.0) -> Array:
    """Eq. 8 before its softmax: log y_k + g_k + r_k."""
    return log_posterior + discriminants + bank_terms


@dataclass(frozen=True)
class AdaptSettings:
    """The settings of ADAPT that determine the Gaussians and the fusion."""

    alpha: float
    beta: float | None
    use_bank_term: bool
    update_mean: bool
    update_covariance: bool
    per_class: bool


class Evidence(Protocol):
    """What has been learned: the knowledge bank, or soft counts if the bank is off."""

    @property
    def size(self) -> int: ...
    @property
    def counts(self) -> np.ndarray: ...
    def pin(self, features: Array, labels: np.ndarray) -> None: ...
    def offer(self, features: Array, log_posterior: Array) -> bool: ...
    def sums(self) -> tuple[Array, Array]: ...
    def sums_with(self, features: Array, posterior: Array, *, include_empty: bool) -> tuple[Array, Array]: ...
    def scatter(self, means: Array, *, per_class: bool = False) -> Array: ...
    def term(self, features: Array) -> Array: ...
    def state(self) -> tuple[dict[str, Array], dict[str, Any]]: ...
    def restore(self, arrays: Mapping[str, Array], values: Mapping[str, Any]) -> None: ...


@dataclass(frozen=True)
class Gaussians:
    """Class-conditional Gaussians: means (K, d), precision (d, d) or (K, d, d), and their linear classifier."""

    means: Array
    precision: Array
    directions: Array
    offsets: Array
    bounded: bool = False
    """Whether `SMALLEST_TRACE` bounds the precision."""

    @classmethod
    def of(cls, means: Array, precision: Array, *, bounded: bool = False) -> Gaussians:
        return cls(means, precision, *linear_head(means, precision), bounded)


Precision = Callable[[int, Array, float], tuple[Array, bool]]
"""`bounded_precision` of the covariance with this number (that of the class, or 0 if the classes share one)."""


def estimate(
    evidence: Evidence,
    sums: tuple[Array, Array],
    prototypes: Array,
    settings: AdaptSettings,
    precision_of: Precision = lambda number, scatter, count: bounded_precision(scatter, count),
) -> Gaussians:
    """Means from the weighted `sums` (Eq. 9, 12), covariance about them (Eq. 10), as `settings` says."""
    xp = namespace(prototypes)
    means = class_means(*sums, prototypes, settings.alpha, settings.beta) if settings.update_mean else prototypes
    classes, d = prototypes.shape
    bounded = False
    if not settings.update_covariance or evidence.size == 0:
        identity = xp.eye(d, dtype=prototypes.dtype, device=Backend.of(prototypes).device)
        precision = xp.broadcast_to(identity, (classes, d, d)) if settings.per_class else identity
    elif settings.per_class:
        scatters = evidence.scatter(means, per_class=True)
        of_classes = [precision_of(k, scatters[k], int(n)) for k, n in enumerate(evidence.counts)]
        precision = xp.stack([one for one, _ in of_classes])
        bounded = any(is_bounded for _, is_bounded in of_classes)
    else:
        precision, bounded = precision_of(0, evidence.scatter(means), evidence.size)
    return Gaussians.of(means, precision, bounded=bounded)


def score(
    features: Array, log_posterior: Array, gaussians: Gaussians, evidence: Evidence, settings: AdaptSettings
) -> Array:
    """log y + g + r (Eq. 8 before its softmax); without any evidence it is log y, the zero-shot classifier."""
    if evidence.size == 0:
        return log_posterior
    g = discriminant(features, gaussians.directions, gaussians.offsets)
    return fuse(log_posterior, g, evidence.term(features) if settings.use_bank_term else 0.0)
