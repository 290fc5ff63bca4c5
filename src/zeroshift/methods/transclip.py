"""TransCLIP and Histo-TransCLIP: a whole set classified together by Gaussians, text and neighbours."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from zeroshift.arrays import Array, Backend, Labelled, checked_labelled, namespace
from zeroshift.methods._shared.few_shot import accuracy
from zeroshift.methods._shared.gaussian_method import (
    Affinity,
    ClassGaussians,
    GaussianMethod,
    Solution,
    WeightedSums,
    few_shot_affinity,
    mean_directions,
    neighbour_affinity,
    shared_variance,
    sum_of_squares,
    weighted_sums,
)
from zeroshift.methods._shared.prompts import checked_prompts
from zeroshift.methods._shared.similarity import unit_rows
from zeroshift.methods._shared.top_k import nearest, top_k
from zeroshift.parameters import Choice, Flag, Number, Optional, array_parameter, parameter, state
from zeroshift.state_checks import check_range

__all__ = ["GAMMAS", "HistoTransCLIP", "SharedVarianceFit", "TransCLIP", "TransCLIPBase", "confident_means"]

GAMMAS = (0.002, 0.01, 0.02, 0.2)
"""The weights of labelled samples that the authors search, in their order."""

DEFAULT_GAMMA = 0.02

TEXT_WEIGHT, FEW_SHOT_TEXT_WEIGHT = 1.0, 0.5


class TransCLIPBase(GaussianMethod):
    """TransCLIP without labelled samples: initial means, shared variance, text and neighbours."""

    state_size = "K d + d"
    complexity = "O(N^2 d + N K d)"

    text_weight: float | None = parameter(
        Optional(Number(low=0)),
        "Exponent of the text posterior (lambda in the paper). None means 1.",
        default=None,
    )
    confident: int = parameter(
        Number(low=1, integer=True),
        "Most probable samples per class that the initial mean is computed from.",
        default=8,
    )
    initial_means: str = parameter(
        Choice(("confident", "text")),
        'Initial class means. "confident": the most probable samples. "text": the prototypes, as in the version of '
        "TransCLIP that the StatA paper compares with.",
        default="confident",
    )

    _gamma: float = state(DEFAULT_GAMMA)

    @property
    def _text_exponent(self) -> float:
        return TEXT_WEIGHT if self.text_weight is None else self.text_weight

    def _initial_variances(self) -> Array:
        return Backend.of(self.prototypes).zeros((self.dimension,)) + 1 / self.dimension

    def _solve(self, features: Array) -> Solution:
        log_y = self._text_log_posterior(features)
        assignments = self._assignments(log_y, neighbour_affinity(features, self.neighbours))
        fit = SharedVarianceFit(features, sum_of_squares(features))
        return self._alternate(features, self._start(features, log_y), assignments, fit)

    def _start(self, features: Array, log_y: Array) -> Solution:
        """The assignments and Gaussians of the first round."""
        initial = ClassGaussians(self._initial_class_means(features, log_y), self._initial_variances())
        return Solution(namespace(features).exp(log_y), initial)

    def _initial_class_means(self, features: Array, log_y: Array) -> Array:
        if self.initial_means == "text":
            return self._wide_text
        return confident_means(features, log_y, self.confident, self._wide_text)


class TransCLIP(TransCLIPBase):
    """Classifies a whole set together. It alternates between fitting Gaussian classes with one shared diagonal
    variance, and soft assignments that combine text posterior, likelihood and the nearest neighbours of each sample.

    Labelled support samples can be added. Every call of `adapt` starts from the beginning with the set it is given;
    `predict` then scores other features. Before any set, `predict` returns the zero-shot posterior, also with labelled
    samples.

    Examples
    --------
    >>> import numpy as np
    >>> from zeroshift.methods import TransCLIP
    >>> features = np.eye(3, 8)[[0, 1, 2, 1]]
    >>> TransCLIP(np.eye(3, 8), logit_scale=10.0).adapt(features).argmax(axis=1)
    array([0, 1, 2, 1])

    Notes
    -----
    *Boosting Vision-Language Models with Transduction*, NeurIPS 2024, after the authors' code. There, the number of
    classes is the number of different labels in the set, so an absent class causes an error; here it is the number of
    prototypes, and a class without mass keeps its mean. There, the first of the nearest samples is dropped as the
    sample itself; here the sample itself is excluded by its index, which is the same except for duplicates. Variances
    have a floor of a millionth of 1/d. The authors predict no samples outside the set: `predict` is ours, with the
    learned means and variances and the text but without neighbours.

    With labelled samples, the authors' affinity is in the wrong order (its rows begin with the labelled samples, the
    assignments it is multiplied with do not), a labelled sample drops its nearest neighbour as if that were itself,
    every gamma starts from the result of the gamma before, and the result is that of the last. `released=True`
    reproduces all this, whatever `gamma` and `validation` are. By default, every gamma starts from the beginning and
    the result is that of the best.
    """

    name = "transclip"
    headline = "Gaussians and nearest neighbours, jointly"

    text_weight: float | None = parameter(
        Optional(Number(low=0)),
        "Exponent of the text posterior (lambda in the paper). None means 1, and 0.5 with `support`.",
        default=None,
    )
    initial_means: str = parameter(
        Choice(("confident", "text")),
        'Initial class means. "confident": the most probable samples, or the labelled ones with `support`. "text": the '
        "prototypes, as in the version of TransCLIP that the StatA paper compares with.",
        default="confident",
    )
    support: Labelled | None = array_parameter(
        "Labelled samples: unit-length features (S, d) and class indices (S,).", default=None
    )
    gamma: float = parameter(
        Number(low=0),
        "Weight of the labelled samples: all of them together count as much as `gamma` times `temperature` sets. The "
        "default, 1/50, gives them the weight of the whole set. It is ours: the authors always search.",
        default=DEFAULT_GAMMA,
    )
    validation: Labelled | None = array_parameter(
        "Labelled samples that choose the weight of `support` among 0.002, 0.01, 0.02 and 0.2, the smallest of equally "
        "good ones; `gamma` is then not used. Each is predicted like the nearest sample of the set.",
        default=None,
    )
    released: bool = parameter(Flag(), "Compute as the authors' code does with `support`; see Notes.", default=False)

    _gamma: float = state(lambda self: self.gamma, check=lambda self, gamma: check_range("gamma", gamma, 0))

    def _validate(self) -> None:
        if self.support is not None:
            self.support = checked_labelled("support", self.support, self.prototypes)
        if self.validation is None:
            return
        if self.support is None:
            raise ValueError(
                "validation chooses the weight of the labelled samples in support, but support is None. "
                "Fix: support=(features, labels), or omit validation."
            )
        self.validation = checked_labelled("validation", self.validation, self.prototypes)

    @property
    def chosen(self) -> dict[str, float]:
        """The weight of labelled samples that was used last; empty without `support`."""
        return {} if self.support is None else {"gamma": self._gamma}

    @property
    def _text_exponent(self) -> float:
        if self.text_weight is None and self.support is not None:
            return FEW_SHOT_TEXT_WEIGHT
        return super()._text_exponent

    def _store(self, solution: Solution) -> None:
        super()._store(solution)
        self._gamma = solution.gamma

    def _solve(self, features: Array) -> Solution:
        if self.support is None:
            return super()._solve(features)._replace(gamma=self.gamma)
        solutions = self._solutions(features, self.support)
        best = next(solutions)
        if self.released or self.validation is None:
            for best in solutions:  # noqa: B007 (the last is wanted)
                pass
            return best
        backend = Backend.of(features)
        validation_features, labels = self.validation
        nearest_sample = nearest(backend.asarray(validation_features, features.dtype), features, 1)[1][:, 0]
        best_accuracy = accuracy(best.z[nearest_sample], labels)
        for solution in solutions:
            its_accuracy = accuracy(solution.z[nearest_sample], labels)
            if its_accuracy > best_accuracy:
                best, best_accuracy = solution, its_accuracy
        return best

    def _solutions(self, features: Array, support: Labelled) -> Iterator[Solution]:
        """One solution for each gamma that is tried, in order."""
        log_y = self._text_log_posterior(features)
        assignments = self._assignments(log_y, self._labelled_affinity(features, support))
        start, squares, labelled = self._start(features, log_y), sum_of_squares(features), self._labelled_sums(support)
        for gamma in (self.gamma,) if self.validation is None and not self.released else GAMMAS:
            fit = SharedVarianceFit(features, squares, labelled, self.temperature * gamma)
            solution = self._alternate(features, start._replace(gamma=gamma), assignments, fit)
            if self.released:
                start = solution
            yield solution

    def _labelled_affinity(self, features: Array, support: Labelled) -> Affinity:
        support_features = Backend.of(features).asarray(support[0], features.dtype)
        one_hot = self._one_hot(support, features.dtype)
        return few_shot_affinity(features, support_features, one_hot, self.neighbours, released=self.released)

    def _initial_class_means(self, features: Array, log_y: Array) -> Array:
        if self.support is None or self.initial_means == "text":
            return super()._initial_class_means(features, log_y)
        labelled = self._labelled_sums(self.support)
        return mean_directions(labelled.mass, labelled.sums, self._wide_text)

    def _labelled_sums(self, support: Labelled) -> WeightedSums:
        """Sums over the labelled samples, each of mass 1/S."""
        backend = Backend.of(self.prototypes)
        wide = backend.asarray(support[0], backend.xp.float64)
        return weighted_sums(wide, self._one_hot(support, backend.xp.float64)).times(1 / wide.shape[0])

    def _one_hot(self, support: Labelled, dtype: Any) -> Array:
        backend = Backend.of(self.prototypes)
        return backend.xp.eye(self.n_classes, dtype=dtype, device=backend.device)[backend.index(support[1])]


class HistoTransCLIP(TransCLIPBase):
    """TransCLIP with the mean of each class's prompts as its text embedding, not scaled to unit length. The mean is
    shorter the less the prompts agree, so logits are smaller and favour classes whose prompts agree.

    Examples
    --------
    >>> import numpy as np
    >>> from zeroshift.methods import HistoTransCLIP
    >>> prompts = np.array([[[1.0, 0.0], [0.6, 0.8]], [[0.0, 1.0], [0.0, 1.0]]])
    >>> method = HistoTransCLIP(np.eye(2), prompts=prompts, logit_scale=10.0)
    >>> method.adapt(np.array([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0]])).argmax(axis=1)
    array([0, 0, 1])

    Notes
    -----
    *Boosting Vision-Language Models for Histopathology Classification: Predict all at once*, 2024 (arXiv 2409.01883),
    after the authors' code, which differs from TransCLIP's only in the mean of the prompts. The notes on `TransCLIP`
    apply here too.
    """

    name = "histo_transclip"
    headline = "TransCLIP with the mean of several prompts"
    needs = ("prototypes", "prompts")

    prompts: Array = array_parameter("Unit-length embeddings of P prompts per class, (K, P, d).")
    renormalise: bool = parameter(
        Flag(), "Scale the mean of the prompts to unit length, which the authors do not.", default=False
    )

    def _validate(self) -> None:
        self.prompts = checked_prompts(self.prompts, self.prototypes)

    def _prepare(self) -> None:
        # Prompts of nearly unit length are accepted; the authors scale each of them before averaging.
        means = namespace(self.prompts).mean(unit_rows(self.prompts), axis=1)
        self._mean_prompts = unit_rows(means) if self.renormalise else means

    @property
    def _text(self) -> Array:
        return self._mean_prompts


@dataclass(frozen=True)
class SharedVarianceFit:
    """Fits unit-length means and one diagonal variance to the assignments of a set, and to labelled samples if any."""

    features: Array
    squares: Array
    """sum_i x_i^2, (d,), which is the same in every round."""
    labelled: WeightedSums | None = None
    """Sums over the labelled samples, of total mass 1 like the set."""
    weight: float = 0.0
    """Weight of the labelled samples; the set has weight 1."""

    def __call__(self, z: Array, gaussians: ClassGaussians) -> ClassGaussians:
        """New Gaussians; a class without mass keeps its mean."""
        totals = weighted_sums(self.features, z, self.squares).times(1 / self.features.shape[0])
        if self.labelled is not None:
            totals = totals.plus(self.labelled, self.weight)
        means = mean_directions(totals.mass, totals.sums, gaussians.means)
        return ClassGaussians(means, shared_variance(totals, means))


def confident_means(features: Array, log_y: Array, confident: int, default: Array) -> Array:
    """The direction of each class's most probable samples, weighted by their probability; (K, d), float64.

    >>> import numpy as np
    >>> y = np.array([[0.8, 0.2], [0.6, 0.4], [0.1, 0.9]])
    >>> confident_means(np.array([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8]]), np.log(y), 2, np.eye(2)).round(3)
    array([[0.8  , 0.6  ],
           [0.434, 0.901]])
    """
    xp = namespace(features)
    logs, samples = top_k(log_y.T, confident)
    # Relative to the most probable one: all probabilities of an improbable class might underflow.
    weights = xp.exp(logs - logs[:, :1])
    sums = xp.matmul(weights[:, None, :], features[samples])[:, 0, :]
    mass = xp.sum(weights, axis=1, dtype=xp.float64)
    return mean_directions(mass, xp.astype(sums, xp.float64, copy=False), default)
