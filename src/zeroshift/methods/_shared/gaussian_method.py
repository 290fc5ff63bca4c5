"""What TransCLIP, Histo-TransCLIP and StatA share as methods: a set in, Gaussian classes kept, other samples scored."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from zeroshift.arrays import Array, Home, Rows, namespace
from zeroshift.method import Method
from zeroshift.methods._shared.affinity import Affinity
from zeroshift.methods._shared.similarity import normalize_rows, unit_rows
from zeroshift.parameters import Number, parameter
from zeroshift.zero_shot import log_posterior, softmax

__all__ = [
    "TEMPERATURE",
    "Assignments",
    "GaussianMethod",
    "Gaussians",
    "Solution",
    "Statistics",
    "floored",
    "log_densities",
    "mean_directions",
    "shared_variance",
    "statistics",
    "sum_of_squares",
]


# Soft assignments of samples to classes from text, likelihood and neighbours: the z-update of TransCLIP and StatA.


TEMPERATURE = 50.0
"""What the authors divide log-likelihoods by."""


@dataclass(frozen=True)
class Assignments:
    """z_i is the softmax of log_prior_i + log-likelihood_i / temperature + neighbour_weight (W z + W^T z)_i.

    In logarithms, so that no row becomes 0 / 0 where the text posterior underflows.
    """

    log_prior: Array
    """The text's say, (N, K): its log-posterior times its weight."""
    affinity: Affinity
    neighbour_weight: float
    """Of the sum over neighbours; 1/6 in the authors' code, which writes (50 / (2 * 3)) / 50."""
    temperature: float = TEMPERATURE
    iterations: int = 5
    """All samples at once, so many times over."""

    def update(self, z: Array, log_likelihood: Array) -> Array:
        """New assignments (N, K). `log_likelihood`, up to a constant a row, is overwritten."""
        base = log_likelihood
        base /= self.temperature
        base += self.log_prior
        for _ in range(self.iterations):
            if self.neighbour_weight == 0:
                return _softmax(base)
            scores = self.affinity.pull(z)
            scores *= self.neighbour_weight
            scores += base
            z = _softmax(scores)
        return z


def _softmax(scores: Array) -> Array:
    """In the scores' own memory where the library has no softmax of its own: it is the loop's most frequent step."""
    if hasattr(scores, "softmax"):
        return scores.softmax(-1)
    xp = namespace(scores)
    scores -= xp.max(scores, axis=1, keepdims=True)
    xp.exp(scores, out=scores)
    scores /= xp.sum(scores, axis=1, keepdims=True)
    return scores


# Gaussian classes with diagonal covariance, fitted to soft assignments: statistics, densities, variances.
#
# Everything is matrix products: no array of samples by classes by dimensions is ever made. Statistics are summed, and
# subtracted, in float64.


FLOOR = 1e-6
"""Variances are kept above this share of 1/d, the variance of a unit vector's coordinate: samples that do not differ at
all would leave nothing to divide by."""

ZERO_MASS = 1e-30
"""A class whose samples together weigh less says nothing."""


class Gaussians(NamedTuple):
    means: Array
    """(K, d)."""
    variances: Array
    """(d,), shared by all classes, or (K, d)."""


class Statistics(NamedTuple):
    """What samples weighted by their assignments add up to."""

    mass: Array
    """sum_i z_ik, (K,)."""
    sums: Array
    """sum_i z_ik x_i, (K, d)."""
    squares: Array
    """sum_ik z_ik x_i^2, (d,)."""

    def plus(self, other: Statistics, weight: float) -> Statistics:
        return Statistics(*(own + weight * added for own, added in zip(self, other, strict=True)))

    def times(self, factor: float) -> Statistics:
        return Statistics(*(own * factor for own in self))


def sum_of_squares(features: Array) -> Array:
    """sum_i x_i^2, (d,), in float64."""
    xp = namespace(features)
    return xp.sum(features * features, axis=0, dtype=xp.float64)


def statistics(features: Array, z: Array, squares: Array | None = None) -> Statistics:
    """Of features (N, d) and assignments (N, K) whose rows sum to 1, in float64; `squares` where they are known."""
    xp = namespace(features)
    sums = xp.astype(z.T @ features, xp.float64, copy=False)
    return Statistics(
        xp.sum(z, axis=0, dtype=xp.float64), sums, sum_of_squares(features) if squares is None else squares
    )


def mean_directions(mass: Array, sums: Array, otherwise: Array) -> Array:
    """Class means at unit length (K, d); `otherwise` for a class without mass.

    >>> import numpy as np
    >>> mean_directions(np.array([2.0, 0.0]), np.array([[1.2, 1.6], [0.0, 0.0]]), np.eye(2))
    array([[0.6, 0.8],
           [0. , 1. ]])
    """
    xp = namespace(sums)
    held = (mass > ZERO_MASS)[:, None]
    return xp.where(held, unit_rows(sums / xp.where(held, mass[:, None], 1.0)), otherwise)


def shared_variance(gathered: Statistics, means: Array) -> Array:
    """sum_ik z_ik (x_i - mu_k)^2 / sum_ik z_ik, (d,).

    >>> import numpy as np
    >>> shared_variance(statistics(np.eye(2), np.eye(2)), np.array([[1.0, 0.0], [0.0, 0.0]]))
    array([5.e-07, 5.e-01])
    """
    xp = namespace(means)
    mass, sums, squares = gathered
    spread = squares - 2 * xp.sum(means * sums, axis=0) + mass @ (means * means)
    return floored(spread / xp.sum(mass))


def floored(variances: Array) -> Array:
    """Large enough to divide by; see `FLOOR`."""
    xp = namespace(variances)
    least = FLOOR / variances.shape[-1]
    return xp.where(variances > least, variances, least)


def log_densities(features: Array, gaussians: Gaussians) -> Array:
    """log N(x_i; mu_k, diag v_k) up to a constant a row, (n, K), in the features' precision.

    With a shared variance all of -x^2 / 2v is such a constant, and one product remains.

    >>> import numpy as np
    >>> x, means = np.array([[0.8, 0.6]]), np.eye(2)
    >>> log_densities(x, Gaussians(means, np.array([0.5, 0.5]))) @ np.array([1.0, -1.0])
    array([0.4])
    >>> log_densities(x, Gaussians(means, np.full((2, 2), 0.5))) @ np.array([1.0, -1.0])
    array([0.4])
    """
    xp, home = namespace(features), Home.of(features)
    means, variances = gaussians
    slopes = means / variances
    offsets = -0.5 * xp.sum(means * slopes, axis=1)
    densities = features @ home.bring(slopes, features.dtype).T
    if len(variances.shape) == 2:
        offsets = offsets - 0.5 * xp.sum(xp.log(variances), axis=1)
        densities += (features * features) @ home.bring(-0.5 / variances, features.dtype).T
    # Only differences between classes count; small offsets lose less in the features' precision.
    densities += home.bring(offsets - xp.mean(offsets), features.dtype)
    return densities


class Solution(NamedTuple):
    z: Array
    """Assignments (N, K)."""
    gaussians: Gaussians
    """What the samples were compared with last."""
    gamma: float = 0.0
    """Weight of labelled samples."""


class GaussianMethod(Method):
    """A transductive method that alternates between assigning a set's samples and fitting Gaussians to them.

    A subclass fills in `_solve` and `_first_variances`. Scores are the assignments: probabilities already.
    """

    protocol = "transductive"
    computes_in = None

    logit_scale: float = parameter(
        Number(low=0, above=True), "Scale of the zero-shot logits; 100 for CLIP.", default=100.0
    )
    neighbours: int = parameter(Number(low=1, integer=True), "Nearest samples each sample is drawn to.", default=3)
    iterations: int = parameter(
        Number(low=0, integer=True),
        "Rounds of fitting the Gaussians, and of assigning the samples within each round.",
        default=10,
    )
    inner_iterations: int = parameter(
        Number(low=1, integer=True),
        "Rounds of fitting the Gaussians, and of assigning the samples within each round.",
        default=5,
    )
    temperature: float = parameter(Number(low=0, above=True), "What log-likelihoods are divided by.", default=50.0)

    check_exceptions: ClassVar[Mapping[str, str]] = {
        "axes_do_not_matter": "variances belong to single dimensions, which a rotation mixes",
        "all_samples_equal": "of equal samples each picks a few as neighbours, and some are picked more often",
    }

    @abstractmethod
    def _solve(self, features: Array) -> Solution:
        """The samples' assignments, and the Gaussians that come with them."""

    @abstractmethod
    def _first_variances(self) -> Array:
        """Variances before any sample, float64."""

    @property
    def _text(self) -> Array:
        """What stands for each class's text, (K, d)."""
        return self.prototypes

    @property
    def _text_share(self) -> float:
        """The power the text's posterior is raised to."""
        return 1.0

    def _samples_at_once(self, n_samples: int) -> int:
        """How many samples are solved together."""
        return n_samples

    @property
    def means(self) -> Array:
        """Class means (K, d), float64: the text until something was learned."""
        return Home.of(self.prototypes).copy(self._gaussians.means)

    @property
    def variances(self) -> Array:
        """Variances of the dimensions, float64: (d,) where all classes share them, else (K, d)."""
        return Home.of(self.prototypes).copy(self._gaussians.variances)

    @property
    def _wide_text(self) -> Array:
        home = Home.of(self.prototypes)
        return home.bring(self._text, home.xp.float64)

    def _begin(self) -> None:
        self._gaussians = Gaussians(self._wide_text, self._first_variances())

    def _log_text(self, features: Array) -> Array:
        return log_posterior(features, self._text, self.logit_scale)

    def _assignments(self, log_y: Array, affinity: Affinity, neighbour_weight: float = 1.0) -> Assignments:
        return Assignments(
            log_prior=self._text_share * log_y,
            affinity=affinity,
            neighbour_weight=neighbour_weight / (2 * self.neighbours),
            temperature=self.temperature,
            iterations=self.inner_iterations,
        )

    def _alternate(
        self, features: Array, start: Solution, assignments: Assignments, fit: Callable[[Array, Gaussians], Gaussians]
    ) -> Solution:
        """Assign, fit, assign, ..., and assign once more; `fit` makes new Gaussians of assignments and the old ones."""
        z, gaussians, gamma = start
        for iteration in range(self.iterations + 1):
            z = assignments.update(z, log_densities(features, gaussians))
            if iteration < self.iterations:
                gaussians = fit(z, gaussians)
        return Solution(z, gaussians, gamma)

    def _keep(self, solution: Solution) -> None:
        """Remember what was learned."""
        self._gaussians = solution.gaussians

    def _adapt_scores(self, rows: Rows) -> Iterator[tuple[slice, Array]]:
        size = self._samples_at_once(len(rows))
        for start in range(0, len(rows), size):
            batch = slice(start, min(start + size, len(rows)))
            solution = self._solve(rows[batch])
            self._keep(solution)
            self.n_seen = batch.stop
            yield batch, solution.z

    def _predict_scores(self, features: Array) -> Array:
        if self.n_seen == 0:
            return namespace(features).exp(log_posterior(features, self.prototypes, self.logit_scale))
        scores = log_densities(features, self._gaussians)
        scores /= self.temperature
        scores += self._text_share * self._log_text(features)
        return softmax(scores)

    def _probabilities(self, scores: Array) -> Array:
        return normalize_rows(scores)

    def _state(self) -> tuple[dict[str, Array], dict[str, Any]]:
        return self._gaussians._asdict(), {}

    def _restore(self, arrays: Mapping[str, Array], values: Mapping[str, Any]) -> None:
        fresh = self._gaussians
        for name, own in fresh._asdict().items():
            if tuple(arrays[name].shape) != tuple(own.shape):
                raise ValueError(f"{name} has the shape {tuple(arrays[name].shape)}, not {tuple(own.shape)}")
        self._gaussians = Gaussians(arrays["means"], arrays["variances"])
