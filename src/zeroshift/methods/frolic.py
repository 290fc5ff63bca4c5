"""Frolic: prompt distributions, and a classifier whose label bias is measured on the set itself and removed."""

from __future__ import annotations

import math

from zeroshift.adapt.statistics import linear_head
from zeroshift.arrays import Array, Backend, namespace
from zeroshift.methods._shared.linear_head import LinearHead, TransductiveLinearMethod
from zeroshift.methods._shared.prompts import checked_prompts
from zeroshift.methods._shared.similarity import unit_rows
from zeroshift.methods._shared.sinkhorn import sinkhorn
from zeroshift.parameters import Choice, Number, Optional, array_parameter, parameter
from zeroshift.zero_shot import log_softmax, pseudo_class, softmax

BIAS_ROUNDS = {"released": 11, "paper": 1}
"""How often the label bias is measured and removed."""

TEMPERATURE_RANGE = 1e6
"""Temperatures tried are within this factor of the largest difference between two logits of a sample."""

SMALLEST_STEP = 1e-18
"""Steps below this are lost in the rounding of proxies, which have unit length."""

TINY = 1e-12
"""Added to a probability before its logarithm."""


class Frolic(TransductiveLinearMethod):
    """Treats the prompts of each class as samples of a Gaussian, learns a classifier from it and from the whole
    unlabelled set, and removes the classifier's bias towards each class. Without labels, and without hyper-parameters
    chosen with labels.

    Every call of `adapt` starts from the beginning with the set it is given. It costs two products of all features with
    2 K vectors per iteration, `proxy_iterations` times: minutes on a CPU for tens of thousands of features and a
    hundred classes. It ends earlier if the steps have become too small to change anything, which is frequent with few
    classes. `predict` scores other features with the learned classifier and bias, which is ours: the authors
    predict no other features. Before `adapt` it is the zero-shot classifier.

    Examples
    --------
    >>> import numpy as np
    >>> from zeroshift.methods import Frolic
    >>> prototypes = np.eye(3, 8)
    >>> frolic = Frolic(prototypes, prompts=prototypes[:, None, :], proxy_iterations=100)
    >>> frolic.adapt(prototypes[[0, 1, 2, 1]]).argmax(axis=1)
    array([0, 1, 2, 1])

    Notes
    -----
    Zhu et al., *Enhancing Zero-Shot Vision Models by Label-Free Prompt Distribution Learning and Bias Correcting*,
    NeurIPS 2024.

    "released" follows the authors' one released file. Their helpers are not released; `image_opt` and `sinkhorn` are
    assumed to be those of InMaP, which have one argument fewer, with its defaults. Two InMaP classifiers start from the
    prototypes, one with soft labels from cosines to the mean prompts, one from Gaussian logits with the diagonal of the
    covariance of features and prompts together, `1 / (0.1 v + 0.9)`. Their logits are added, and the bias is removed
    eleven times, measured on samples with a margin above 1 / K. Only the diagonal of the covariance is used, so
    rotating features and texts together can change soft labels; after hardening, they are mostly the same.

    "paper" is a reconstruction. The covariance is `mean x x^T - mean m m^T`, which is not positive definite if texts
    and images lie apart; a multiple of the identity is added so that the smallest eigenvalue is `ridge` times the
    largest absolute one. Gaussian logits, at the temperature at which they are as confident as the zero-shot ones, are
    added to those, and the bias, measured on every sample, is removed once.

    A class that is never predicted has no column in the bias matrix; if no sample has the margin, the bias stays
    uniform. Everything is computed in float64.
    """

    name = "frolic"
    headline = "Learns from prompts and set, removes class bias"
    overconfident = True
    needs = ("prototypes", "prompts")
    state_size = "K d"
    complexity = "O(I N K d), I = 4000 steps"

    prompts: Array = array_parameter(
        "Unit-length text embeddings of P prompts per class, (K, P, d): templates and descriptions."
    )
    variant: str = parameter(
        Choice(("released", "paper")),
        "Compute as the authors' code does, or as the paper describes (a reconstruction); see Notes.",
        default="released",
    )
    shrinkage: float = parameter(
        Number(low=0, high=1, above=True),
        'How far the variances of the prompts\' Gaussian are shrunk towards 1 ("released" only).',
        default=0.9,
    )
    label_temperature: float = parameter(
        Number(low=0, above=True), 'Temperature of the softmax that gives soft labels ("released" only).', default=0.01
    )
    label_gamma: float = parameter(
        Number(low=0),
        'Exponent of the class proportions that the Sinkhorn scaling of soft labels preserves ("released" only).',
        default=1.0,
    )
    label_iterations: int = parameter(
        Number(low=0, integer=True), 'Rounds of the Sinkhorn scaling of soft labels ("released" only).', default=20
    )
    hard_above: float = parameter(
        Number(low=0, high=1), 'Soft labels with a larger maximum are made one-hot ("released" only).', default=0.6
    )
    proxy_temperature: float = parameter(
        Number(low=0, above=True), 'Temperature of the InMaP classifiers ("released" only).', default=0.04
    )
    proxy_rate: float = parameter(
        Number(low=0, above=True), 'Initial step size of the InMaP classifiers ("released" only).', default=10.0
    )
    proxy_iterations: int = parameter(
        Number(low=0, integer=True), 'Number of steps of the InMaP classifiers ("released" only).', default=2000
    )
    ridge: float = parameter(
        Number(low=0, above=True),
        'Smallest eigenvalue of the prompts\' covariance, relative to the largest absolute one ("paper" only).',
        default=1.0,
    )
    bias_margin: float | None = parameter(
        Optional(Number(low=0)),
        "The bias is measured on samples whose two largest logits differ by more than this. None means 1 / K for "
        '"released", and all samples for "paper".',
        default=None,
    )
    bias_rounds: int | None = parameter(
        Optional(Number(low=0, integer=True)),
        'How often the bias is measured and removed. None means 11 for "released", 1 for "paper".',
        default=None,
    )
    bias_tolerance: float = parameter(
        Number(low=0), "The power iteration for the bias stops at a change below this.", default=1e-3
    )
    bias_iterations: int = parameter(
        Number(low=0, integer=True), "Largest number of steps of the power iteration for the bias.", default=100
    )

    def _validate(self) -> None:
        self.prompts = checked_prompts(self.prompts, self.prototypes)

    def _prepare(self) -> None:
        self._unit_prompts = unit_rows(namespace(self.prompts).astype(self.prompts, self.prototypes64.dtype))
        self._mean_prompts = mean_prompts(self._unit_prompts)

    def learned_head(self, features: Array) -> LinearHead:
        head = self._released_head(features) if self.variant == "released" else self._paper_head(features)
        return self._without_bias(head, features)

    def _released_head(self, features: Array) -> LinearHead:
        """Two InMaP classifiers with the same start and different soft labels, added."""
        means = self._mean_prompts
        precision = shrunken_precision(pooled_variance(features, self._unit_prompts), self.shrinkage)
        weights = self.zeros(self.n_classes, self.dimension)
        for scores in (features @ means.T, prompt_logits(features, means, precision)):
            labels = sinkhorn(
                scores, temperature=self.label_temperature, gamma=self.label_gamma, iterations=self.label_iterations
            )
            weights += refine_proxies(
                features,
                self.prototypes64,
                harden(labels, self.hard_above).T @ features,
                temperature=self.proxy_temperature,
                rate=self.proxy_rate,
                iterations=self.proxy_iterations,
            )
        return LinearHead(self.logit_scale * weights, self.zeros(self.n_classes))

    def _paper_head(self, features: Array) -> LinearHead:
        zero_shot, means = self._zero_shot, self._mean_prompts
        covariance, _ = moment_covariance(features, means, self.ridge)
        gaussian = LinearHead(*linear_head(means, namespace(features).linalg.inv(covariance)))
        temperature = matching_temperature(gaussian.scores(features), mean_confidence(zero_shot.scores(features)))
        return LinearHead(zero_shot.weights + gaussian.weights / temperature, gaussian.offsets / temperature)

    def _without_bias(self, head: LinearHead, features: Array) -> LinearHead:
        margin = self.bias_margin
        if margin is None:
            margin = 1 / self.n_classes if self.variant == "released" else -math.inf
        for _ in range(BIAS_ROUNDS[self.variant] if self.bias_rounds is None else self.bias_rounds):
            transition = transition_matrix(head.scores(features), margin)
            beta = stationary_vector(transition, tolerance=self.bias_tolerance, iterations=self.bias_iterations)
            head = LinearHead(head.weights, remove_bias(head.offsets, beta))
        return head


def transition_matrix(logits: Array, margin: float = -math.inf) -> Array:
    """Column k (K, K): the mean posterior of the samples whose largest logit is that of class k; zero if there is none.

    Of the logits (N, K), samples whose two largest differ by `margin` or less are ignored.

    >>> import numpy as np
    >>> transition_matrix(np.log(np.array([[0.8, 0.2], [0.6, 0.4], [0.3, 0.7]])))
    array([[0.7, 0.3],
           [0.3, 0.7]])
    """
    xp = namespace(logits)
    log_p = log_softmax(logits)
    label = pseudo_class(log_p)[:, None] == xp.arange(logits.shape[1], device=Backend.of(logits).device)
    second = xp.max(xp.where(label, -xp.inf, log_p), axis=1)
    clear = xp.max(log_p, axis=1) - second > margin
    chosen = xp.astype(label & clear[:, None], logits.dtype)
    return xp.exp(log_p).T @ chosen / xp.clip(chosen.sum(axis=0), min=1.0)


def stationary_vector(transition: Array, *, tolerance: float = 1e-3, iterations: int = 100) -> Array:
    """beta (K,) with A beta = beta, by power iteration from the uniform vector.

    It stops at the first change (L1) below `tolerance` and returns the vector before that change, as the released code
    does. If A beta is zero, the last vector is returned.

    >>> import numpy as np
    >>> stationary_vector(np.array([[0.8, 0.1], [0.2, 0.9]])).round(6)
    array([0.334948, 0.665052])
    """
    xp = namespace(transition)
    classes = transition.shape[0]
    beta = xp.full((classes,), 1 / classes, dtype=transition.dtype, device=Backend.of(transition).device)
    for _ in range(iterations):
        after = transition @ beta
        total = xp.sum(xp.abs(after))
        if float(total) == 0:
            break
        after = xp.clip(after / total, 0, None)
        if float(xp.sum(xp.abs(after - beta))) < tolerance:
            break
        beta = after
    return beta


def remove_bias(offsets: Array, beta: Array) -> Array:
    """Offsets of the logits, each class's lowered by ln beta, so that no class is favoured.

    >>> import numpy as np
    >>> remove_bias(np.zeros(2), np.array([0.334948, 0.665052])).round(4)
    array([1.0938, 0.4079])
    """
    return offsets - namespace(beta).log(beta + TINY)


def mean_confidence(logits: Array, temperature: float = 1.0) -> float:
    """Mean over samples of the largest probability, for logits (N, K) divided by a temperature.

    >>> import numpy as np
    >>> round(mean_confidence(np.array([[4.0, 3.0], [0.0, 0.0]])), 4)
    0.6155
    """
    xp = namespace(logits)
    return float(xp.mean(xp.max(softmax(logits / temperature), axis=1)))


def matching_temperature(logits: Array, confidence: float, *, tolerance: float = 1e-10) -> float:
    """The temperature at which `mean_confidence(logits, temperature)` is `confidence`, by bisection on its logarithm.

    Confidence decreases with the temperature. If no temperature in the range matches, the nearest end of the range is
    returned; if all logits are equal, 1.

    >>> import numpy as np
    >>> logits = np.array([[4.0, 3.0], [0.0, 5.0]])
    >>> round(matching_temperature(logits, mean_confidence(logits, 2.5)), 6)
    2.5
    """
    xp = namespace(logits)
    spread = float(xp.max(xp.max(logits, axis=1) - xp.min(logits, axis=1)))
    if spread == 0:
        return 1.0
    low, high = math.log(spread / TEMPERATURE_RANGE), math.log(spread * TEMPERATURE_RANGE)
    while high - low > tolerance:
        middle = (low + high) / 2
        if mean_confidence(logits, math.exp(middle)) > confidence:
            low = middle
        else:
            high = middle
    return math.exp((low + high) / 2)


def mean_prompts(prompts: Array) -> Array:
    """Unit means (K, d) of prompts (K, P, d)."""
    return unit_rows(prompts.mean(axis=1))


def pooled_variance(features: Array, prompts: Array) -> Array:
    """Unbiased variance (d,) of every dimension over features (N, d) and prompts (K, P, d) together.

    It includes the gap between images and texts.

    >>> import numpy as np
    >>> pooled_variance(np.array([[1.0, 0.0], [1.0, 0.0]]), np.array([[[0.0, 1.0]]]))
    array([0.33333333, 0.33333333])
    """
    xp = namespace(features)
    return xp.var(xp.concat([features, prompts.reshape(-1, prompts.shape[2])]), axis=0, correction=1)


def shrunken_precision(variance: Array, shrinkage: float) -> Array:
    """1 / ((1 - l) v + l) of variances v (d,): shrunk towards 1.

    >>> import numpy as np
    >>> shrunken_precision(np.array([0.0, 1.0]), 0.5)
    array([2., 1.])
    """
    return 1 / ((1 - shrinkage) * variance + shrinkage)


def prompt_logits(features: Array, means: Array, precision: Array) -> Array:
    """-1/2 (x - m_k)^T L (x - m_k), (N, K), with a diagonal precision L (d,).

    >>> import numpy as np
    >>> prompt_logits(np.array([[1.0, 0.0]]), np.eye(2), np.array([2.0, 4.0]))
    array([[ 0., -3.]])
    """
    weighted = means * precision
    own = 0.5 * ((features * features) @ precision)
    return features @ weighted.T - 0.5 * (weighted * means).sum(axis=1) - own[:, None]


def moment_covariance(features: Array, means: Array, ridge: float) -> tuple[Array, float]:
    """mean x x^T - mean m m^T (d, d) of features (N, d) and class means (K, d), and the ridge added to it.

    Texts and images lie apart, so the difference of their second moments has negative eigenvalues. The multiple of the
    identity that is added makes the smallest eigenvalue `ridge` times the largest absolute one.

    >>> import numpy as np
    >>> covariance, added = moment_covariance(np.array([[1.0, 0.0]]), np.array([[0.0, 1.0]]), 1.0)
    >>> covariance, added
    (array([[3., 0.],
           [0., 1.]]), 2.0)
    """
    xp = namespace(features)
    covariance = features.T @ features / len(features) - means.T @ means / len(means)
    covariance = (covariance + covariance.T) / 2
    eigenvalues = xp.linalg.eigvalsh(covariance)
    largest = float(xp.max(xp.abs(eigenvalues)))
    # Features equal to the means have no spread: the identity then.
    added = max(ridge * largest - float(eigenvalues[0]), 0.0) if largest > 0 else 1.0
    identity = xp.eye(features.shape[1], dtype=features.dtype, device=Backend.of(features).device)
    return covariance + added * identity, added


def harden(labels: Array, threshold: float) -> Array:
    """Soft labels (n, K), with rows whose largest label is above `threshold` made one-hot.

    >>> import numpy as np
    >>> harden(np.array([[0.7, 0.3], [0.5, 0.5]]), 0.6)
    array([[1. , 0. ],
           [0.5, 0.5]])
    """
    xp = namespace(labels)
    classes = xp.arange(labels.shape[1], device=Backend.of(labels).device)
    hard = xp.astype(xp.argmax(labels, axis=1)[:, None] == classes, labels.dtype)
    return xp.where((xp.max(labels, axis=1) > threshold)[:, None], hard, labels)


def refine_proxies(
    features: Array,
    start: Array,
    sums: Array,
    *,
    temperature: float = 0.04,
    rate: float = 10.0,
    iterations: int = 2000,
) -> Array:
    """Unit proxies (K, d), one class vector each, of InMaP after `iterations` steps.

    They move from `start` towards softmax predictions whose sums over the features (N, d), sum_i p_ik x_i, are `sums`.
    The step size is halved whenever the gradient has grown. Once the steps are too small to change a proxy, the rest of
    the iterations is left out.

    >>> import numpy as np
    >>> features = np.array([[1.0, 0.0], [0.6, 0.8]])
    >>> labels = np.array([[0.9, 0.1], [0.2, 0.8]])
    >>> (features @ refine_proxies(features, np.eye(2), harden(labels, 0.6).T @ features).T).round(2)
    array([[ 0.72, 0.08],
           [-0.12, 0.84]])
    """
    step, before = rate / (len(features) * temperature), math.inf
    proxies = start
    for _ in range(iterations):
        gradient = softmax(features @ (proxies / temperature).T).T @ features - sums
        length = float((gradient * gradient).sum())
        step = step / 2 if length > before else step
        before = length
        if step * float(abs(gradient).max()) < SMALLEST_STEP:
            break  # step sizes only shrink, so no later step would change anything
        proxies = unit_rows(proxies - step * gradient)
    return proxies
