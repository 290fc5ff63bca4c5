"""TransCLIP and Histo-TransCLIP: a whole set classified together by Gaussians, text and neighbours."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from zeroshift.arrays import Array, Backend, Labelled, checked_labelled, namespace
from zeroshift.methods._shared.few_shot import accuracy
from zeroshift.methods._shared.gaussian_method import (
    ClassGaussians,
    GaussianMethod,
    WeightedSums,
    mean_directions,
    neighbour_sums,
    shared_variance,
)
from zeroshift.methods._shared.prompts import checked_prompts
from zeroshift.methods._shared.similarity import unit_rows
from zeroshift.methods._shared.top_k import nearest, top_k
from zeroshift.parameters import Choice, Flag, Number, Optional, array_parameter, parameter, state
from zeroshift.state_checks import within
from zeroshift.zero_shot import log_posterior

GAMMAS = (0.002, 0.01, 0.02, 0.2)
"""The weights of labelled samples that the authors search, in their order."""

DEFAULT_GAMMA = 0.02


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

    _gamma: float = state(DEFAULT_GAMMA, holds=within(0))

    @property
    def _text_exponent(self) -> float:
        return 1.0 if self.text_weight is None else self.text_weight

    def _initial_variances(self) -> Array:
        return self.zeros(self.dimension) + 1 / self.dimension

    def fit(self, features: Array) -> tuple[Array, dict[str, Any]]:
        z, gaussians, _ = next(self._solutions(features, None, (0.0,)))
        return z, {"_gaussians": gaussians}

    def _solutions(
        self, features: Array, support: tuple[Array, Array] | None, gammas: tuple[float, ...], *, released: bool = False
    ) -> Iterator[tuple[Array, ClassGaussians, float]]:
        """Assignments and Gaussians for each weight of labelled samples (S, d) with one-hot labels (S, K)."""
        log_y = log_posterior(features, self._text, self.logit_scale)
        neighbours = neighbour_sums(features, self.neighbours, support, released=released)
        totals = WeightedSums.of(*support, 1 / len(support[0])) if support else None
        z, squares = namespace(features).exp(log_y), (features * features).sum(axis=0)
        if self.initial_means == "text":
            means = self._text
        elif totals is not None:
            means = mean_directions(totals.mass, totals.sums, self._text)
        else:
            means = confident_means(features, log_y, self.confident, self._text)
        gaussians = ClassGaussians(means, self._initial_variances())
        for gamma in gammas:

            def refit(z: Array, before: ClassGaussians, gamma: float = gamma) -> ClassGaussians:
                """Unit-length means and one diagonal variance; a class without mass keeps its mean."""
                sums = WeightedSums(*(part / len(features) for part in (z.sum(axis=0), z.T @ features, squares)))
                sums = sums if totals is None else sums.plus(totals, self.temperature * gamma)
                means = mean_directions(sums.mass, sums.sums, before.means)
                return ClassGaussians(means, shared_variance(sums, means))

            solution = self._alternate(features, log_y, z, gaussians, neighbours, refit)
            yield *solution, gamma
            if released:
                z, gaussians = solution


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

    _gamma: float = state(lambda self: self.gamma, holds=within(0))

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
        return 0.5 if self.text_weight is None and self.support is not None else super()._text_exponent

    def fit(self, features: Array) -> tuple[Array, dict[str, Any]]:
        if self.support is None:
            return super().fit(features)
        backend = Backend.of(features)
        one_hot = backend.xp.eye(self.n_classes, dtype=features.dtype, device=backend.device)
        support = backend.asarray(self.support[0], features.dtype), one_hot[backend.index(self.support[1])]
        gammas = (self.gamma,) if self.validation is None and not self.released else GAMMAS
        solutions = list(self._solutions(features, support, gammas, released=self.released))
        z, gaussians, gamma = solutions[-1]
        if self.validation is not None and not self.released:
            others, labels = self.validation
            nearest_sample = nearest(backend.asarray(others, features.dtype), features, 1)[1][:, 0]
            z, gaussians, gamma = max(solutions, key=lambda one: accuracy(one[0][nearest_sample], labels))
        return z, {"_gaussians": gaussians, "_gamma": gamma}


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
        prompts = unit_rows(namespace(self.prompts).astype(self.prompts, self.prototypes64.dtype))
        self._mean_prompts = unit_rows(prompts.mean(axis=1)) if self.renormalise else prompts.mean(axis=1)

    @property
    def _text(self) -> Array:
        return self._mean_prompts


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
    return mean_directions(weights.sum(axis=1), sums, default)
