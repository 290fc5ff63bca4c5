"""What TransCLIP, Histo-TransCLIP and StatA share: soft assignments of a set, Gaussian classes, a graph of neighbours.

`GaussianMethod` alternates between assigning the samples of a set to classes and fitting Gaussians to them. Everything
is matrix products: no array of samples by classes by dimensions is ever made.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import ClassVar, NamedTuple

from zeroshift.arrays import Array, Backend, namespace, to_numpy
from zeroshift.frozen import Expression
from zeroshift.method import SetMethod
from zeroshift.methods._shared.similarity import normalize_rows, unit_rows
from zeroshift.methods._shared.sparse import link_matrix, times
from zeroshift.methods._shared.top_k import nearest
from zeroshift.parameters import Number, parameter, state
from zeroshift.state_checks import check_lengths
from zeroshift.zero_shot import log_posterior, softmax

TEMPERATURE = 50.0
"""The authors' divisor of log-likelihoods."""

FLOOR = 1e-6
"""Smallest variance, in units of 1/d, the variance of one coordinate of a unit vector. Without a floor, samples that do
not differ at all would give a variance of 0."""

ZERO_MASS = 1e-30
"""A class whose samples have less weight in total counts as empty."""


class ClassGaussians(NamedTuple):
    means: Array
    """(K, d)."""
    variances: Array
    """(d,), shared by all classes, or (K, d)."""


class WeightedSums(NamedTuple):
    """Sums over samples, weighted by their assignments."""

    mass: Array
    """sum_i z_ik, (K,)."""
    sums: Array
    """sum_i z_ik x_i, (K, d)."""
    squares: Array
    """sum_ik z_ik x_i^2, (d,)."""

    @classmethod
    def of(cls, features: Array, z: Array, weight: float = 1.0) -> WeightedSums:
        """Of features (N, d) and assignments (N, K) whose rows sum to 1, times `weight`."""
        parts = z.sum(axis=0), z.T @ features, (features * features).sum(axis=0)
        return cls(*(weight * part for part in parts))

    def plus(self, other: WeightedSums, weight: float) -> WeightedSums:
        return WeightedSums(*(mine + weight * theirs for mine, theirs in zip(self, other, strict=True)))


def mean_directions(mass: Array, sums: Array, default: Array) -> Array:
    """Class means scaled to unit length (K, d); the row of `default` for a class without mass.

    >>> import numpy as np
    >>> mean_directions(np.array([2.0, 0.0]), np.array([[1.2, 1.6], [0.0, 0.0]]), np.eye(2))
    array([[0.6, 0.8],
           [0. , 1. ]])
    """
    xp = namespace(sums)
    has_mass = (mass > ZERO_MASS)[:, None]
    return xp.where(has_mass, unit_rows(sums / xp.where(has_mass, mass[:, None], 1.0)), default)


def shared_variance(totals: WeightedSums, means: Array) -> Array:
    """Variance of each dimension about the class means, sum_ik z_ik (x_i - mu_k)^2 / sum_ik z_ik, (d,).

    >>> import numpy as np
    >>> shared_variance(WeightedSums.of(np.eye(2), np.eye(2)), np.array([[1.0, 0.0], [0.0, 0.0]]))
    array([5.e-07, 5.e-01])
    """
    xp = namespace(means)
    mass, sums, squares = totals
    spread = squares - 2 * xp.sum(means * sums, axis=0) + mass @ (means * means)
    return with_floor(spread / xp.sum(mass))


def with_floor(variances: Array) -> Array:
    """Variances with those below `FLOOR` raised to it."""
    xp = namespace(variances)
    least = FLOOR / variances.shape[-1]
    return xp.where(variances > least, variances, least)


def check_gaussians(gaussians: ClassGaussians) -> None:
    """ValueError for means or variances that no samples lead to."""
    check_lengths("means", gaussians.means)
    variances = to_numpy(gaussians.variances)
    least = FLOOR / variances.shape[-1]
    if not variances.min() >= least * (1 - 1e-6):
        raise ValueError(f"variances must be at least {least:g}; the smallest is {variances.min():g}.")


def log_densities(features: Array, gaussians: ClassGaussians) -> Array:
    """log N(x_i; mu_k, diag v_k) up to a constant per row, (n, K).

    With a shared variance, -x^2 / 2v is such a constant, and one product remains.

    >>> import numpy as np
    >>> x, means = np.array([[0.8, 0.6]]), np.eye(2)
    >>> log_densities(x, ClassGaussians(means, np.array([0.5, 0.5]))) @ np.array([1.0, -1.0])
    array([0.4])
    >>> log_densities(x, ClassGaussians(means, np.full((2, 2), 0.5))) @ np.array([1.0, -1.0])
    array([0.4])
    """
    slopes, offsets = linear_part(gaussians)
    densities = features @ slopes.T + offsets
    if len(gaussians.variances.shape) == 2:
        densities += (features * features) @ (-0.5 / gaussians.variances).T
    return densities


def linear_part(gaussians: ClassGaussians) -> tuple[Array, Array]:
    """Slopes (K, d) and offsets (K,) of the log-densities."""
    xp = namespace(gaussians.means)
    means, variances = gaussians
    slopes = means / variances
    offsets = -0.5 * xp.sum(means * slopes, axis=1)
    if len(variances.shape) == 2:
        offsets = offsets - 0.5 * xp.sum(xp.log(variances), axis=1)
    return slopes, offsets


Neighbours = Callable[[Array], Array]
"""The sums (N, K) of the assignments of each sample's neighbours, in both directions, from assignments (N, K)."""


def neighbour_sums(
    features: Array,
    neighbours: int,
    support: tuple[Array, Array] | None = None,
    *,
    released: bool = False,
) -> Neighbours:
    """W z + W^T z, with W the cosines of each sample with its nearest others, and labelled samples (S, d) with one-hot
    labels (S, K) that a sample of the set is a neighbour of.

    In the released code, the rows of W begin with the labelled samples but are used as if they began with the set's
    own, and a labelled sample skips its nearest neighbour as if that were itself.

    >>> import numpy as np
    >>> features = np.array([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0]])
    >>> neighbour_sums(features, 1)(np.eye(3)).round(2)
    array([[0. , 1.6, 0. ],
           [1.6, 0. , 0.6],
           [0. , 0.6, 0. ]])
    """
    from scipy.sparse import vstack

    n = features.shape[0]
    cosines, columns = nearest(features, features, neighbours, exclude_self=True)
    own = link_matrix(columns, cosines, n)
    if support is None:
        both = (own + own.T).tocsr()
        return lambda z: times(both, z)
    cosines, columns = nearest(support[0], features, neighbours + released)
    labelled = link_matrix(columns[:, int(released) :], cosines[:, int(released) :], n)
    links = vstack([labelled, own] if released else [own, labelled]).tocsr()
    both, constant = (links[:n] + links[:n].T).tocsr(), times(links[n:].T.tocsr(), support[1])
    return lambda z: times(both, z) + constant


class GaussianMethod(SetMethod):
    """A transductive method that alternates between assigning the samples of a set and fitting Gaussians to them.

    Scores are the assignments, which are probabilities already.
    """

    logit_scale: float = parameter(
        Number(low=0, above=True), "Scale of the zero-shot logits; 100 for CLIP.", default=100.0
    )
    neighbours: int = parameter(
        Number(low=1, integer=True), "Nearest samples whose assignments a sample is drawn to.", default=3
    )
    iterations: int = parameter(
        Number(low=0, high=1000, integer=True), "Rounds of fitting the Gaussians to the assignments.", default=10
    )
    inner_iterations: int = parameter(
        Number(low=1, high=1000, integer=True), "Updates of the assignments in each round.", default=5
    )
    temperature: float = parameter(Number(low=0, above=True), "Divisor of the log-likelihoods.", default=TEMPERATURE)

    check_exceptions: ClassVar[Mapping[str, str]] = {
        "axes_do_not_matter": "variances belong to single dimensions, which a rotation mixes",
        "all_samples_equal": "equal samples have each a few of the others as neighbours, some more often than others",
    }

    _gaussians: ClassGaussians = state(
        lambda self: ClassGaussians(self._text, self._initial_variances()),
        saved_as="",
        check=lambda self, gaussians: check_gaussians(gaussians),
    )

    @abstractmethod
    def _initial_variances(self) -> Array:
        """Variances before any sample."""

    @property
    def _text(self) -> Array:
        """The text embedding of each class, (K, d)."""
        return self.prototypes64

    @property
    def _text_exponent(self) -> float:
        """The exponent of the text posterior."""
        return 1.0

    @property
    def means(self) -> Array:
        """Class means (K, d), float64: the text embeddings before anything is learned."""
        return Backend.of(self.prototypes).copy(self._gaussians.means)

    @property
    def variances(self) -> Array:
        """Variances of the dimensions, float64: (d,) if all classes share them, else (K, d)."""
        return Backend.of(self.prototypes).copy(self._gaussians.variances)

    def _alternate(
        self,
        features: Array,
        log_y: Array,
        z: Array,
        gaussians: ClassGaussians,
        neighbours: Neighbours,
        refit: Callable[[Array, ClassGaussians], ClassGaussians],
        *,
        neighbour_weight: float = 1.0,
    ) -> tuple[Array, ClassGaussians]:
        """Assign, fit, assign, ..., assign. Samples are assigned to classes by

        z_i = softmax(text_exponent log y_i + log N(x_i) / temperature + weight (W z + W^T z)_i),

        several times in a row, because z is on both sides; `refit` gives the Gaussians of assignments.
        """
        weight = neighbour_weight / (2 * self.neighbours)  # 1/6 in the authors' code: (50 / (2 * 3)) / 50
        for iteration in range(self.iterations + 1):
            alone = self._text_exponent * log_y + log_densities(features, gaussians) / self.temperature
            for _ in range(self.inner_iterations if weight else 1):
                z = softmax(alone + weight * neighbours(z) if weight else alone)
            if iteration < self.iterations:
                gaussians = refit(z, gaussians)
        return z, gaussians

    def score(self, features: Array) -> Array:
        if not self._n_seen:
            return softmax(self.logit_scale * (features @ self.prototypes64.T))
        text = self._text_exponent * log_posterior(features, self._text, self.logit_scale)
        return softmax(text + log_densities(features, self._gaussians) / self.temperature)

    def _frozen(self, x: Expression) -> Expression:
        if not self._n_seen:
            return x.linear(self.logit_scale * self.prototypes64).softmax()
        factor, (slopes, offsets) = 1.0 / self.temperature, linear_part(self._gaussians)
        text = (self._text_exponent * self.logit_scale) * self._text
        scores = x.linear(text + factor * slopes, factor * offsets)
        if len(self._gaussians.variances.shape) == 2:
            scores = scores + (x * x).linear((-0.5 * factor) / self._gaussians.variances)
        return scores.softmax()

    def _probabilities(self, scores: Array) -> Array:
        return normalize_rows(scores)
