"""OGA: Gaussians with one covariance, fitted to a small memory of the most confident samples."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from zeroshift.adapt.statistics import discriminant, linear_head
from zeroshift.arrays import Array, Backend, Rows, namespace, to_numpy
from zeroshift.linalg import ZERO_TRACE, add_to_diagonal, invert_positive, pseudo_inverse
from zeroshift.method import Method
from zeroshift.methods._shared.low_entropy_memory import LowEntropyMemory, MemoryPlan, check_memory
from zeroshift.methods._shared.similarity import normalize_rows, unit_rows
from zeroshift.parameters import Choice, Flag, Number, parameter, state
from zeroshift.state_checks import check_lengths, check_seen
from zeroshift.zero_shot import log_posterior, quantize, softmax, zero_shot_stats

__all__ = ["OGA", "PooledResiduals", "SharedGaussians", "dual_head", "fit", "isotropic", "precision_of"]

BLOCK_ROWS = 256
RENEWAL = 256
"""Updates after which the scatter is computed from the samples again, to remove accumulated rounding errors."""
TOO_LITTLE_SPREAD = 1e-8
"""Mean squared residual below which an updated scatter is too inaccurate."""
DUAL_SHARE = 0.5
"""Up to this many samples per dimension, inner products of samples are faster than a matrix over the dimensions."""
RIDGE_UP_TO = 4
"""Samples per dimension up to which covariance="auto" uses the ridge."""


class OGA(Method):
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
    overconfident = True
    protocol = "online"
    state_size = "K M d + K d + d^2, M = capacity"
    complexity = "O(K d) per sample; a batch that enters O(d^3 + K d^2) more"

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

    _memory: LowEntropyMemory = state(
        lambda self: LowEntropyMemory(
            Backend.of(self.prototypes), self.n_classes, self.capacity, self.dimension, ties="first slot"
        ),
        saved_as="",
        check=lambda self, memory: check_memory(memory, self.n_seen),
    )
    _gaussians: SharedGaussians = state(
        lambda self: isotropic(self._wide_prototypes),
        saved_as="",
        check=lambda self, gaussians: check_seen("age", gaussians.updates, self.n_seen),
    )

    def _prepare(self) -> None:
        backend = Backend.of(self.prototypes)
        self._wide_prototypes = backend.asarray(self.prototypes, backend.xp.float64)

    def _derive(self) -> None:
        gaussians, entropies, n_kept = self._gaussians, self._memory.entropies, int(self._memory.counts.sum())
        if gaussians.pooled is not None and gaussians.pooled.size != n_kept:
            raise ValueError(f"pooled is {gaussians.pooled.size}, but the memory contains {n_kept} samples")
        if self._can_estimate(entropies):
            residuals = partial(self._residuals, gaussians.means, entropies)
            self._gaussians = fit(
                gaussians.means, residuals, n_kept, self.covariance, gaussians.pooled, gaussians.updates
            )

    @property
    def means(self) -> Array:
        """Class means (K, d), float64; the prototype while a class has fewer than two samples."""
        return Backend.of(self.prototypes).copy(self._gaussians.means)

    @property
    def precision_matrix(self) -> Array:
        """Precision matrix of all classes (d, d), float64; d I until some class has three samples."""
        if not self._can_estimate(self._memory.entropies):
            backend = Backend.of(self.prototypes)
            return self.dimension * backend.xp.eye(self.dimension, dtype=backend.xp.float64, device=backend.device)
        return precision_of(self._pooled(), self.covariance)

    @property
    def residual_covariance(self) -> Array:
        """Unbiased covariance M (d, d) of the samples kept about their class means; I / d until some class has three
        samples."""
        if not self._can_estimate(self._memory.entropies):
            backend = Backend.of(self.prototypes)
            return backend.xp.eye(self.dimension, dtype=backend.xp.float64, device=backend.device) / self.dimension
        pooled = self._pooled()
        return pooled.scatter / (pooled.size - 1)

    def _pooled(self) -> PooledResiduals:
        gaussians = self._gaussians
        return gaussians.pooled or PooledResiduals.of(self._residuals(gaussians.means, self._memory.entropies))

    @property
    def bank_counts(self) -> Array:
        """Samples kept per class (K,)."""
        backend = Backend.of(self.prototypes)
        return backend.xp.asarray(self._memory.counts, device=backend.device)

    def _adapt_scores(self, rows: Rows) -> Iterator[tuple[slice, Array]]:
        for block, x in rows.blocks(max(1, BLOCK_ROWS // self.batch_size) * self.batch_size):
            stats = zero_shot_stats(x, self._wide_prototypes, self.logit_scale)
            classes, entropies = to_numpy(stats.classes), self._exclude_uniform(-to_numpy(stats.confidences))
            entering = self._memory.plan(classes, entropies).rows // self.batch_size * self.batch_size
            # All samples before the next batch that enters are predicted with the same Gaussians.
            starts = np.unique(np.concatenate([[0], entering])).tolist()
            changing = set(entering.tolist())
            for start, stop in zip(starts, [*starts[1:], x.shape[0]], strict=True):
                batch = slice(start, min(start + self.batch_size, stop))
                gaussians, plan = self._gaussians, None
                if start in changing:
                    plan = self._memory.plan(classes[batch], entropies[batch])
                    gaussians = self._updated(plan, x[batch])
                scores = self._posterior(x[start:stop], stats.log_y[start:stop], gaussians)
                with self._learning(stop - start):
                    if plan is not None:
                        self._memory.apply(plan, x[batch])
                        self._gaussians = gaussians
                yield slice(block.start + start, block.start + stop), scores

    def _exclude_uniform(self, entropies: np.ndarray) -> np.ndarray:
        """Entropies with infinity for samples with a uniform posterior, which never enter the memory."""
        largest = quantize(np.array([math.log(self.n_classes)]))
        return np.where(quantize(entropies) < largest, entropies, np.inf)

    def _posterior(self, features: Array, log_y: Array, gaussians: SharedGaussians) -> Array:
        return softmax(log_y + self.tau * discriminant(features, *gaussians.head))

    def _predict_scores(self, features: Array) -> Array:
        log_y = log_posterior(features, self._wide_prototypes, self.logit_scale)
        # The initial Gaussians about the prototypes would sharpen the posterior without having seen a sample.
        return self._posterior(features, log_y, self._gaussians) if self.n_seen else namespace(features).exp(log_y)

    def _probabilities(self, scores: Array) -> Array:
        return normalize_rows(scores)

    def _updated(self, plan: MemoryPlan, features: Array) -> SharedGaussians:
        """The Gaussians after the planned insertions; the memory does not change."""
        backend, before = Backend.of(features), self._gaussians
        kept = plan.kept()
        slots, entering = plan.slots[kept], features[backend.index(plan.rows[kept])]
        classes, position = np.unique(slots // self.capacity, return_inverse=True)
        chosen = backend.index(classes)
        old = self._memory.features[chosen]
        new = backend.copy(old)
        new[backend.index(position), backend.index(slots % self.capacity)] = entering
        old_mask, new_mask = np.isfinite(self._memory.entropies[classes]), np.isfinite(plan.entropies[classes])
        means = backend.copy(before.means)
        means[chosen] = self._class_means(new, new_mask, before.means[chosen])
        pooled, updates = None, before.updates + 1
        if before.pooled is not None and updates < RENEWAL:
            old_residuals = _class_residuals(old, old_mask, before.means[chosen])
            pooled = before.pooled.exchanged(old_residuals, _class_residuals(new, new_mask, means[chosen]))
        if not self._can_estimate(plan.entropies):
            return isotropic(means)
        size = int(np.isfinite(plan.entropies).sum())
        residuals = partial(self._residuals, means, plan.entropies, slots, entering)
        return fit(means, residuals, size, self.covariance, pooled, updates)

    def _residuals(
        self, means: Array, entropies: np.ndarray, slots: np.ndarray | None = None, entering: Array | None = None
    ) -> Array:
        """The samples kept (n, d) minus their class means, with `entering` in its slots."""
        backend = Backend.of(means)
        occupied = np.flatnonzero(np.isfinite(entropies))
        samples = backend.xp.reshape(self._memory.features, (-1, self.dimension))[backend.index(occupied)]
        if slots is not None:
            samples[backend.index(np.searchsorted(occupied, slots))] = entering
        return samples - means[backend.index(occupied // self.capacity)]

    def _class_means(self, samples: Array, mask: np.ndarray, present: Array) -> Array:
        """Means (k, d) of the samples (k, M, d) in the mask; classes with fewer than two keep their present mean."""
        backend, xp = Backend.of(samples), namespace(samples)
        counts = mask.sum(axis=1)
        divisor = np.full(len(counts), float(self.capacity)) if self.released else np.maximum(counts, 1.0)
        means = xp.sum(samples, axis=1) / backend.asarray(divisor, xp.float64)[:, None]  # empty slots contain zeros
        means = unit_rows(means) if self.normalize_means else means
        return xp.where(backend.index(counts >= 2)[:, None], means, present)

    def _can_estimate(self, entropies: np.ndarray) -> bool:
        """Whether some class has three samples, as the authors require."""
        return bool((np.isfinite(entropies).sum(axis=1) > 2).any())


def _class_residuals(samples: Array, mask: np.ndarray, means: Array) -> Array:
    """(n, d): the samples (k, M, d) in the mask, minus their class means (k, d)."""
    return (samples - means[:, None, :])[Backend.of(samples).index(mask)]


class PooledResiduals(NamedTuple):
    """Residuals of samples about their class means, all classes pooled: scatter (d, d) about their mean, sum (d,) and
    number. Updated as samples enter and leave, but never in place.

    >>> import numpy as np
    >>> pooled = PooledResiduals.of(np.array([[1.0, 0.0], [-1.0, 0.0], [0.0, 3.0]]))
    >>> pooled.scatter
    array([[2., 0.],
           [0., 6.]])
    >>> pooled.exchanged(np.array([[0.0, 3.0]]), np.array([[0.0, 0.0]])).scatter.round(12)
    array([[2., 0.],
           [0., 0.]])
    """

    scatter: Array
    total: Array
    size: int

    @classmethod
    def empty(cls, backend: Backend, dimension: int) -> PooledResiduals:
        return cls(backend.zeros((dimension, dimension)), backend.zeros((dimension,)), 0)

    @classmethod
    def of(cls, residuals: Array) -> PooledResiduals:
        """From residuals (n, d). Exact even if they hardly differ, unlike `exchanged`."""
        xp = namespace(residuals)
        centred = residuals - xp.mean(residuals, axis=0)
        return cls(centred.T @ centred, xp.sum(residuals, axis=0), residuals.shape[0])

    def exchanged(self, old: Array, new: Array) -> PooledResiduals:
        """With the residuals `old` (a, d) replaced by `new` (b, d)."""
        xp = namespace(new)
        total = self.total + xp.sum(new, axis=0) - xp.sum(old, axis=0)
        size = self.size - old.shape[0] + new.shape[0]
        # The scatter about the mean is the sum of squares minus that of the mean.
        added = xp.concat([new, self.total[None, :] / self.size**0.5])
        removed = xp.concat([old, total[None, :] / size**0.5])
        scatter = self.scatter + added.T @ added
        scatter -= removed.T @ removed
        return PooledResiduals(scatter, total, size)

    def trace(self) -> float:
        """Trace of the scatter."""
        return float(namespace(self.scatter).linalg.trace(self.scatter))


@dataclass(frozen=True)
class SharedGaussians:
    """Class means (K, d) and one precision matrix P for all classes."""

    means: Array
    head: tuple[Array, Array]
    """Directions P mu_k (K, d) and offsets -1/2 mu_k^T P mu_k (K,)."""
    pooled: PooledResiduals | None = None
    """Kept if updating it from fit to fit is faster than computing it again."""
    updates: int = 0
    """Updates since `pooled` was computed from the samples."""

    def state(self) -> tuple[dict[str, Array], dict[str, Any]]:
        # None is saved as zeros: files have the same arrays whatever was learned.
        pooled = self.pooled or PooledResiduals.empty(Backend.of(self.means), self.means.shape[1])
        arrays = {"means": self.means, "scatter": pooled.scatter, "total": pooled.total}
        return arrays, {"pooled": pooled.size, "age": self.updates}

    def restore(self, arrays: Mapping[str, Array], values: Mapping[str, Any]) -> SharedGaussians:
        """With the isotropic head; `fit` computes the right one."""
        for name, own in self.state()[0].items():
            if tuple(arrays[name].shape) != tuple(own.shape):
                raise ValueError(f"{name} has shape {tuple(arrays[name].shape)}, not {tuple(own.shape)}")
        check_lengths("means", arrays["means"])
        size = int(values["pooled"])
        pooled = PooledResiduals(arrays["scatter"], arrays["total"], size) if size else None
        return replace(isotropic(arrays["means"]), pooled=pooled, updates=int(values["age"]))


def isotropic(means: Array) -> SharedGaussians:
    """Gaussians with the precision matrix d I."""
    d = means.shape[1]
    return SharedGaussians(means, (d * means, -0.5 * d * namespace(means).sum(means * means, axis=1)))


def fit(
    means: Array,
    residuals: Callable[[], Array],
    size: int,
    covariance: str,
    pooled: PooledResiduals | None,
    updates: int,
) -> SharedGaussians:
    """Gaussians about `means` with the covariance of `size` residuals, which are computed only if `pooled` is not
    accurate enough."""
    if pooled is not None and pooled.trace() < TOO_LITTLE_SPREAD * size:
        pooled = None
    if pooled is None:
        rows, updates = residuals(), 0
        if _uses_ridge(covariance, size, means.shape[1]) and size <= DUAL_SHARE * means.shape[1]:
            return SharedGaussians(means, dual_head(means, rows))
        pooled = PooledResiduals.of(rows)
    return SharedGaussians(means, linear_head(means, precision_of(pooled, covariance)), pooled, updates)


def _uses_ridge(covariance: str, size: int, dimension: int) -> bool:
    return covariance == "ridge" or (covariance == "auto" and size <= RIDGE_UP_TO * dimension)


def precision_of(pooled: PooledResiduals, covariance: str) -> Array:
    """d ((n - 1) M + tr(M) I)^-1 or the pseudo-inverse of M, the covariance of the residuals; zero without spread.

    >>> import numpy as np
    >>> pooled = PooledResiduals.of(np.array([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]]))
    >>> precision_of(pooled, "pinv"), precision_of(pooled, "ridge").round(2)
    (array([[1.5, 0. ],
           [0. , 1.5]]), array([[0.6, 0. ],
           [0. , 0.6]]))
    """
    backend, d = Backend.of(pooled.scatter), pooled.scatter.shape[0]
    trace = pooled.trace() / (pooled.size - 1)
    if trace <= ZERO_TRACE:
        return backend.xp.zeros_like(pooled.scatter)
    if _uses_ridge(covariance, pooled.size, d):
        return d * invert_positive(add_to_diagonal(backend.copy(pooled.scatter), trace))
    return pseudo_inverse(pooled.scatter / (pooled.size - 1))


def dual_head(means: Array, residuals: Array) -> tuple[Array, Array]:
    """Directions P mu_k (K, d) and offsets -1/2 mu_k^T P mu_k (K,) with the ridge precision P = d (S + rho I)^-1, S the
    scatter of the residuals (n, d) about their mean and rho its trace / (n - 1). Computed with an n x n matrix:

        rho (S + rho I)^-1 = I - R^T (R R^T + rho I)^-1 R.

    >>> import numpy as np
    >>> directions, offsets = dual_head(np.eye(2), np.array([[0.2, 0.0], [0.0, 0.0]]))  # S = diag(0.02, 0), rho = 0.02
    >>> directions, offsets
    (array([[ 50.,   0.],
           [  0., 100.]]), array([-25., -50.]))
    """
    xp = namespace(residuals)
    n, d = residuals.shape
    centred = residuals - xp.mean(residuals, axis=0)
    gram = centred @ centred.T
    ridge = float(xp.linalg.trace(gram)) / (n - 1)
    if ridge <= ZERO_TRACE:
        return xp.zeros_like(means), xp.zeros_like(means[:, 0])
    directions = means - ((means @ centred.T) @ invert_positive(add_to_diagonal(gram, ridge))) @ centred
    directions *= d / ridge
    return directions, -0.5 * xp.sum(directions * means, axis=1)
