"""OGA: Gaussians with one covariance, fitted to a small memory of the most confident samples."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, NamedTuple

import numpy as np

from zeroshift.adapt.engines.precision_primal import polynomial, polynomial_error
from zeroshift.adapt.engines.precision_simple import RECOMPUTE_WORK
from zeroshift.adapt.engines.woodbury import moment_decrease
from zeroshift.adapt.statistics import discriminant, linear_head
from zeroshift.arrays import Array, Backend, Rows, namespace, to_numpy
from zeroshift.frozen import Expression
from zeroshift.linalg import ZERO_TRACE, add_to_diagonal, invert_positive, pseudo_inverse, subtract_product
from zeroshift.method import Method
from zeroshift.methods._shared.low_entropy_memory import LowEntropyMemory, MemoryPlan, check_memory
from zeroshift.methods._shared.similarity import normalize_rows, unit_rows
from zeroshift.parameters import Choice, Flag, Number, parameter, state
from zeroshift.state_checks import check_lengths, check_seen
from zeroshift.zero_shot import log_posterior, quantize, softmax, zero_shot_stats

__all__ = [
    "OGA",
    "DualHead",
    "MaintainedGaussians",
    "PooledResiduals",
    "SharedGaussians",
    "fit",
    "isotropic",
    "precision_of",
]

BLOCK_ROWS = 256
RENEWAL = 256
"""Updates after which the scatter is computed from the samples again, to remove accumulated rounding errors."""
TOO_LITTLE_SPREAD = 1e-8
"""Mean squared residual below which an updated scatter is too inaccurate."""
DUAL_SHARE = 0.5
"""Up to this many samples per dimension, inner products of samples are faster than a matrix over the dimensions."""
RIDGE_UP_TO = 4
"""Samples per dimension up to which covariance="auto" uses the ridge."""

DEGREE = 5
"""Powers of the inverse by which a changed ridge is taken into account, see `MaintainedGaussians`."""
SCORE_TOLERANCE = 1e-6
"""Bound on the error of a discriminant caused by that; discriminants are multiplied by `tau`."""
LARGEST_DRIFT = 1e-10
"""Relative residual of a maintained inverse above which it is computed again."""
CHECK_EVERY = 32
"""Updates between two checks of that residual."""
SMALLEST_SPREAD = 1e-3
"""Mean squared residual (a distance of 0.03) below which no inverse is maintained: its rounding errors would matter."""
SMALLEST_PIVOT = 1e-6
"""Smallest squared pivot, relative to the largest, of a scatter without a ridge whose inverse is maintained."""
NO_CHANGE = 1e-24
"""Squared length up to which a row of an update is rounding noise."""
LARGEST_CONDITION = 1e8
"""Condition of the small matrix of an update above which everything is computed again."""
MOST_UPDATES = 6
"""Samples of one batch up to which updating the inverse for each of them is faster than computing it again."""


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
    headline = "Gaussians from samples of low entropy"
    overconfident = True
    protocol = "online"
    state_size = "K M d + K d + 2 d^2, M = capacity"
    complexity = "O(K d) per sample, O(K d + d^2) if it enters the memory; O(d^3 + K d^2) now and then"

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
    _gaussians: SharedGaussians | MaintainedGaussians = state(
        lambda self: isotropic(self._wide_prototypes),
        saved_as="",
        check=lambda self, gaussians: check_seen("age", gaussians.updates, self.n_seen),
    )

    def _prepare(self) -> None:
        backend = Backend.of(self.prototypes)
        self._wide_prototypes = backend.asarray(self.prototypes, backend.xp.float64)

    def _derive(self) -> None:
        gaussians, entropies, n_kept = self._gaussians, self._memory.entropies, int(self._memory.counts.sum())
        pooled = gaussians.pooled
        if pooled is not None and pooled.size != n_kept:
            raise ValueError(f"pooled is {pooled.size}, but the memory contains {n_kept} samples")
        if self._can_estimate(entropies) and isinstance(gaussians, SharedGaussians):
            residuals = partial(self._residuals, gaussians.means, entropies)
            self._gaussians = fit(gaussians.means, residuals, n_kept, self.covariance, pooled, gaussians.updates)

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
                plan = self._memory.plan(classes[batch], entropies[batch]) if start in changing else None
                with self._learning(stop - start):
                    if plan is not None:
                        self._gaussians = self._updated(plan, x[batch])
                        self._memory.apply(plan, x[batch])
                gaussians, log_y = self._gaussians, stats.log_y[start:stop]
                if plan is not None and stop - start == 1 and gaussians.newest is not None:
                    scores = softmax(log_y + self.tau * gaussians.newest)
                else:
                    scores = self._posterior(x[start:stop], log_y)
                yield slice(block.start + start, block.start + stop), scores

    def _exclude_uniform(self, entropies: np.ndarray) -> np.ndarray:
        """Entropies with infinity for samples with a uniform posterior, which never enter the memory."""
        largest = quantize(np.array([math.log(self.n_classes)]))
        return np.where(quantize(entropies) < largest, entropies, np.inf)

    def _posterior(self, features: Array, log_y: Array) -> Array:
        return softmax(log_y + self.tau * self._gaussians.discriminants(features))

    def _predict_scores(self, features: Array) -> Array:
        log_y = log_posterior(features, self._wide_prototypes, self.logit_scale)
        # The initial Gaussians about the prototypes would sharpen the posterior without having seen a sample.
        return self._posterior(features, log_y) if self.n_seen else namespace(features).exp(log_y)

    def _frozen(self, x: Expression) -> Expression:
        weights, offsets = self._affine(self._gaussians.discriminants)
        tau = self.tau if self.n_seen else 0.0
        text = self.logit_scale * to_numpy(self._wide_prototypes)
        return x.linear(text + tau * weights, tau * offsets).softmax()

    def _probabilities(self, scores: Array) -> Array:
        return normalize_rows(scores)

    def _updated(self, plan: MemoryPlan, features: Array) -> SharedGaussians | MaintainedGaussians:
        """The Gaussians after the planned insertions; the memory does not change."""
        backend, before = Backend.of(features), self._gaussians
        kept = plan.kept()
        slots, entering = plan.slots[kept], features[backend.index(plan.rows[kept])]
        if isinstance(before, MaintainedGaussians):
            if len(kept) <= MOST_UPDATES and before.updates + len(kept) < RENEWAL:
                for slot, x in zip(slots.tolist(), entering, strict=True):
                    self._insert(before, slot, x, slots, entering)
                if before.is_sound:
                    return before
            before = before.shared
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

    def _insert(self, gaussians: MaintainedGaussians, slot: int, x: Array, slots: np.ndarray, entering: Array) -> None:
        """Update the Gaussians by a sample that enters the memory; earlier ones of `slots` have entered before it."""
        backend = Backend.of(x)
        k = slot // self.capacity
        own = backend.copy(self._memory.features[k])
        occupied = np.isfinite(self._memory.entropies[k])
        for other, sample in zip(slots.tolist(), entering, strict=True):
            if other == slot:
                break
            if other // self.capacity == k:
                own[other % self.capacity], occupied[other % self.capacity] = sample, True
        place = slot % self.capacity
        old = backend.copy(own[place]) if occupied[place] else None
        total, count = backend.xp.sum(own, axis=0), int(occupied.sum())
        own[place], occupied[place] = x, True
        mean = self._class_means(own[None], occupied[None], gaussians.means[k][None])[0]
        gaussians.insert(k, x, old, total, count, mean)

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
    head: tuple[Array, Array] | DualHead
    """Directions P mu_k (K, d) and offsets -1/2 mu_k^T P mu_k (K,), or another form of the same."""
    pooled: PooledResiduals | None = None
    """Kept if updating it from fit to fit is faster than computing it again."""
    updates: int = 0
    """Updates since `pooled` was computed from the samples."""

    newest: ClassVar[None] = None

    def discriminants(self, features: Array) -> Array:
        """mu_k^T P x - 1/2 mu_k^T P mu_k, (n, K)."""
        if isinstance(self.head, DualHead):
            return self.head.discriminants(features)
        return discriminant(features, *self.head)

    def state(self) -> tuple[dict[str, Array], dict[str, Any]]:
        # None is saved as zeros: files have the same arrays whatever was learned.
        pooled = self.pooled or PooledResiduals.empty(Backend.of(self.means), self.means.shape[1])
        arrays = {"means": self.means, "scatter": pooled.scatter, "total": pooled.total}
        return arrays, {"pooled": pooled.size, "age": self.updates}

    def restore(self, arrays: Mapping[str, Array], values: Mapping[str, Any]) -> SharedGaussians | MaintainedGaussians:
        """With the isotropic head, and `fit` computes the right one; or with the maintained inverse."""
        for name, own in self.state()[0].items():
            if tuple(arrays[name].shape) != tuple(own.shape):
                raise ValueError(f"{name} has shape {tuple(arrays[name].shape)}, not {tuple(own.shape)}")
        check_lengths("means", arrays["means"])
        size = int(values["pooled"])
        pooled = PooledResiduals(arrays["scatter"], arrays["total"], size) if size else None
        if pooled is not None and "contraction" in arrays:
            return MaintainedGaussians.restored(arrays["means"], pooled, arrays, values)
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
) -> SharedGaussians | MaintainedGaussians:
    """Gaussians about `means` with the covariance of `size` residuals, which are computed only if `pooled` is not
    accurate enough."""
    if pooled is not None and pooled.trace() < TOO_LITTLE_SPREAD * size:
        pooled = None
    if pooled is None:
        rows, updates = residuals(), 0
        if _uses_ridge(covariance, size, means.shape[1]) and size <= DUAL_SHARE * means.shape[1]:
            return SharedGaussians(means, DualHead.of(means, rows))
        pooled = PooledResiduals.of(rows)
    if MaintainedGaussians.suits(means, pooled, covariance):
        return MaintainedGaussians(means, pooled, covariance, updates)
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


class DualHead(NamedTuple):
    """The discriminants with the ridge precision P = d (S + rho I)^-1, S the scatter of n residuals about their mean
    and rho its trace / (n - 1), computed with an n x n matrix. With R the residuals (n, d) minus their mean,

        rho (S + rho I)^-1 = I - R^T (R R^T + rho I)^-1 R.

    >>> import numpy as np
    >>> head = DualHead.of(np.eye(2), np.array([[0.2, 0.0], [0.0, 0.0]]))  # S = diag(0.02, 0), rho = 0.02
    >>> head.discriminants(np.array([[1.0, 0.0]]))
    array([[ 25., -50.]])
    """

    means: Array
    residuals: Array
    """R (n, d)."""
    solved: Array
    """(K, n): means R^T (R R^T + rho I)^-1."""
    scale: float
    """d / rho; 0 without spread."""
    offsets: Array

    @classmethod
    def of(cls, means: Array, residuals: Array) -> DualHead:
        xp = namespace(residuals)
        n, d = residuals.shape
        centred = residuals - xp.mean(residuals, axis=0)
        gram = centred @ centred.T
        ridge = float(xp.linalg.trace(gram)) / (n - 1)
        projected = means @ centred.T
        if ridge <= ZERO_TRACE:
            return cls(means, centred, 0 * projected, 0.0, 0 * means[:, 0])
        solved = projected @ invert_positive(add_to_diagonal(gram, ridge))
        quadratic = xp.sum(means * means, axis=1) - xp.sum(projected * solved, axis=1)
        return cls(means, centred, solved, d / ridge, (-0.5 * d / ridge) * quadratic)

    def discriminants(self, features: Array) -> Array:
        """mu_k^T P x - 1/2 mu_k^T P mu_k, (n, K)."""
        cross = features @ self.means.T - (features @ self.residuals.T) @ self.solved.T
        return self.scale * cross + self.offsets


class MaintainedGaussians:
    """Class means (K, d) and one precision matrix P for all classes, updated in place as single samples enter.

    With the scatter S of the n residuals, rho = tr(S) / (n - 1) and C(rho) = rho (S + rho I)^-1, P is (d / rho) C(rho).
    One sample changes S by B^T M B with a few rows B, and rho a little. Kept are C = C(rho0) and the moments
    mu_k^T C^t mu_k of all classes, t = 1 to `DEGREE`. Woodbury's formula, as a power series in the ridge, updates them
    (`zeroshift.adapt.engines.woodbury`), and C(rho) is a polynomial in C; both are computed again when the bound on
    the polynomial's error exceeds `SCORE_TOLERANCE`. Without the ridge, P is (n - 1) S^-1, and one moment is enough.
    """

    def __init__(self, means: Array, pooled: PooledResiduals, covariance: str, updates: int = 0) -> None:
        backend = Backend.of(means)
        self._covariance = covariance
        self.means = backend.copy(means)
        self._scatter, self._total, self.size = backend.copy(pooled.scatter), pooled.total, pooled.size
        self._trace = pooled.trace()
        self._waiting: list[tuple[Array, Array]] = []
        self.updates = updates
        self._factorise()

    @property
    def pooled(self) -> PooledResiduals:
        scatter = self._scatter
        if self._waiting:
            rows, weighted = self._waiting_rows()
            scatter = scatter + rows.T @ weighted
        return PooledResiduals(scatter, self._total, self.size)

    def _waiting_rows(self) -> tuple[Array, Array]:
        """Changes B and M B that are not yet part of the scatter."""
        xp = namespace(self._scatter)
        return xp.concat([rows for rows, _ in self._waiting]), xp.concat([weighted for _, weighted in self._waiting])

    @classmethod
    def suits(cls, means: Array, pooled: PooledResiduals, covariance: str) -> bool:
        """Whether maintaining the inverse is faster than computing it, and accurate."""
        (classes, d), size = means.shape, pooled.size
        if (size + d + classes) * d * d <= RECOMPUTE_WORK or pooled.trace() < SMALLEST_SPREAD * size:
            return False
        return size > DUAL_SHARE * d if _uses_ridge(covariance, size, d) else _has_large_pivots(pooled.scatter)

    @classmethod
    def restored(
        cls, means: Array, pooled: PooledResiduals, arrays: Mapping[str, Array], values: Mapping[str, Any]
    ) -> MaintainedGaussians:
        """From what `state` returned."""
        gaussians = cls.__new__(cls)
        (classes, d), waiting = means.shape, int(values["waiting"])
        gaussians.means, gaussians.updates = means, int(values["age"])
        gaussians._scatter, gaussians._total, gaussians.size = pooled
        gaussians._covariance, gaussians._rho0 = str(values["maintained"]), float(values["rho0"])
        gaussians._trace = float(values["trace"])
        if not (gaussians._rho0 > 0 and gaussians._trace > 0):
            raise ValueError(f"rho0 and trace must be above 0; they are {gaussians._rho0:g} and {gaussians._trace:g}")
        degree = DEGREE if _uses_ridge(gaussians._covariance, pooled.size, d) else 1
        shapes = {"contraction": (d, d), "moments": (degree, classes)}
        if waiting:
            shapes |= {"waiting": (waiting, d), "waiting_weighted": (waiting, d)}
        for name, shape in shapes.items():
            if tuple(arrays[name].shape) != shape:
                raise ValueError(f"{name} has shape {tuple(arrays[name].shape)}, not {shape}")
        gaussians._contraction, gaussians._moments = arrays["contraction"], arrays["moments"]
        gaussians._waiting = [(arrays["waiting"], arrays["waiting_weighted"])] if waiting else []
        gaussians._move_to_ridge()
        return gaussians

    def state(self) -> tuple[dict[str, Array], dict[str, Any]]:
        arrays = {"means": self.means, "scatter": self._scatter, "total": self._total}
        arrays |= {"contraction": self._contraction, "moments": self._moments}
        values = {"pooled": self.size, "age": self.updates, "maintained": self._covariance, "rho0": self._rho0}
        waiting = sum(rows.shape[0] for rows, _ in self._waiting)
        if waiting:
            arrays["waiting"], arrays["waiting_weighted"] = self._waiting_rows()
        return arrays, {**values, "trace": self._trace, "waiting": waiting}

    @property
    def shared(self) -> SharedGaussians:
        """The means and the scatter, from which `fit` computes everything else."""
        return replace(isotropic(self.means), pooled=self.pooled, updates=self.updates)

    @property
    def is_sound(self) -> bool:
        """Whether the updated numbers are accurate; otherwise compute them again from the samples."""
        return self._trace >= SMALLEST_SPREAD * self.size and self._is_invertible

    def _factorise(self) -> None:
        """Compute the inverse and the moments from the scatter."""
        xp = namespace(self.means)
        self._add_waiting()
        scatter, d = self._scatter, self.means.shape[1]
        self._is_invertible = True
        if _uses_ridge(self._covariance, self.size, d):
            self._rho0, degree = self._trace / (self.size - 1), DEGREE
            shifted = add_to_diagonal(Backend.of(scatter).copy(scatter), self._rho0)
        else:
            self._rho0, degree, shifted = self._trace / d, 1, scatter
            self._is_invertible = _has_large_pivots(scatter)
            if not self._is_invertible:
                return
        # Contiguous, as it is after loading: products of another layout round differently.
        self._contraction = Backend.of(scatter).zeros((d, d))
        self._contraction[:, :] = self._rho0 * invert_positive(shifted)
        powers = [self.means]
        for _ in range((degree + 1) // 2):
            powers.append(powers[-1] @ self._contraction)
        self._moments = xp.stack([xp.sum(powers[t // 2] * powers[t - t // 2], axis=1) for t in range(1, degree + 1)])
        self._move_to_ridge()

    def _add_waiting(self) -> None:
        if self._waiting:
            rows, weighted = self._waiting_rows()
            self._scatter += rows.T @ weighted
            self._waiting = []

    def _move_to_ridge(self) -> None:
        """Compute the polynomial for the present ridge, and the offsets."""
        d, size = self.means.shape[1], self.size
        self._ridge = _uses_ridge(self._covariance, size, d)
        self._is_invertible = True
        degree = self._moments.shape[0]
        if self._ridge:
            rho = self._trace / (size - 1)
            self._e, self._scale = rho / self._rho0 - 1.0, d / rho
        else:
            self._e, self._scale = 0.0, (size - 1) / self._rho0
        self._coefficients = polynomial(self._e, degree)
        self._offsets = (-0.5 * self._scale) * (Backend.of(self._moments).asarray(self._coefficients) @ self._moments)
        # Fewer powers are enough for a product with a sample, if the ridge has hardly changed.
        self._short = next((n for n in range(1, degree) if self._error(n) <= SCORE_TOLERANCE), degree)
        self.newest: Array | None = None
        """Discriminants (K,) of the sample that entered last, if the update computed them."""

    def _error(self, degree: int, largest: float = 1.0) -> float:
        """Bound on the error of a discriminant; `largest` is at least the largest mu_k^T C mu_k."""
        return polynomial_error(self._e, degree) * self._scale * (0.5 * largest + 1.01 * math.sqrt(largest))

    def insert(self, k: int, x: Array, old: Array | None, total: Array, count: int, mean: Array) -> None:
        """Update by a sample x (d,) that enters class k, where it replaces `old` (d,) or nothing.

        The class had `count` samples with the sum `total` (d,) before; `mean` (d,) is its new mean.
        """
        backend, xp = Backend.of(x), namespace(x)
        before, size = self.means[k], self.size + (old is None)
        changes, weights = self._changes(x, old, total, count, before, mean)
        # The sum of the residuals: that of the class was total - count * before.
        new_total = self._total + x + count * before - (count + (old is None)) * mean
        if old is not None:
            new_total = new_total - old
        rows = xp.stack([*changes, self._total, new_total])
        weights = np.diag([*np.zeros(len(weights)), 1 / self.size, -1 / size]) + np.pad(weights, (0, 2))
        # Classes have their true means mostly, so that most of the rows are zero except for rounding.
        present = np.flatnonzero(to_numpy(xp.sum(rows * rows, axis=1)) > NO_CHANGE)
        rows, weights = rows[backend.index(present)], weights[np.ix_(present, present)]
        r, q = len(weights), self._moments.shape[0]
        chain = [xp.concat([rows, mean[None, :], x[None, :]])]
        for _ in range(q):
            chain.append(chain[-1] @ self._contraction)
        powers = xp.stack(chain[1:])
        products = to_numpy(chain[0] @ xp.reshape(xp.concat(chain), (-1, x.shape[0])).T)
        products = products.reshape(r + 2, q + 1, r + 2).transpose(1, 0, 2)
        self._waiting.append((rows, backend.asarray(weights) @ rows))
        self.means[k] = mean
        self._total, self.size = new_total, size
        self._trace += float((weights * products[0, :r, :r]).sum())
        self.updates += 1
        series = _inverse_series(products[1:, :r, :r], weights, self._rho0)
        if series is None or not self._can_update(size):
            return self._factorise()
        spread = backend.asarray(_toeplitz(series))
        own_rows = xp.reshape(powers[:, :r, :], (q * r, -1))
        self._moments[:, k] = backend.asarray(np.ascontiguousarray(products[1:, r, r]))
        self._moments -= moment_decrease(own_rows @ self.means.T, spread, q)
        first = powers[0, :r, :]
        subtract_product(self._contraction, first.T @ backend.asarray(series[0]), first)
        self._move_to_ridge()
        # The powers of the new C times x, combined by the polynomial.
        solved = (_toeplitz(series) @ products[1:, :r, r + 1].reshape(-1)).reshape(q, r)
        terms = np.array([[self._coefficients[i + j] if i + j < q else 0.0 for j in range(q)] for i in range(q)])
        contracted = backend.asarray(self._coefficients) @ powers[:, r + 1, :]
        contracted = contracted - backend.asarray((terms @ solved).reshape(-1)) @ own_rows
        self.newest = self._scale * (self.means @ contracted) + self._offsets
        if self.updates % CHECK_EVERY == 0 and not self._is_accurate(x):
            self._factorise()

    @staticmethod
    def _changes(
        x: Array, old: Array | None, total: Array, count: int, before: Array, mean: Array
    ) -> tuple[list[Array], np.ndarray]:
        """Rows B and weights M with which the residuals of one class about its mean change by B^T M B."""
        if count == 0:
            return [x - mean], np.eye(1)
        centre = total / count
        if old is None:
            moved = (total + x) / (count + 1)
            return [x - centre, centre - before, moved - mean], np.diag([count / (count + 1.0), -count, count + 1.0])
        weights = np.diag([1.0 - 1 / count, -1.0 - 1 / count, -count, count])
        weights[0, 1] = weights[1, 0] = 1 / count
        moved = (total + x - old) / count
        return [x - centre, old - centre, centre - before, moved - mean], weights

    def _can_update(self, size: int) -> bool:
        """Whether the maintained inverse can represent the present ridge."""
        if _uses_ridge(self._covariance, size, self.means.shape[1]) != self._ridge:
            return False
        if not self._ridge:
            return True
        if self._trace <= 0:
            return False
        rho = self._trace / (size - 1)
        self._e, self._scale = rho / self._rho0 - 1.0, self.means.shape[1] / rho
        return self._error(DEGREE) <= SCORE_TOLERANCE

    def _is_accurate(self, probe: Array) -> bool:
        """Whether C (S + rho0 I) / rho0 is the identity for a probe (d,)."""
        self._add_waiting()
        answer = self._contraction @ probe
        residual = self._scatter @ answer / self._rho0 - probe
        if self._ridge:
            residual = residual + answer
        return bool(namespace(probe).sum(residual * residual) <= LARGEST_DRIFT**2)

    def discriminants(self, features: Array) -> Array:
        """mu_k^T P x - 1/2 mu_k^T P mu_k, (n, K)."""
        if features.shape[0] >= self.means.shape[0]:
            return features @ self._contracted(self.means).T + self._offsets
        return self._contracted(features) @ self.means.T + self._offsets

    def _contracted(self, rows: Array) -> Array:
        """P times rows (n, d), by the polynomial."""
        power = rows @ self._contraction
        coefficients = polynomial(self._e, self._short)
        result = float(self._scale * coefficients[0]) * power
        for coefficient in coefficients[1:]:
            power = power @ self._contraction
            result += float(self._scale * coefficient) * power
        return result


def _has_large_pivots(scatter: Array) -> bool:
    """Whether a scatter is so far from singular that its inverse can be maintained."""
    xp = namespace(scatter)
    try:
        pivots = xp.linalg.diagonal(xp.linalg.cholesky(scatter)) ** 2
    except (np.linalg.LinAlgError, RuntimeError):  # the latter is torch's
        return False
    return bool(xp.min(pivots) > SMALLEST_PIVOT * xp.max(pivots))


def _inverse_series(products: np.ndarray, weights: np.ndarray, rho0: float) -> np.ndarray | None:
    """Coefficients E_t (q, r, r) of the power series M (rho0 I + G(h) M)^-1, with those of G(h) as `products`.

    None if the first matrix is close to singular.
    """
    scaled = products @ weights
    first = scaled[0] + rho0 * np.eye(len(weights))
    try:
        inverse = [np.linalg.inv(first)]
    except np.linalg.LinAlgError:
        return None
    if not np.abs(first).sum(axis=1).max() * np.abs(inverse[0]).sum(axis=1).max() < LARGEST_CONDITION:
        return None
    for t in range(1, len(products)):
        inverse.append(-inverse[0] @ sum(scaled[j] @ inverse[t - j] for j in range(1, t + 1)))
    return weights @ np.stack(inverse)


def _toeplitz(series: np.ndarray) -> np.ndarray:
    """(q r, q r): the block Toeplitz matrix of a power series of matrices (q, r, r)."""
    q, r, _ = series.shape
    matrix = np.zeros((q * r, q * r))
    for t in range(q):
        for i in range(t + 1):
            matrix[t * r : (t + 1) * r, i * r : (i + 1) * r] = series[t - i]
    return matrix
