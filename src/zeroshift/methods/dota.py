"""DOTA: a Gaussian per class, estimated from soft labels as the stream passes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

from zeroshift.adapt.statistics import discriminant, linear_head
from zeroshift.arrays import Array, Backend, namespace, to_numpy
from zeroshift.linalg import add_to_diagonal, invert_positive
from zeroshift.method import OnlineViewMethod
from zeroshift.parameters import Choice, Number, parameter, state
from zeroshift.state_checks import check_lengths, check_range, check_seen, check_semidefinite
from zeroshift.views import select_lowest_entropy
from zeroshift.zero_shot import observe, softmax

PRESETS: Mapping[str, tuple[float, float, float]] = {
    "imagenet": (1e-4, 0.2, 0.005),
    "imagenet_a": (1e-4, 0.5, 0.02),
    "imagenet_r": (1e-4, 0.3, 0.0025),
    "imagenet_sketch": (1e-4, 0.8, 0.03),
    "imagenetv2": (1e-4, 0.1, 0.01),
    "caltech101": (2e-3, 0.3, 0.02),
    "dtd": (1e-4, 0.3, 0.02),
    "ucf101": (1e-4, 0.4, 0.02),
    "eurosat": (1e-4, 3.0, 0.05),
    "fgvc_aircraft": (1e-4, 0.2, 0.01),
    "food101": (4e-5, 0.1, 0.01),
    "oxford_flowers": (1e-4, 0.2, 0.02),
    "oxford_pets": (1e-4, 0.3, 0.02),
    "stanford_cars": (1e-4, 0.3, 0.01),
    "sun397": (1e-4, 0.2, 0.01),
}
"""The authors' epsilon, eta and rho for each of their data sets."""


class SoftLabels(NamedTuple):
    """Samples with the mean of their views kept, those views and their soft labels; a single sample is its own view."""

    features: Array
    """(n, d)."""
    logits: Array
    """(n, K)."""
    views: Array
    """(n, V, d)."""
    y: Array
    """(n, V, K)."""


class DOTA(OnlineViewMethod):
    """Estimates a Gaussian per class from zero-shot soft labels, with the mean of their covariances shared by all, and
    adds the discriminant to the logits, with a weight that grows with the samples seen. A sample is predicted before it
    is learned from.

    Examples
    --------
    >>> import numpy as np
    >>> from zeroshift.methods import DOTA
    >>> method = DOTA(np.eye(2), logit_scale=5.0, epsilon=0.1, sigma=0.5, eta=1.0, rho=0.1, constant=0.0)
    >>> method.adapt_scores(np.array([[0.8, 0.6], [0.6, 0.8]])).round(6)
    array([[4.      , 3.      ],
           [3.068481, 4.039195]])

    Notes
    -----
    Han et al., *DOTA: Distributional Test-Time Adaptation of Vision-Language Models*, NeurIPS 2025 (arXiv 2409.19375);
    released code skylineeeeen/DOTA, commit bc67d44. The authors provide `epsilon`, `eta` and `rho` for each data set
    (`DOTA.preset("dtd")`). Scores are logits.

    Differences from that code: with fewer than ten views one is kept, not none; nothing is cast to half precision;
    until something is learned, `predict` returns the zero-shot posterior.
    """

    name = "dota"
    headline = "Gaussians from zero-shot soft labels"
    linear = True
    scored = "before"
    state_size = "K d^2"
    complexity = "O(K d^2 + d^3) per sample"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        name: {"epsilon": epsilon, "eta": eta, "rho": rho} for name, (epsilon, eta, rho) in PRESETS.items()
    }

    epsilon: float = parameter(
        Number(low=0, high=1), "Share of the identity added to the covariance before it is inverted.", default=1e-4
    )
    sigma: float = parameter(
        Number(low=0, above=True), "Initial variance of every class, which counts as one sample.", default=0.002
    )
    eta: float = parameter(Number(low=0), "Largest weight of the discriminant.", default=0.3)
    rho: float = parameter(
        Number(low=0), "Weight of the discriminant per sample seen by a class on average, up to `eta`.", default=0.02
    )
    initial_means: str = parameter(
        Choice(("constant", "text")),
        'Initial means: "constant" sets every coordinate to `constant`, as in the code of the NeurIPS version; "text" '
        "uses the prototypes, as in the first release.",
        default="constant",
    )
    constant: float = parameter(
        Number(low=-1, high=1), "Initial value of every coordinate of the means; see `initial_means`.", default=0.001
    )

    check_exceptions: ClassVar[Mapping[str, str]] = {
        "axes_do_not_matter": "the means start at the same number in every coordinate, as in the authors' code",
    }

    _means: Array = state(lambda self: self._initial_means(), check=lambda self, means: self._check_means(means))
    _counts: Array = state(
        lambda self: self.zeros(self.n_classes) + 1.0,
        check=lambda self, counts: check_seen("the sum of counts - 1", float((counts - 1).sum()), self.n_seen),
    )
    # Sums of y (x - mu)(x - mu)^T; sigma I is added when the covariance is computed.
    _sums: Array = state(
        lambda self: self.zeros(self.n_classes, self.dimension, self.dimension),
        check=lambda self, sums: self._check_sums(sums),
    )

    def _initial_means(self) -> Array:
        if self.initial_means == "text":
            return Backend.of(self.prototypes).copy(self.prototypes64)
        return self.zeros(self.n_classes, self.dimension) + self.constant

    @property
    def _longest(self) -> float:
        """Means move from their initial values towards samples."""
        return max(1.0, abs(self.constant) * self.dimension**0.5)

    def _check_means(self, means: Array) -> None:
        check_lengths("means", means, longest=self._longest)

    def _check_sums(self, sums: Array) -> None:
        # A sum of squares, weighted by the counts, of distances between samples and means.
        check_range("counts", self._counts, 1)
        ratios, largest = to_numpy(sums) / to_numpy(self._counts)[:, None, None], 1.1 * (1 + self._longest) ** 2
        check_range("sums / counts", ratios, -largest, largest)
        check_semidefinite("sums", sums)

    @property
    def means(self) -> Array:
        """Class means (K, d), float64."""
        return Backend.of(self.prototypes).copy(self._means)

    @property
    def counts(self) -> Array:
        """Soft counts (K,), float64: one plus the soft labels of all samples seen."""
        return Backend.of(self.prototypes).copy(self._counts)

    @property
    def covariance(self) -> Array:
        """The mean (d, d) of the covariances of all classes, float64."""
        return Backend.of(self.prototypes).copy(self._shared)

    @property
    def precision_matrix(self) -> Array:
        """Inverse (d, d) of the covariance with its share of the identity, float64."""
        return Backend.of(self.prototypes).copy(self._precision)

    def _derive(self) -> None:
        xp, d = namespace(self._sums), self.dimension
        weights = 1 / (self.n_classes * self._counts)
        self._shared = add_to_diagonal(
            (weights @ self._sums.reshape(-1, d * d)).reshape(d, d), self.sigma * xp.sum(weights)
        )
        # The authors add the identity from the first update on, not before.
        epsilon = self.epsilon if bool((self._counts > 1).any()) else 0.0
        self._precision = invert_positive(add_to_diagonal((1 - epsilon) * self._shared, epsilon))
        self._head = linear_head(self._means, self._precision)

    def observe(self, features: Array) -> SoftLabels:
        x = observe(features, self.prototypes64, self.logit_scale)
        return SoftLabels(features, x.logits, features[:, None], x.y[:, None])

    def observe_views(self, views: Array) -> SoftLabels:
        xp, x = namespace(views), observe(views, self.prototypes64, self.logit_scale)
        kept = select_lowest_entropy(x.logits, self.view_ratio)
        features, scores = (xp.mean(part[kept], axis=0, keepdims=True) for part in (views, x.logits))
        return SoftLabels(features, scores, views[kept][None], softmax(x.logits[kept])[None])

    def learn(self, x: SoftLabels) -> None:
        """Every class learns from each view x with the weight y_k, all with the means before:

        S_k += y_k (x - mu_k)(x - mu_k)^T,   mu_k = (c_k mu_k + y_k x) / (c_k + y_k),   c_k += y_k.
        """
        for k in range(self.n_classes):
            centred = (x.views - self._means[k]) * (x.y[:, k] ** 0.5)[:, None]
            self._sums[k] += centred.T @ centred
        counts = self._counts + x.y.sum(axis=0)
        self._means = (self._counts[:, None] * self._means + x.y.T @ x.views) / counts[:, None]
        self._counts = counts
        self._derive()

    def score(self, x: SoftLabels) -> Array:
        weight = min(self.rho * float(namespace(self._counts).mean(self._counts)) / x.views.shape[1], self.eta)
        return x.logits + weight * discriminant(x.features, *self._head)

    def _predict_scores(self, features: Array) -> Array:
        # Before anything is learned, the initial Gaussians say nothing.
        x = self.observe(features)
        return self.score(x) if self._n_seen else x.logits
