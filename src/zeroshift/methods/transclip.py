"""TransCLIP: a whole set classified at once by Gaussians, text and neighbours."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from zeroshift.arrays import Array, Home, Labelled, checked_labelled, namespace
from zeroshift.methods._shared.affinity import Affinity, few_shot_affinity, neighbour_affinity
from zeroshift.methods._shared.few_shot import accuracy_of
from zeroshift.methods._shared.gaussian_method import (
    GaussianMethod,
    Gaussians,
    Solution,
    Statistics,
    mean_directions,
    shared_variance,
    statistics,
    sum_of_squares,
)
from zeroshift.methods._shared.top_k import nearest, top_k
from zeroshift.parameters import Choice, Flag, Number, Optional, array_parameter, parameter

__all__ = ["GAMMAS", "SharedVarianceFit", "TransCLIP", "confident_means"]


# TransCLIP's Gaussians: where the class means start, and how means and one shared variance follow assignments.


@dataclass(frozen=True)
class SharedVarianceFit:
    """Means of unit length and one diagonal variance from a set's assignments, and from labelled samples if any."""

    features: Array
    squares: Array
    """sum_i x_i^2, (d,): it is the same in every round."""
    labelled: Statistics | None = None
    """Of the labelled samples, all together of mass 1, as the set is."""
    weight: float = 0.0
    """Theirs; the set has weight 1."""

    def __call__(self, z: Array, gaussians: Gaussians) -> Gaussians:
        """New ones; a class without mass keeps its mean."""
        gathered = statistics(self.features, z, self.squares).times(1 / self.features.shape[0])
        if self.labelled is not None:
            gathered = gathered.plus(self.labelled, self.weight)
        means = mean_directions(gathered.mass, gathered.sums, gaussians.means)
        return Gaussians(means, shared_variance(gathered, means))


def confident_means(features: Array, log_y: Array, confident: int, otherwise: Array) -> Array:
    """The direction of each class's most probable samples, weighted by how probable they are; (K, d), float64.

    >>> import numpy as np
    >>> y = np.array([[0.8, 0.2], [0.6, 0.4], [0.1, 0.9]])
    >>> confident_means(np.array([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8]]), np.log(y), 2, np.eye(2)).round(3)
    array([[0.8  , 0.6  ],
           [0.434, 0.901]])
    """
    xp = namespace(features)
    logs, samples = top_k(log_y.T, confident)
    # Relative to the most probable one: of an improbable class every posterior might underflow.
    weights = xp.exp(logs - logs[:, :1])
    sums = xp.matmul(weights[:, None, :], features[samples])[:, 0, :]
    wide = xp.float64
    return mean_directions(xp.sum(weights, axis=1, dtype=wide), xp.astype(sums, wide, copy=False), otherwise)


GAMMAS = (0.002, 0.01, 0.02, 0.2)
"""The weights of labelled samples the authors search, in their order."""

TEXT_WEIGHT, FEW_SHOT_TEXT_WEIGHT = 1.0, 0.5


class TransCLIP(GaussianMethod):
    """Classifies a whole set at once: Gaussian classes with one shared diagonal variance are fitted to soft assignments
    that the text's posterior, the likelihood and each sample's nearest neighbours agree on. The two are found by turns.

    Labelled support samples can be added. `adapt` starts afresh from the set it is given; `predict` then scores other
    features. Before any set it gives the zero-shot posterior, with labelled samples too.

    Examples
    --------
    >>> import numpy as np
    >>> from zeroshift.methods import TransCLIP
    >>> features = np.eye(3, 8)[[0, 1, 2, 1]]
    >>> TransCLIP(np.eye(3, 8), logit_scale=10.0).adapt(features).argmax(axis=1)
    array([0, 1, 2, 1])

    Notes
    -----
    *Boosting Vision-Language Models with Transduction*, NeurIPS 2024, after the authors' code. There the number of
    classes is that of different labels in the set, so that an absent class breaks it; here it is the number of
    prototypes, and a class without mass keeps its mean. There the first of the nearest samples is dropped, taken to be
    the sample itself; here it is left out by its number, the same but for duplicates. Variances have a floor of a
    millionth of 1/d. The authors predict no samples outside the set: `predict` is ours, with the learned means and
    variances and the text but without neighbours.

    With labelled samples the authors' affinity is out of order (its rows begin with the labelled samples, the
    assignments it is multiplied with do not), a labelled sample drops its nearest neighbour as if that were itself,
    every gamma goes on from the one before, and the answer is that of the last. `released=True` does all that, whatever
    `gamma` and `validation` are. By default every gamma starts afresh and the answer is that of the best.
    """

    name = "transclip"
    state_size = "K d + d"
    complexity = "O(N^2 d + N K d)"

    text_weight: float | None = parameter(
        Optional(Number(low=0)),
        "Power of the text's posterior (lambda). None, the default, is 1, and 0.5 with `support`.",
        default=None,
    )
    confident: int = parameter(
        Number(low=1, integer=True), "Most probable samples a class's first mean is taken from.", default=8
    )
    initial_means: str = parameter(
        Choice(("confident", "text")),
        "Where the means start: at those samples, or at the labelled ones with `support`; or at the prototypes, as in the copy of TransCLIP that StatA is compared with.",
        default="confident",
    )
    support: tuple[Array, Array] | None = array_parameter(
        "Labelled samples, unit features (S, d) and class indices (S,).", default=None
    )
    gamma: float = parameter(
        Number(low=0),
        "Weight of the labelled samples: all of them together count as much as `gamma` times `temperature` sets. The default, 1/50, gives them the weight of the whole set; it is ours, the authors always search.",
        default=0.02,
    )
    validation: tuple[Array, Array] | None = array_parameter(
        "Labelled samples to choose gamma with, of 0.002, 0.01, 0.02 and 0.2 the first that none beats. Each is predicted as the sample of the set nearest to it. `gamma` is not used then.",
        default=None,
    )
    released: bool = parameter(Flag(), "With `support`, as the authors' code: see Notes.", default=False)

    support: Labelled | None = None
    gamma: float = 0.02
    validation: Labelled | None = None
    released: bool = False

    def _validate(self) -> None:
        if self.support is not None:
            self.support = checked_labelled("support", self.support, self.prototypes)
        if self.validation is None:
            return
        if self.support is None:
            raise ValueError(
                "validation chooses the weight of labelled samples, but support is None: there are none. "
                "Fix: support=(features, labels), or leave out validation."
            )
        self.validation = checked_labelled("validation", self.validation, self.prototypes)

    @property
    def chosen(self) -> dict[str, float]:
        """The weight of labelled samples in what was learned last; nothing without `support`."""
        return {} if self.support is None else {"gamma": self._gamma}

    @property
    def _text_share(self) -> float:
        if self.text_weight is not None:
            return self.text_weight
        return TEXT_WEIGHT if self.support is None else FEW_SHOT_TEXT_WEIGHT

    def _begin(self) -> None:
        super()._begin()
        self._gamma = self.gamma

    def _first_variances(self) -> Array:
        return Home.of(self.prototypes).zeros((self.dimension,)) + 1 / self.dimension

    def _keep(self, solution: Solution) -> None:
        super()._keep(solution)
        self._gamma = solution.gamma

    def _solve(self, features: Array) -> Solution:
        solutions = self._solutions(features)
        best = next(solutions)
        if self.released or self.validation is None:
            for best in solutions:  # noqa: B007 (the last is wanted)
                pass
            return best
        home = Home.of(features)
        held_out, labels = self.validation
        nearest_sample = nearest(home.bring(held_out, features.dtype), features, 1)[1][:, 0]
        most = accuracy_of(best.z[nearest_sample], labels)
        for solution in solutions:
            right = accuracy_of(solution.z[nearest_sample], labels)
            if right > most:
                best, most = solution, right
        return best

    def _solutions(self, features: Array) -> Iterator[Solution]:
        """One for each gamma tried, in order; the only one without labelled samples."""
        log_y = self._log_text(features)
        labelled = self._labelled()
        first = Gaussians(self._first_means(features, log_y, labelled), self._first_variances())
        start = Solution(namespace(features).exp(log_y), first)
        assignments = self._assignments(log_y, self._affinity(features))
        squares = sum_of_squares(features)
        searched = labelled is not None and (self.released or self.validation is not None)
        for gamma in GAMMAS if searched else (self.gamma,):
            fit = SharedVarianceFit(features, squares, labelled, self.temperature * gamma)
            solution = self._alternate(features, start._replace(gamma=gamma), assignments, fit)
            if self.released:
                start = solution
            yield solution

    def _affinity(self, features: Array) -> Affinity:
        if self.support is None:
            return neighbour_affinity(features, self.neighbours)
        support = Home.of(features).bring(self.support[0], features.dtype)
        one_hot = self._one_hot(features.dtype)
        return few_shot_affinity(features, support, one_hot, self.neighbours, released=self.released)

    def _first_means(self, features: Array, log_y: Array, labelled: Statistics | None) -> Array:
        if self.initial_means == "text":
            return self._wide_text
        if labelled is not None:
            return mean_directions(labelled.mass, labelled.sums, self._wide_text)
        return confident_means(features, log_y, self.confident, self._wide_text)

    def _labelled(self) -> Statistics | None:
        """Statistics of the labelled samples, each of mass 1/S."""
        if self.support is None:
            return None
        home = Home.of(self.prototypes)
        wide = home.bring(self.support[0], home.xp.float64)
        return statistics(wide, self._one_hot(home.xp.float64)).times(1 / wide.shape[0])

    def _one_hot(self, dtype: Any) -> Array:
        assert self.support is not None
        home = Home.of(self.prototypes)
        return home.xp.eye(self.n_classes, dtype=dtype, device=home.device)[home.index(self.support[1])]

    def _state(self) -> tuple[dict[str, Array], dict[str, Any]]:
        arrays, values = super()._state()
        return arrays, {**values, "gamma": self._gamma}

    def _restore(self, arrays: Mapping[str, Array], values: Mapping[str, Any]) -> None:
        super()._restore(arrays, values)
        self._gamma = self.constraints["gamma"].check("gamma", values["gamma"])
