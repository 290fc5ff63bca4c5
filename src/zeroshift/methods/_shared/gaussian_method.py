"""What TransCLIP, Histo-TransCLIP and StatA share: soft assignments of a set, Gaussian classes, a graph of neighbours.

`GaussianMethod` alternates between assigning the samples of a set to classes and fitting Gaussians to them. Everything
is matrix products: no array of samples by classes by dimensions is ever made. Sums are summed in float64.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from zeroshift.arrays import Array, Backend, Rows, namespace, to_numpy
from zeroshift.frozen import Expression
from zeroshift.method import Method
from zeroshift.methods._shared.similarity import normalize_rows, unit_rows
from zeroshift.methods._shared.sparse import SparseMatrix
from zeroshift.methods._shared.top_k import nearest
from zeroshift.parameters import Number, parameter, state
from zeroshift.state_checks import check_lengths
from zeroshift.zero_shot import log_posterior, softmax

__all__ = [
    "TEMPERATURE",
    "Affinity",
    "Assignments",
    "ClassGaussians",
    "GaussianMethod",
    "NeighbourEdges",
    "Solution",
    "WeightedSums",
    "few_shot_affinity",
    "log_densities",
    "mean_directions",
    "neighbour_affinity",
    "neighbour_edges",
    "shared_variance",
    "sum_of_squares",
    "weighted_sums",
    "with_floor",
]

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

    def plus(self, other: WeightedSums, weight: float) -> WeightedSums:
        return WeightedSums(*(mine + weight * theirs for mine, theirs in zip(self, other, strict=True)))

    def times(self, factor: float) -> WeightedSums:
        return WeightedSums(*(part * factor for part in self))


def sum_of_squares(features: Array) -> Array:
    """sum_i x_i^2, (d,), in float64."""
    xp = namespace(features)
    return xp.sum(features * features, axis=0, dtype=xp.float64)


def weighted_sums(features: Array, z: Array, squares: Array | None = None) -> WeightedSums:
    """Sums for features (N, d) and assignments (N, K) whose rows sum to 1, in float64.

    `squares` is `sum_of_squares(features)`, if it is known already.
    """
    xp = namespace(features)
    sums = xp.astype(z.T @ features, xp.float64, copy=False)
    return WeightedSums(
        xp.sum(z, axis=0, dtype=xp.float64), sums, sum_of_squares(features) if squares is None else squares
    )


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
    >>> shared_variance(weighted_sums(np.eye(2), np.eye(2)), np.array([[1.0, 0.0], [0.0, 0.0]]))
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
    """log N(x_i; mu_k, diag v_k) up to a constant per row, (n, K), in the precision of the features.

    With a shared variance, -x^2 / 2v is such a constant, and one product remains.

    >>> import numpy as np
    >>> x, means = np.array([[0.8, 0.6]]), np.eye(2)
    >>> log_densities(x, ClassGaussians(means, np.array([0.5, 0.5]))) @ np.array([1.0, -1.0])
    array([0.4])
    >>> log_densities(x, ClassGaussians(means, np.full((2, 2), 0.5))) @ np.array([1.0, -1.0])
    array([0.4])
    """
    xp, backend = namespace(features), Backend.of(features)
    means, variances = gaussians
    slopes = means / variances
    offsets = -0.5 * xp.sum(means * slopes, axis=1)
    densities = features @ backend.asarray(slopes, features.dtype).T
    if len(variances.shape) == 2:
        offsets = offsets - 0.5 * xp.sum(xp.log(variances), axis=1)
        densities += (features * features) @ backend.asarray(-0.5 / variances, features.dtype).T
    # Only differences between classes matter; small offsets lose less in the precision of the features.
    densities += backend.asarray(offsets - xp.mean(offsets), features.dtype)
    return densities


class NeighbourEdges(NamedTuple):
    """The nearest neighbours of each sample, as entries of a sparse matrix W."""

    rows: Array
    columns: Array
    cosines: Array


class Affinity(NamedTuple):
    """Sums of the assignments of a sample's neighbours, in both directions: W z + W^T z."""

    symmetric: SparseMatrix
    """W + W^T, (N, N)."""
    labelled: Array | None = None
    """Constant contribution (N, K) of labelled samples that have a sample as neighbour."""

    def neighbour_sums(self, z: Array) -> Array:
        """(N, K), for assignments z (N, K)."""
        sums = self.symmetric @ z
        if self.labelled is not None:
            sums += self.labelled
        return sums


def neighbour_edges(
    features: Array, others: Array, neighbours: int, *, exclude_self: bool = False, drop_first: bool = False
) -> NeighbourEdges:
    """The cosines of each row of `features` with its nearest rows of `others`.

    With `exclude_self` both are the same samples, and no sample is its own neighbour. With `drop_first` the nearest
    row is skipped, whichever it is.
    """
    xp = namespace(features)
    skipped = int(drop_first)
    cosines, columns = nearest(features, others, neighbours + skipped, exclude_self=exclude_self)
    cosines, columns = cosines[:, skipped:], columns[:, skipped:]
    rows = xp.arange(features.shape[0], dtype=columns.dtype, device=Backend.of(features).device)
    rows = xp.broadcast_to(rows[:, None], columns.shape)
    return NeighbourEdges(*(xp.reshape(part, (-1,)) for part in (rows, columns, cosines)))


def neighbour_affinity(features: Array, neighbours: int) -> Affinity:
    """The affinity within a set of samples.

    >>> import numpy as np
    >>> features = np.array([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0]])
    >>> neighbour_affinity(features, 1).neighbour_sums(np.eye(3)).round(2)
    array([[0. , 1.6, 0. ],
           [1.6, 0. , 0.6],
           [0. , 0.6, 0. ]])
    """
    return _symmetric(neighbour_edges(features, features, neighbours, exclude_self=True), features.shape[0])


def few_shot_affinity(
    features: Array, support: Array, one_hot: Array, neighbours: int, *, released: bool = False
) -> Affinity:
    """The affinity within a set of samples, and between labelled samples (S, d) and their neighbours in the set.

    In the released code, the rows of W begin with the labelled samples but are used as if they began with the set's
    own, and a labelled sample skips its nearest neighbour as if that were itself.
    """
    xp = namespace(features)
    n_samples, n_labelled = features.shape[0], support.shape[0]
    own = neighbour_edges(features, features, neighbours, exclude_self=True)
    labelled = neighbour_edges(support, features, neighbours, drop_first=released)
    first, second = (labelled, own) if released else (own, labelled)
    second_start = n_labelled if released else n_samples
    edges = NeighbourEdges(
        xp.concat([first.rows, second.rows + second_start]),
        xp.concat([first.columns, second.columns]),
        xp.concat([first.cosines, second.cosines]),
    )
    within = edges.rows < n_samples
    to_labelled = NeighbourEdges(*(part[~within] for part in edges))
    labelled_weights = SparseMatrix(
        to_labelled.columns, to_labelled.rows - n_samples, to_labelled.cosines, (n_samples, n_labelled)
    )
    affinity = _symmetric(NeighbourEdges(*(part[within] for part in edges)), n_samples)
    return affinity._replace(labelled=labelled_weights @ one_hot)


def _symmetric(edges: NeighbourEdges, n_samples: int) -> Affinity:
    return Affinity(SparseMatrix(*edges, (n_samples, n_samples)).plus_transpose())


@dataclass(frozen=True)
class Assignments:
    """The z-update: z_i = softmax(log_prior_i + log-likelihood_i / temperature + neighbour_weight (W z + W^T z)_i).

    Computed from logarithms, so that no row becomes 0 / 0 if the text posterior underflows.
    """

    log_prior: Array
    """The log-posterior of the text times its weight, (N, K)."""
    affinity: Affinity
    neighbour_weight: float
    """Weight of the sum over neighbours; 1/6 in the authors' code, which writes (50 / (2 * 3)) / 50."""
    temperature: float = TEMPERATURE
    iterations: int = 5
    """Updates of all samples together."""

    def update(self, z: Array, log_likelihood: Array) -> Array:
        """New assignments (N, K). `log_likelihood`, up to a constant per row, is overwritten."""
        base = log_likelihood
        base /= self.temperature
        base += self.log_prior
        for _ in range(self.iterations):
            if self.neighbour_weight == 0:
                return _softmax(base)
            scores = self.affinity.neighbour_sums(z)
            scores *= self.neighbour_weight
            scores += base
            z = _softmax(scores)
        return z


def _softmax(scores: Array) -> Array:
    """Softmax that overwrites the scores if the library has none of its own: the most frequent step of the loop."""
    if hasattr(scores, "softmax"):
        return scores.softmax(-1)
    xp = namespace(scores)
    scores -= xp.max(scores, axis=1, keepdims=True)
    xp.exp(scores, out=scores)
    scores /= xp.sum(scores, axis=1, keepdims=True)
    return scores


class Solution(NamedTuple):
    z: Array
    """Assignments (N, K)."""
    gaussians: ClassGaussians
    """The Gaussians of the last assignment."""
    gamma: float = 0.0
    """Weight of labelled samples."""


class GaussianMethod(Method):
    """A transductive method that alternates between assigning the samples of a set and fitting Gaussians to them.

    A subclass defines `_solve` and `_initial_variances`. Scores are the assignments, which are probabilities already.
    """

    protocol = "transductive"
    computes_in = None

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
        lambda self: ClassGaussians(self._wide_text, self._initial_variances()),
        saved_as="",
        check=lambda self, gaussians: check_gaussians(gaussians),
    )

    @abstractmethod
    def _solve(self, features: Array) -> Solution:
        """The assignments of the samples, and the Gaussians that belong to them."""

    @abstractmethod
    def _initial_variances(self) -> Array:
        """Variances before any sample, float64."""

    @property
    def _text(self) -> Array:
        """The text embedding of each class, (K, d)."""
        return self.prototypes

    @property
    def _text_exponent(self) -> float:
        """The exponent of the text posterior."""
        return 1.0

    def _batch_rows(self, n_samples: int) -> int:
        """Samples solved together."""
        return n_samples

    @property
    def means(self) -> Array:
        """Class means (K, d), float64: the text embeddings before anything is learned."""
        return Backend.of(self.prototypes).copy(self._gaussians.means)

    @property
    def variances(self) -> Array:
        """Variances of the dimensions, float64: (d,) if all classes share them, else (K, d)."""
        return Backend.of(self.prototypes).copy(self._gaussians.variances)

    @property
    def _wide_text(self) -> Array:
        backend = Backend.of(self.prototypes)
        return backend.asarray(self._text, backend.xp.float64)

    def _text_log_posterior(self, features: Array) -> Array:
        return log_posterior(features, self._text, self.logit_scale)

    def _assignments(self, log_y: Array, affinity: Affinity, neighbour_weight: float = 1.0) -> Assignments:
        return Assignments(
            log_prior=self._text_exponent * log_y,
            affinity=affinity,
            neighbour_weight=neighbour_weight / (2 * self.neighbours),
            temperature=self.temperature,
            iterations=self.inner_iterations,
        )

    def _alternate(
        self,
        features: Array,
        start: Solution,
        assignments: Assignments,
        fit: Callable[[Array, ClassGaussians], ClassGaussians],
    ) -> Solution:
        """Assign, fit, assign, ..., assign. `fit` computes new Gaussians from assignments and the old Gaussians."""
        z, gaussians, gamma = start
        for iteration in range(self.iterations + 1):
            z = assignments.update(z, log_densities(features, gaussians))
            if iteration < self.iterations:
                gaussians = fit(z, gaussians)
        return Solution(z, gaussians, gamma)

    def _store(self, solution: Solution) -> None:
        """Assign what was learned to the state."""
        self._gaussians = solution.gaussians

    def _adapt_scores(self, rows: Rows) -> Iterator[tuple[slice, Array]]:
        size = self._batch_rows(len(rows))
        for start in range(0, len(rows), size):
            batch = slice(start, min(start + size, len(rows)))
            solution = self._solve(rows[batch])
            if batch.stop == len(rows):
                with self._learning(len(rows), replace=True):
                    self._store(solution)
            yield batch, solution.z

    def _predict_scores(self, features: Array) -> Array:
        if self.n_seen == 0:
            return namespace(features).exp(log_posterior(features, self.prototypes, self.logit_scale))
        scores = log_densities(features, self._gaussians)
        scores /= self.temperature
        scores += self._text_exponent * self._text_log_posterior(features)
        return softmax(scores)

    def _frozen(self, x: Expression) -> Expression:
        if self.n_seen == 0:
            return x.linear(self.logit_scale * self.prototypes64).softmax()
        means, variances = self._gaussians
        xp, factor = namespace(means), 1.0 / self.temperature
        slopes = means / variances
        offsets = -0.5 * xp.sum(means * slopes, axis=1)
        if len(variances.shape) == 2:
            offsets = offsets - 0.5 * xp.sum(xp.log(variances), axis=1)
        text = (self._text_exponent * self.logit_scale) * self._wide_text
        scores = x.linear(text + factor * slopes, factor * offsets)
        if len(variances.shape) == 2:
            scores = scores + (x * x).linear((-0.5 * factor) / variances)
        return scores.softmax()

    def _probabilities(self, scores: Array) -> Array:
        return normalize_rows(scores)
