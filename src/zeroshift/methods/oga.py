"""OGA: Gaussians with one covariance, fitted to a small memory of the surest samples."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from zeroshift.adapt.statistics import discriminant, linear_head
from zeroshift.arrays import Array, Home, Rows, namespace, to_numpy
from zeroshift.linalg import ZERO_TRACE, add_to_diagonal, invert_positive, pseudo_inverse
from zeroshift.methods._shared.low_entropy_memory import LowEntropyMemory, Plan
from zeroshift.methods._shared.similarity import normalize_rows, unit_rows
from zeroshift.methods._shared.whole_steps import WholeSteps
from zeroshift.parameters import Choice, Flag, Number, parameter
from zeroshift.zero_shot import graded, log_posterior, look, softmax

__all__ = ["OGA", "PooledResiduals", "SharedGaussians", "dual_head", "fit", "isotropic", "precision_of"]


# Samples about their class means, all classes pooled: a running sum of squares that follows what comes and goes.


class PooledResiduals(NamedTuple):
    """Scatter (d, d) of residuals about their mean, their sum (d,) and how many they are. Never changed in place.

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
    def none(cls, home: Home, dimension: int) -> PooledResiduals:
        return cls(home.zeros((dimension, dimension)), home.zeros((dimension,)), 0)

    @classmethod
    def of(cls, residuals: Array) -> PooledResiduals:
        """Of residuals (n, d); exact even where they hardly differ, which `exchanged` is not."""
        xp = namespace(residuals)
        centred = residuals - xp.mean(residuals, axis=0)
        return cls(centred.T @ centred, xp.sum(residuals, axis=0), residuals.shape[0])

    def exchanged(self, old: Array, new: Array) -> PooledResiduals:
        """With the residuals `old` (a, d) taken out and `new` (b, d) put in."""
        xp = namespace(new)
        total = self.total + xp.sum(new, axis=0) - xp.sum(old, axis=0)
        size = self.size - old.shape[0] + new.shape[0]
        # The scatter about the mean is the sum of squares less that of the mean.
        added = xp.concat([new, self.total[None, :] / self.size**0.5])
        taken = xp.concat([old, total[None, :] / size**0.5])
        scatter = self.scatter + added.T @ added
        scatter -= taken.T @ taken
        return PooledResiduals(scatter, total, size)

    def trace(self) -> float:
        """Of the scatter."""
        return float(namespace(self.scatter).linalg.trace(self.scatter))


# Gaussians with one precision matrix for all classes, as OGA fits them: ridge or pseudo-inverse, the quicker way.


HARDLY_ANY_SPREAD = 1e-8
"""A mean squared residual below which a scatter that was followed is too coarse."""
DUAL_SHARE = 0.5
"""Up to so many samples a dimension, inner products of samples are quicker than a matrix over the dimensions."""
RIDGE_UP_TO = 4
"""With "auto", samples a dimension up to which the ridge is used."""


class SharedGaussians(NamedTuple):
    means: Array
    head: tuple[Array, Array]
    """Directions P mu_k (K, d) and offsets -1/2 mu_k^T P mu_k (K,)."""
    pooled: PooledResiduals | None = None
    """Where following it from fit to fit is quicker than making it anew."""
    age: int = 0
    """Fits since `pooled` was made anew."""


def isotropic(means: Array) -> SharedGaussians:
    """With the precision matrix d I."""
    d = means.shape[1]
    return SharedGaussians(means, (d * means, -0.5 * d * namespace(means).sum(means * means, axis=1)))


def fit(
    means: Array, residuals: Callable[[], Array], size: int, covariance: str, pooled: PooledResiduals | None, age: int
) -> SharedGaussians:
    """About `means`, with the covariance of `size` residuals, which are made only where `pooled` does not do."""
    if pooled is not None and pooled.trace() < HARDLY_ANY_SPREAD * size:
        pooled = None
    if pooled is None:
        rows, age = residuals(), 0
        if _is_ridge(covariance, size, means.shape[1]) and size <= DUAL_SHARE * means.shape[1]:
            return SharedGaussians(means, dual_head(means, rows))
        pooled = PooledResiduals.of(rows)
    return SharedGaussians(means, linear_head(means, precision_of(pooled, covariance)), pooled, age)


def _is_ridge(covariance: str, size: int, dimension: int) -> bool:
    return covariance == "ridge" or (covariance == "auto" and size <= RIDGE_UP_TO * dimension)


def precision_of(pooled: PooledResiduals, covariance: str) -> Array:
    """d ((n - 1) M + tr(M) I)^-1 or the pseudo-inverse of M, the covariance of the residuals; zero without any spread.

    >>> import numpy as np
    >>> pooled = PooledResiduals.of(np.array([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]]))
    >>> precision_of(pooled, "pinv"), precision_of(pooled, "ridge").round(2)
    (array([[1.5, 0. ],
           [0. , 1.5]]), array([[0.6, 0. ],
           [0. , 0.6]]))
    """
    home, d = Home.of(pooled.scatter), pooled.scatter.shape[0]
    trace = pooled.trace() / (pooled.size - 1)
    if trace <= ZERO_TRACE:
        return home.xp.zeros_like(pooled.scatter)
    if _is_ridge(covariance, pooled.size, d):
        return d * invert_positive(add_to_diagonal(home.copy(pooled.scatter), trace))
    return pseudo_inverse(pooled.scatter / (pooled.size - 1))


def dual_head(means: Array, residuals: Array) -> tuple[Array, Array]:
    """Directions P mu_k (K, d) and offsets -1/2 mu_k^T P mu_k (K,) with the ridge precision P = d (S + rho I)^-1, S the
    scatter of the residuals (n, d) about their mean and rho its trace / (n - 1), by an n x n matrix:

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


BLOCK_ROWS = 256
RENEWAL = 256
"""Refreshes after which the scatter is made anew: what rounding left of entries long gone goes with it."""


class OGA(WholeSteps):
    """Keeps each class's surest samples, fits Gaussians with one covariance to them, and multiplies the zero-shot
    posterior by their tempered likelihood. Only zero-shot entropies decide what is kept, so errors do not feed back.

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

    Departures from that code: means are true means (`released=True` brings its division back); the memory is in
    float64, not in float16; entropies are plain, without 1e-9 added inside the logarithm; which directions are empty,
    where the pseudo-inverse must know, is decided in float64; until something is learned, `predict` answers the
    zero-shot posterior.
    """

    name = "oga"
    protocol = "online"
    state_size = "K M d + K d + d^2, M = capacity"
    complexity = "O(K d) a sample; a batch that enters O(d^3 + K d^2) more"

    logit_scale: float = parameter(Number(low=0, above=True), "Scale of the logits; 100 for CLIP.", default=100.0)
    capacity: int = parameter(Number(low=1, integer=True), "Samples kept a class.", default=8)
    tau: float = parameter(Number(low=0), "Exponent of the likelihood.", default=0.05)
    covariance: str = parameter(
        Choice(("auto", "ridge", "pinv")),
        'The precision matrix is d ((n - 1) M + tr(M) I)^-1 ("ridge") or the pseudo-inverse of M ("pinv"), M being the covariance of the n samples kept about their class means. "auto": the ridge up to n = 4 d, then the other.',
        default="auto",
    )
    normalize_means: bool = parameter(Flag(), "Scale class means to unit length.", default=False)
    batch_size: int = parameter(
        Number(low=1, integer=True),
        "Samples that enter the memory together, before any of them is predicted. The authors' runs take 32. A call with fewer samples, or a rest of fewer, is a batch of its own.",
        default=1,
    )
    released: bool = parameter(
        Flag(),
        "Divide a class's sum by `capacity`, not by how many samples it holds, as the released code does.",
        default=False,
    )

    @property
    def means(self) -> Array:
        """Class means (K, d), float64; the prototype until a class holds two samples."""
        self._finish()
        return Home.of(self.prototypes).copy(self._gaussians.means)

    @property
    def precision(self) -> Array:
        """Precision matrix of all classes (d, d), float64; d I until a class has three samples."""
        self._finish()
        if not self._estimable(self._memory.entropies):
            home = Home.of(self.prototypes)
            return self.dimension * home.xp.eye(self.dimension, dtype=home.xp.float64, device=home.device)
        return precision_of(self._pooled(), self.covariance)

    @property
    def residual_covariance(self) -> Array:
        """Unbiased covariance M (d, d) of what is kept about the class means; I / d until a class has three samples."""
        self._finish()
        if not self._estimable(self._memory.entropies):
            home = Home.of(self.prototypes)
            return home.xp.eye(self.dimension, dtype=home.xp.float64, device=home.device) / self.dimension
        pooled = self._pooled()
        return pooled.scatter / (pooled.size - 1)

    def _pooled(self) -> PooledResiduals:
        means, _, pooled, _ = self._gaussians
        return pooled or PooledResiduals.of(self._residuals(means, self._memory.entropies))

    @property
    def bank_counts(self) -> Array:
        """Samples kept a class (K,)."""
        self._finish()
        home = Home.of(self.prototypes)
        return home.xp.asarray(self._memory.counts, device=home.device)

    def _begin(self) -> None:
        home = Home.of(self.prototypes)
        self._wide_prototypes = home.bring(self.prototypes, home.xp.float64)
        sizes = (self.n_classes, self.capacity, self.dimension)
        self._memory = LowEntropyMemory(home, *sizes, of_equals="first slot")
        self._gaussians = isotropic(self._wide_prototypes)

    def _adapt_scores(self, rows: Rows) -> Iterator[tuple[slice, Array]]:
        for block, x in rows.blocks(max(1, BLOCK_ROWS // self.batch_size) * self.batch_size):
            seen = look(x, self._wide_prototypes, self.logit_scale)
            classes, entropies = to_numpy(seen.classes), self._offered(-to_numpy(seen.confidences))
            entering = self._memory.plan(classes, entropies).rows // self.batch_size * self.batch_size
            # Everything up to the next batch that enters is predicted with the same Gaussians.
            starts = np.unique(np.concatenate([[0], entering])).tolist()
            changing = set(entering.tolist())
            for start, stop in zip(starts, [*starts[1:], x.shape[0]], strict=True):
                gaussians, keep = self._gaussians, None
                if start in changing:
                    batch = slice(start, min(start + self.batch_size, stop))
                    plan = self._memory.plan(classes[batch], entropies[batch])
                    gaussians = self._refreshed(plan, x[batch])
                    keep = partial(self._keep, plan, Home.of(x).copy(x[batch]), gaussians)
                scores = self._posterior(x[start:stop], seen.log_y[start:stop], gaussians)
                if keep is None:
                    self.n_seen += stop - start
                else:
                    self._commit(keep, stop - start)
                yield slice(block.start + start, block.start + stop), scores

    def _keep(self, plan: Plan, features: Array, gaussians: SharedGaussians) -> None:
        self._memory.keep(plan, features)
        self._gaussians = gaussians

    def _offered(self, entropies: np.ndarray) -> np.ndarray:
        """A sample that is a guess never enters: its entropy as infinity."""
        largest = graded(np.array([math.log(self.n_classes)]))
        return np.where(graded(entropies) < largest, entropies, np.inf)

    def _posterior(self, features: Array, log_y: Array, gaussians: SharedGaussians) -> Array:
        return softmax(log_y + self.tau * discriminant(features, *gaussians.head))

    def _predict_scores(self, features: Array) -> Array:
        log_y = log_posterior(features, self._wide_prototypes, self.logit_scale)
        # Gaussians about the prototypes would sharpen the posterior; until there is a sample they have no business to.
        return self._posterior(features, log_y, self._gaussians) if self.n_seen else namespace(features).exp(log_y)

    def _probabilities(self, scores: Array) -> Array:
        return normalize_rows(scores)

    def _refreshed(self, plan: Plan, features: Array) -> SharedGaussians:
        """The Gaussians once the planned samples are kept; the memory itself is left as it is."""
        home, before = Home.of(features), self._gaussians
        staying = plan.staying()
        slots, entering = plan.slots[staying], features[home.index(plan.rows[staying])]
        classes, place = np.unique(slots // self.capacity, return_inverse=True)
        chosen = home.index(classes)
        old = self._memory.features[chosen]
        new = home.copy(old)
        new[home.index(place), home.index(slots % self.capacity)] = entering
        was, held = np.isfinite(self._memory.entropies[classes]), np.isfinite(plan.entropies[classes])
        means = home.copy(before.means)
        means[chosen] = self._class_means(new, held, before.means[chosen])
        pooled, age = None, before.age + 1
        if before.pooled is not None and age < RENEWAL:
            out, into = _about(old, was, before.means[chosen]), _about(new, held, means[chosen])
            pooled = before.pooled.exchanged(out, into)
        if not self._estimable(plan.entropies):
            return isotropic(means)
        size = int(np.isfinite(plan.entropies).sum())
        residuals = partial(self._residuals, means, plan.entropies, slots, entering)
        return fit(means, residuals, size, self.covariance, pooled, age)

    def _residuals(
        self, means: Array, entropies: np.ndarray, slots: np.ndarray | None = None, entering: Array | None = None
    ) -> Array:
        """What is kept (n, d), less its class means; with `entering` in its slots."""
        home = Home.of(means)
        held = np.flatnonzero(np.isfinite(entropies))
        entries = home.xp.reshape(self._memory.features, (-1, self.dimension))[home.index(held)]
        if slots is not None:
            entries[home.index(np.searchsorted(held, slots))] = entering
        return entries - means[home.index(held // self.capacity)]

    def _class_means(self, entries: Array, held: np.ndarray, present: Array) -> Array:
        """Means (k, d) of the entries (k, M, d) held; classes with fewer than two keep their present one."""
        home, xp = Home.of(entries), namespace(entries)
        counts = held.sum(axis=1)
        divisor = np.full(len(counts), float(self.capacity)) if self.released else np.maximum(counts, 1.0)
        means = xp.sum(entries, axis=1) / home.bring(divisor, xp.float64)[:, None]  # empty slots hold zeros
        means = unit_rows(means) if self.normalize_means else means
        return xp.where(home.index(counts >= 2)[:, None], means, present)

    def _estimable(self, entropies: np.ndarray) -> bool:
        """Whether some class has the three samples the authors ask for."""
        return bool((np.isfinite(entropies).sum(axis=1) > 2).any())

    def _state(self) -> tuple[dict[str, Array], dict[str, Any]]:
        means, _, pooled, age = self._gaussians
        # None is saved as zeros: a file holds the same arrays whatever was learned.
        saved = pooled or PooledResiduals.none(Home.of(means), self.dimension)
        arrays = {"means": means, "scatter": saved.scatter, "total": saved.total}
        return {**arrays, **self._memory.arrays()}, {"pooled": saved.size, "age": age}

    def _restore(self, arrays: Mapping[str, Array], values: Mapping[str, Any]) -> None:
        expected = {"means": (self.n_classes, self.dimension), "scatter": (self.dimension,) * 2}
        for name, shape in {**expected, "total": (self.dimension,)}.items():
            if tuple(arrays[name].shape) != shape:
                raise ValueError(f"{name} has shape {tuple(arrays[name].shape)}, not {shape}")
        self._memory.restore(arrays)
        size, held = int(values["pooled"]), int(self._memory.counts.sum())
        means, entropies = arrays["means"], self._memory.entropies
        if size not in (0, held):
            raise ValueError(f"pooled is {size}, but the memory holds {held} samples")
        pooled = PooledResiduals(arrays["scatter"], arrays["total"], size) if size else None
        if self._estimable(entropies):
            residuals = partial(self._residuals, means, entropies)
            self._gaussians = fit(means, residuals, held, self.covariance, pooled, int(values["age"]))
        else:
            self._gaussians = isotropic(means)


def _about(entries: Array, held: np.ndarray, means: Array) -> Array:
    """(n, d): the entries (k, M, d) held, less their class means (k, d)."""
    return (entries - means[:, None, :])[Home.of(entries).index(held)]
