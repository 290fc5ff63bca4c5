"""Frolic: prompt distributions, and a classifier whose label bias is measured on the set itself and removed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator

from zeroshift.adapt.statistics import linear_head
from zeroshift.arrays import Array, Backend, Rows, namespace
from zeroshift.methods._shared.linear_head import LinearHead, TransductiveLinearMethod
from zeroshift.methods._shared.prompts import checked_prompts
from zeroshift.methods._shared.similarity import unit_rows
from zeroshift.methods._shared.sinkhorn import balance, class_shares
from zeroshift.parameters import Choice, Number, Optional, array_parameter, parameter
from zeroshift.zero_shot import log_softmax, pseudo_class, softmax

__all__ = [
    "Frolic",
    "harden",
    "label_sums",
    "matching_temperature",
    "mean_confidence",
    "mean_prompts",
    "moment_covariance",
    "pooled_variance",
    "prompt_logits",
    "refine_proxies",
    "remove_bias",
    "shrunken_precision",
    "stationary_vector",
    "transition_matrix",
]

BLOCK_ROWS = 4096

BIAS_ROUNDS = {"released": 11, "paper": 1}
"""How often the label bias is measured and removed."""

TEMPERATURE_RANGE = 1e6
"""Temperatures tried are within this factor of the largest difference between two logits of a sample."""

WORK_NUMBERS, WORK_NUMBERS_ON_GPU = 4_000_000, 64_000_000
"""Predictions in memory together: few enough for a processor's cache, many enough to keep a GPU busy."""
MIN_ROWS = 256

CHECK_EVERY = 20
"""After so many steps, the size of the step is read. Each time would make a GPU wait."""
SMALLEST_STEP = 1e-18
"""Steps below this are lost in the rounding of proxies, which have unit length."""

TINY = 1e-12
"""Added to a probability before its logarithm."""
TINY_SQUARED_LENGTH = 1e-24
"""Added to squared lengths: a zero proxy stays zero."""

SAFE_EXPONENT = 60.0
"""Up to here no exponential, and no sum of them, overflows in float32: the largest score need not be subtracted."""


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
    # In float32, rounding over two thousand steps can change a round of the bias correction, and with it many labels.
    computes_in = "float64"
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

    def _learn(self, rows: Rows) -> LinearHead:
        # Thousands of passes over the set: all of it in memory, in one library and precision.
        features = rows[slice(0, len(rows))]
        head = self._released_head(features) if self.variant == "released" else self._paper_head(features)
        return self._without_bias(head, features)

    @property
    def _mean_prompts(self) -> Array:
        backend = Backend.of(self.prototypes)
        return mean_prompts(unit_rows(backend.asarray(self.prompts, backend.xp.float64)))

    def _released_head(self, features: Array) -> LinearHead:
        backend = Backend.of(features)
        means = self._mean_prompts
        precision = shrunken_precision(pooled_variance(features, unit_rows(self.prompts)), self.shrinkage)
        label_scores: tuple[Callable[[Array], Array], ...] = (
            lambda x: x @ means.T,
            lambda x: prompt_logits(x, means, precision),
        )
        sums = backend.xp.stack([self._label_sums(features, scores) for scores in label_scores])
        start = backend.asarray(self.prototypes, features.dtype)
        proxies = refine_proxies(
            features,
            backend.xp.stack([start] * len(label_scores)),
            sums,
            temperature=self.proxy_temperature,
            rate=self.proxy_rate,
            iterations=self.proxy_iterations,
        )
        weights = backend.xp.sum(backend.asarray(proxies, backend.xp.float64), axis=0)
        return LinearHead(self.logit_scale * weights, backend.zeros((self.n_classes,)))

    def _label_sums(self, features: Array, scores: Callable[[Array], Array]) -> Array:
        """The sums over the set that a classifier needs, with soft labels from these scores."""
        backend = Backend.of(features)
        labels = backend.zeros((features.shape[0], self.n_classes), features.dtype)
        for start in range(0, features.shape[0], BLOCK_ROWS):
            rows = slice(start, start + BLOCK_ROWS)
            # In float64: so low a temperature magnifies the last digits of a cosine.
            wide = scores(backend.asarray(features[rows], backend.xp.float64))
            labels[rows] = softmax(wide / self.label_temperature)
        labels = balance(labels, class_shares(labels, self.label_gamma), self.label_iterations)
        return label_sums(features, labels, self.hard_above)

    def _paper_head(self, features: Array) -> LinearHead:
        zero_shot, means = self._zero_shot, self._mean_prompts
        covariance, _ = moment_covariance(features, means, self.ridge)
        gaussian = LinearHead(*linear_head(means, Backend.of(features).xp.linalg.inv(covariance)))
        temperature = matching_temperature(gaussian.scores(features), mean_confidence(zero_shot.scores(features)))
        return LinearHead(
            zero_shot.weights + gaussian.weights / temperature, zero_shot.offsets + gaussian.offsets / temperature
        )

    def _without_bias(self, head: LinearHead, features: Array) -> LinearHead:
        released = self.variant == "released"
        margin = self.bias_margin
        if margin is None:
            margin = 1 / self.n_classes if released else -math.inf
        for _ in range(BIAS_ROUNDS[self.variant] if self.bias_rounds is None else self.bias_rounds):
            transition = transition_matrix(_logit_blocks(head, features), margin)
            beta = stationary_vector(transition, tolerance=self.bias_tolerance, iterations=self.bias_iterations)
            head = LinearHead(head.weights, remove_bias(head.offsets, beta))
        return head


def _logit_blocks(head: LinearHead, features: Array) -> Iterator[Array]:
    """The logits of all features, block by block, to save memory."""
    return (head.scores(features[start : start + BLOCK_ROWS]) for start in range(0, features.shape[0], BLOCK_ROWS))


def transition_matrix(blocks: Iterable[Array], margin: float = -math.inf) -> Array:
    """Column k (K, K): the mean posterior of the samples whose largest logit is that of class k; zero if there is none.

    The logits are given in blocks (n, K). Samples whose two largest logits differ by `margin` or less are ignored.

    >>> import numpy as np
    >>> transition_matrix([np.log(np.array([[0.8, 0.2], [0.6, 0.4], [0.3, 0.7]]))])
    array([[0.7, 0.3],
           [0.3, 0.7]])
    """
    total: tuple[Array, Array] | None = None
    for logits in blocks:
        backend, xp = Backend.of(logits), namespace(logits)
        classes = xp.arange(logits.shape[1], device=backend.device)
        log_p = log_softmax(logits)
        label = pseudo_class(log_p)[:, None] == classes
        second = xp.max(xp.where(label, -xp.inf, log_p), axis=1)
        clear = xp.max(log_p, axis=1) - second > margin
        chosen = xp.astype(label & clear[:, None], logits.dtype)
        # Summed in float64: a class may have a million samples.
        part = (
            backend.asarray(xp.exp(log_p).T @ chosen, xp.float64),
            xp.sum(backend.asarray(chosen, xp.float64), axis=0),
        )
        total = part if total is None else (total[0] + part[0], total[1] + part[1])
    if total is None:
        raise ValueError("blocks is empty; at least one block of logits is needed.")
    sums, counts = total
    xp = namespace(sums)
    return sums / xp.where(counts > 0, counts, xp.ones_like(counts))


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
    backend, xp = Backend.of(logits), namespace(logits)
    total = backend.zeros(())
    for start in range(0, logits.shape[0], BLOCK_ROWS):
        log_p = log_softmax(logits[start : start + BLOCK_ROWS] / temperature)
        total = total + xp.sum(backend.asarray(xp.exp(xp.max(log_p, axis=1)), xp.float64))
    return float(total) / int(logits.shape[0])


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
    return unit_rows(namespace(prompts).mean(prompts, axis=1))


def pooled_variance(features: Array, prompts: Array) -> Array:
    """Unbiased variance (d,) of every dimension over features (N, d) and prompts (K, P, d) together, float64.

    It includes the gap between images and texts.

    >>> import numpy as np
    >>> pooled_variance(np.array([[1.0, 0.0], [1.0, 0.0]]), np.array([[[0.0, 1.0]]]))
    array([0.33333333, 0.33333333])
    """
    backend, xp = Backend.of(features), namespace(features)
    texts = backend.asarray(prompts.reshape(-1, prompts.shape[2]), xp.float64)
    blocks = [slice(start, start + BLOCK_ROWS) for start in range(0, features.shape[0], BLOCK_ROWS)]
    count = features.shape[0] + texts.shape[0]
    total = xp.sum(texts, axis=0)
    for rows in blocks:
        total = total + xp.sum(backend.asarray(features[rows], xp.float64), axis=0)
    mean = total / count
    squares = xp.sum((texts - mean) ** 2, axis=0)
    for rows in blocks:
        squares = squares + xp.sum((backend.asarray(features[rows], xp.float64) - mean) ** 2, axis=0)
    return squares / (count - 1)


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
    xp = namespace(features)
    weighted = means * precision
    logits = features @ weighted.T
    logits -= 0.5 * xp.sum(weighted * means, axis=1)
    # A matrix-vector product, not a sum of squares, which would need a second array of the size of the features.
    logits -= (0.5 * ((features**2) @ precision))[:, None]
    return logits


def moment_covariance(features: Array, means: Array, ridge: float) -> tuple[Array, float]:
    """mean x x^T - mean m m^T (d, d) of features (N, d) and class means (K, d), float64, and the ridge added to it.

    Texts and images lie apart, so the difference of their second moments has negative eigenvalues. The multiple of the
    identity that is added makes the smallest eigenvalue `ridge` times the largest absolute one.

    >>> import numpy as np
    >>> covariance, added = moment_covariance(np.array([[1.0, 0.0]]), np.array([[0.0, 1.0]]), 1.0)
    >>> covariance, added
    (array([[3., 0.],
           [0., 1.]]), 2.0)
    """
    backend, xp = Backend.of(features), namespace(features)
    wide = backend.asarray(means, xp.float64)
    d = features.shape[1]
    second = backend.zeros((d, d))
    for start in range(0, features.shape[0], BLOCK_ROWS):
        block = features[start : start + BLOCK_ROWS]
        second = second + backend.asarray(block.T @ block, xp.float64)
    covariance = second / features.shape[0] - wide.T @ wide / wide.shape[0]
    covariance = (covariance + covariance.T) / 2
    eigenvalues = xp.linalg.eigvalsh(covariance)
    largest = float(xp.max(xp.abs(eigenvalues)))
    # Features equal to the means have no spread: the identity then.
    added = max(ridge * largest - float(eigenvalues[0]), 0.0) if largest > 0 else 1.0
    return covariance + added * xp.eye(d, dtype=xp.float64, device=backend.device), added


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


def label_sums(features: Array, labels: Array, threshold: float) -> Array:
    """sum_i y_ik x_i (K, d) of features (N, d) with their hardened labels (N, K), all that the steps need of labels.

    Summed in float64, since an error here would affect every one of thousands of steps.
    """
    backend, xp = Backend.of(features), namespace(features)
    sums = backend.zeros((labels.shape[1], features.shape[1]))
    for start in range(0, features.shape[0], BLOCK_ROWS):
        rows = slice(start, start + BLOCK_ROWS)
        hard = backend.asarray(harden(labels[rows], threshold), xp.float64)
        sums = sums + hard.T @ backend.asarray(features[rows], xp.float64)
    return backend.asarray(sums, features.dtype)


def refine_proxies(
    features: Array,
    starts: Array,
    sums: Array,
    *,
    temperature: float = 0.04,
    rate: float = 10.0,
    iterations: int = 2000,
) -> Array:
    """Unit proxies (F, K, d) of InMaP after `iterations` steps of F independent fits to the same features (N, d).

    A proxy is a class vector. A fit starts at `starts[f]` and moves towards softmax predictions whose sums over the
    features are `sums[f]`, see `label_sums`. Its step size is halved whenever the gradient has grown. F fits together
    cost two products with F K columns per step, instead of 2 F narrower ones. If the steps have become too small to
    change a proxy, the rest of the iterations is left out.

    >>> import numpy as np
    >>> features = np.array([[1.0, 0.0], [0.6, 0.8]])
    >>> labels = np.array([[0.9, 0.1], [0.2, 0.8]])
    >>> proxies = refine_proxies(features, np.eye(2)[None], label_sums(features, labels, 0.6)[None])
    >>> (features @ proxies[0].T).round(2)
    array([[ 0.72, 0.08],
           [-0.12, 0.84]])
    """
    backend, xp = Backend.of(features), namespace(features)
    step = rate / (features.shape[0] * temperature)
    steps = xp.full((starts.shape[0], 1, 1), step, dtype=features.dtype, device=backend.device)
    before = xp.full_like(steps, xp.inf)
    proxies = backend.copy(starts)
    predictions = _PredictionSums(features, starts.shape[0], starts.shape[1], temperature)
    for iteration in range(iterations):
        gradient = predictions.sums(proxies)
        gradient -= sums
        length = xp.sum(gradient * gradient, axis=(1, 2), keepdims=True)
        # Decided on the device: reading the number would synchronise a GPU at every step.
        steps = xp.where(length > before, steps / 2, steps)
        before = length
        gradient *= steps
        if iteration % CHECK_EVERY == CHECK_EVERY - 1 and float(xp.max(xp.abs(gradient))) < SMALLEST_STEP:
            break  # step sizes only shrink, so no later step would change anything
        proxies -= gradient
        proxies /= xp.sqrt(xp.sum(proxies * proxies, axis=2, keepdims=True) + TINY_SQUARED_LENGTH)
    return proxies


class _PredictionSums:
    """Sums of the features weighted by the proxies' predictions, computed in memory that is reused."""

    def __init__(self, features: Array, fits: int, classes: int, temperature: float) -> None:
        backend = Backend.of(features)
        self._features, self._temperature = features, temperature
        self._blocks = _row_blocks(features, fits * classes)
        # The cosines of unit vectors are at most about 1.
        self._safe = 1.1 / temperature < SAFE_EXPONENT
        largest = max(rows.stop - rows.start for rows in self._blocks)
        self._space = backend.zeros((fits * classes * largest,), features.dtype)

    def sums(self, proxies: Array) -> Array:
        """sum_i p_ik x_i, (F, K, d)."""
        xp = namespace(proxies)
        fits, classes, d = proxies.shape
        scaled = proxies.reshape(fits * classes, d) / self._temperature
        total = xp.zeros_like(scaled)
        for rows in self._blocks:
            x = self._features[rows]
            # Samples along the last axis, so that sums over classes add long rows.
            flat = self._space[: fits * classes * x.shape[0]].reshape(fits * classes, x.shape[0])
            xp.matmul(scaled, x.T, out=flat)
            p = flat.reshape(fits, classes, x.shape[0])
            if not self._safe:
                p -= xp.max(p, axis=1, keepdims=True)
            xp.exp(p, out=p)
            p /= xp.sum(p, axis=1, keepdims=True)
            total += flat @ x
        return total.reshape(fits, classes, d)


def _row_blocks(features: Array, columns: int) -> list[slice]:
    """Blocks of rows to process together, where each row needs `columns` numbers."""
    work = WORK_NUMBERS_ON_GPU if Backend.of(features).on_gpu else WORK_NUMBERS
    size = max(MIN_ROWS, work // columns)
    n = features.shape[0]
    return [slice(start, min(start + size, n)) for start in range(0, n, size)]
