"""The class-conditional Gaussians: estimated from evidence (a bank, or soft counts), scored as a linear classifier."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from zeroshift.adapt.statistics import class_means, discriminant, fuse, linear_head, ridge_precision
from zeroshift.arrays import Array, Home, namespace

__all__ = ["Evidence", "Gaussians", "Rule", "estimate", "score"]


@dataclass(frozen=True)
class Rule:
    """The switches of the paper's experiments that shape the Gaussians and the fusion."""

    alpha: float
    beta: float | None
    use_bank_term: bool
    update_mean: bool
    update_covariance: bool
    per_class: bool


class Evidence(Protocol):
    """What has been learned: the knowledge bank, or soft counts where the bank is off."""

    @property
    def size(self) -> int: ...
    @property
    def counts(self) -> np.ndarray: ...
    def pin(self, features: Array, labels: np.ndarray) -> None: ...
    def offer(self, features: Array, log_posterior: Array) -> bool: ...
    def forget_undo(self) -> None: ...
    def undo(self) -> None: ...
    def sums(self) -> tuple[Array, Array]: ...
    def sums_with(self, features: Array, posterior: Array, *, everywhere: bool) -> tuple[Array, Array]: ...
    def scatter(self, means: Array, *, per_class: bool = False) -> Array: ...
    def term(self, features: Array) -> Array: ...
    def arrays(self) -> dict[str, Array]: ...
    def restore(self, arrays: Mapping[str, Array]) -> None: ...


@dataclass(frozen=True)
class Gaussians:
    """Means (K, d), precision (d, d) or (K, d, d), and the linear classifier they make."""

    means: Array
    precision: Array
    directions: Array
    offsets: Array

    @classmethod
    def of(cls, means: Array, precision: Array) -> Gaussians:
        return cls(means, precision, *linear_head(means, precision))


def estimate(evidence: Evidence, sums: tuple[Array, Array], prototypes: Array, rule: Rule) -> Gaussians:
    """Means from the weighted `sums` (Eq. 9, 12), covariance of the evidence about them (Eq. 10), as `rule` allows."""
    xp = namespace(prototypes)
    means = class_means(*sums, prototypes, rule.alpha, rule.beta) if rule.update_mean else prototypes
    classes, d = prototypes.shape
    if not rule.update_covariance or evidence.size == 0:
        identity = xp.eye(d, dtype=prototypes.dtype, device=Home.of(prototypes).device)
        precision = xp.broadcast_to(identity, (classes, d, d)) if rule.per_class else identity
    elif rule.per_class:
        scatters = evidence.scatter(means, per_class=True)
        precision = xp.stack([ridge_precision(scatters[k], int(n)) for k, n in enumerate(evidence.counts)])
    else:
        precision = ridge_precision(evidence.scatter(means), evidence.size)
    return Gaussians.of(means, precision)


def score(features: Array, log_posterior: Array, gaussians: Gaussians, evidence: Evidence, rule: Rule) -> Array:
    """log y + g + r (Eq. 8 before its softmax); with no evidence at all, log y: the zero-shot classifier unchanged."""
    if evidence.size == 0:
        return log_posterior
    g = discriminant(features, gaussians.directions, gaussians.offsets)
    return fuse(log_posterior, g, evidence.term(features) if rule.use_bank_term else 0.0)
