"""Frolic: prompt distributions, and a classifier whose label bias is measured on the set itself and taken off."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator

from zeroshift.adapt.statistics import linear_head
from zeroshift.arrays import Array, Home, Rows, namespace
from zeroshift.methods._shared.linear_head import LinearHead, LinearTransductive
from zeroshift.methods._shared.prompts import checked_prompts
from zeroshift.methods._shared.similarity import unit_rows
from zeroshift.methods._shared.sinkhorn import balance, class_shares
from zeroshift.parameters import Choice, Number, Optional, array_parameter, parameter
from zeroshift.zero_shot import log_softmax, pseudo_class, softmax

__all__ = [
    "Frolic",
    "corrected",
    "harden",
    "label_sums",
    "matching_temperature",
    "mean_confidence",
    "mean_prompts",
    "moment_covariance",
    "pooled_variance",
    "prompt_logits",
    "refine_proxies",
    "shrunken_precision",
    "stationary_vector",
    "transition_matrix",
]


# Frolic's correction of label bias: what a classifier says of the samples of each class shows what it favours.


LABEL_BIAS_TINY = 1e-12


def transition_matrix(blocks: Iterable[Array], margin: float = -math.inf) -> Array:
    """Column k (K, K): the mean posterior of the samples whose largest logit is that of class k; zero where none is.

    The logits come in blocks (n, K). Samples whose two largest logits are not more than `margin` apart are left out.

    >>> import numpy as np
    >>> transition_matrix([np.log(np.array([[0.8, 0.2], [0.6, 0.4], [0.3, 0.7]]))])
    array([[0.7, 0.3],
           [0.3, 0.7]])
    """
    total: tuple[Array, Array] | None = None
    for logits in blocks:
        home, xp = Home.of(logits), namespace(logits)
        classes = xp.arange(logits.shape[1], device=home.device)
        log_p = log_softmax(logits)
        label = pseudo_class(log_p)[:, None] == classes
        second = xp.max(xp.where(label, -xp.inf, log_p), axis=1)
        clear = xp.max(log_p, axis=1) - second > margin
        chosen = xp.astype(label & clear[:, None], logits.dtype)
        # Added up in float64: a class may have a million samples.
        part = home.bring(xp.exp(log_p).T @ chosen, xp.float64), xp.sum(home.bring(chosen, xp.float64), axis=0)
        total = part if total is None else (total[0] + part[0], total[1] + part[1])
    if total is None:
        raise ValueError("blocks is empty; at least one block of logits is needed.")
    sums, counts = total
    xp = namespace(sums)
    return sums / xp.where(counts > 0, counts, xp.ones_like(counts))


def stationary_vector(transition: Array, *, tolerance: float = 1e-3, iterations: int = 100) -> Array:
    """beta (K,) with A beta = beta, by power iteration from the uniform vector.

    It ends at the first change (L1) below `tolerance`, with the vector before that change, as the released code does.
    Where nothing is left to iterate with, A having no column, the last vector stands.

    >>> import numpy as np
    >>> stationary_vector(np.array([[0.8, 0.1], [0.2, 0.9]])).round(6)
    array([0.334948, 0.665052])
    """
    xp = namespace(transition)
    classes = transition.shape[0]
    beta = xp.full((classes,), 1 / classes, dtype=transition.dtype, device=Home.of(transition).device)
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


def corrected(offsets: Array, beta: Array) -> Array:
    """Offsets of the logits, each class's lowered by ln beta: what is favoured too much loses.

    >>> import numpy as np
    >>> corrected(np.zeros(2), np.array([0.334948, 0.665052])).round(4)
    array([1.0938, 0.4079])
    """
    return offsets - namespace(beta).log(beta + LABEL_BIAS_TINY)


# The temperature at which one classifier is as confident as another, on average.


BLOCK_ROWS = 4096
RANGE = 1e6
"""Temperatures tried lie within this factor of the largest difference between two logits of a sample."""


def mean_confidence(logits: Array, temperature: float = 1.0) -> float:
    """Mean over samples of the largest probability, for logits (N, K) divided by a temperature.

    >>> import numpy as np
    >>> round(mean_confidence(np.array([[4.0, 3.0], [0.0, 0.0]])), 4)
    0.6155
    """
    home, xp = Home.of(logits), namespace(logits)
    total = home.zeros(())
    for start in range(0, logits.shape[0], BLOCK_ROWS):
        log_p = log_softmax(logits[start : start + BLOCK_ROWS] / temperature)
        total = total + xp.sum(home.bring(xp.exp(xp.max(log_p, axis=1)), xp.float64))
    return float(total) / int(logits.shape[0])


def matching_temperature(logits: Array, confidence: float, *, tolerance: float = 1e-10) -> float:
    """The temperature at which `mean_confidence(logits, temperature)` is `confidence`, by bisection on its logarithm.

    Confidence falls as the temperature rises. Where no temperature in range will do, the nearest end of the range is
    answered; where the logits do not differ at all, 1.

    >>> import numpy as np
    >>> logits = np.array([[4.0, 3.0], [0.0, 5.0]])
    >>> round(matching_temperature(logits, mean_confidence(logits, 2.5)), 6)
    2.5
    """
    xp = namespace(logits)
    spread = float(xp.max(xp.max(logits, axis=1) - xp.min(logits, axis=1)))
    if spread == 0:
        return 1.0
    low, high = math.log(spread / RANGE), math.log(spread * RANGE)
    while high - low > tolerance:
        middle = (low + high) / 2
        if mean_confidence(logits, math.exp(middle)) > confidence:
            low = middle
        else:
            high = middle
    return math.exp((low + high) / 2)


# What Frolic takes a class's prompts for: samples of a Gaussian, whose covariance unlabelled features tell.


BLOCK_ROWS = 4096


def mean_prompts(prompts: Array) -> Array:
    """Unit means (K, d) of prompts (K, P, d)."""
    return unit_rows(namespace(prompts).mean(prompts, axis=1))


def pooled_variance(features: Array, prompts: Array) -> Array:
    """Unbiased variance (d,) of every dimension over features (N, d) and prompts (K, P, d) taken together, float64.

    Images and texts lie apart, so the gap between them counts as spread.

    >>> import numpy as np
    >>> pooled_variance(np.array([[1.0, 0.0], [1.0, 0.0]]), np.array([[[0.0, 1.0]]]))
    array([0.33333333, 0.33333333])
    """
    home, xp = Home.of(features), namespace(features)
    texts = home.bring(prompts.reshape(-1, prompts.shape[2]), xp.float64)
    blocks = [slice(start, start + BLOCK_ROWS) for start in range(0, features.shape[0], BLOCK_ROWS)]
    count = features.shape[0] + texts.shape[0]
    total = xp.sum(texts, axis=0)
    for rows in blocks:
        total = total + xp.sum(home.bring(features[rows], xp.float64), axis=0)
    mean = total / count
    squares = xp.sum((texts - mean) ** 2, axis=0)
    for rows in blocks:
        squares = squares + xp.sum((home.bring(features[rows], xp.float64) - mean) ** 2, axis=0)
    return squares / (count - 1)


def shrunken_precision(variance: Array, shrinkage: float) -> Array:
    """1 / ((1 - l) v + l): variances (d,) drawn towards 1.

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
    # A product with a vector, not a sum of squares: it needs no second array of the features' size.
    logits -= (0.5 * ((features**2) @ precision))[:, None]
    return logits


def moment_covariance(features: Array, means: Array, ridge: float) -> tuple[Array, float]:
    """mean x x^T - mean m m^T (d, d) of features (N, d) and class means (K, d), in float64, and what was added to it.

    Texts and images lie apart, so the difference of their second moments has negative eigenvalues. As much of the
    identity is added as lifts the smallest eigenvalue to `ridge` times the largest in size.

    >>> import numpy as np
    >>> covariance, added = moment_covariance(np.array([[1.0, 0.0]]), np.array([[0.0, 1.0]]), 1.0)
    >>> covariance, added
    (array([[3., 0.],
           [0., 1.]]), 2.0)
    """
    home, xp = Home.of(features), namespace(features)
    wide = home.bring(means, xp.float64)
    d = features.shape[1]
    second = home.zeros((d, d))
    for start in range(0, features.shape[0], BLOCK_ROWS):
        block = features[start : start + BLOCK_ROWS]
        second = second + home.bring(block.T @ block, xp.float64)
    covariance = second / features.shape[0] - wide.T @ wide / wide.shape[0]
    covariance = (covariance + covariance.T) / 2
    eigenvalues = xp.linalg.eigvalsh(covariance)
    largest = float(xp.max(xp.abs(eigenvalues)))
    # Features equal to the means have no spread at all: the identity then.
    added = max(ridge * largest - float(eigenvalues[0]), 0.0) if largest > 0 else 1.0
    return covariance + added * xp.eye(d, dtype=xp.float64, device=home.device), added


# InMaP's proxies: class vectors moved in closed-form steps until their soft predictions agree with soft labels.


WORK_NUMBERS, WORK_NUMBERS_ON_GPU = 4_000_000, 64_000_000
"""Predictions held at once: few enough to stay in a processor's cache, many enough to keep a GPU busy."""
LEAST_ROWS = 256
TINY = 1e-24
"""Added to squared lengths: a zero proxy stays zero."""
SAFE_EXPONENT = 60.0
"""Up to here no exponential, and no sum of them, leaves float32: the largest score need not be subtracted first."""


def harden(labels: Array, threshold: float) -> Array:
    """Soft labels (n, K), those rows that are surer than `threshold` made one-hot.

    >>> import numpy as np
    >>> harden(np.array([[0.7, 0.3], [0.5, 0.5]]), 0.6)
    array([[1. , 0. ],
           [0.5, 0.5]])
    """
    xp = namespace(labels)
    classes = xp.arange(labels.shape[1], device=Home.of(labels).device)
    hard = xp.astype(xp.argmax(labels, axis=1)[:, None] == classes, labels.dtype)
    return xp.where((xp.max(labels, axis=1) > threshold)[:, None], hard, labels)


def label_sums(features: Array, labels: Array, threshold: float) -> Array:
    """sum_i y_ik x_i (K, d) of features (N, d) with their hardened labels (N, K): all that steps need of the labels.

    Summed in float64, once: whatever is wrong here, every one of thousands of steps is drawn to.
    """
    home, xp = Home.of(features), namespace(features)
    sums = home.zeros((labels.shape[1], features.shape[1]))
    for start in range(0, features.shape[0], BLOCK_ROWS):
        rows = slice(start, start + BLOCK_ROWS)
        hard = home.bring(harden(labels[rows], threshold), xp.float64)
        sums = sums + hard.T @ home.bring(features[rows], xp.float64)
    return home.bring(sums, features.dtype)


def refine_proxies(
    features: Array,
    starts: Array,
    sums: Array,
    *,
    temperature: float = 0.04,
    rate: float = 10.0,
    iterations: int = 2000,
) -> Array:
    """Unit proxies (F, K, d) after `iterations` steps of F independent fits to the same features (N, d).

    A fit begins at `starts[f]` and moves towards softmax predictions whose sums over the features are `sums[f]`, see
    `label_sums`. Its steps are halved whenever the disagreement has grown. F fits side by side cost two products with
    F K columns a step, in place of 2 F narrow ones.

    >>> import numpy as np
    >>> features = np.array([[1.0, 0.0], [0.6, 0.8]])
    >>> labels = np.array([[0.9, 0.1], [0.2, 0.8]])
    >>> proxies = refine_proxies(features, np.eye(2)[None], label_sums(features, labels, 0.6)[None])
    >>> (features @ proxies[0].T).round(2)
    array([[ 0.72, 0.08],
           [-0.12, 0.84]])
    """
    home, xp = Home.of(features), namespace(features)
    step = rate / (features.shape[0] * temperature)
    steps = xp.full((starts.shape[0], 1, 1), step, dtype=features.dtype, device=home.device)
    before = xp.full_like(steps, xp.inf)
    proxies = home.copy(starts)
    predictions = _Predictions(features, starts.shape[0], starts.shape[1], temperature)
    for _ in range(iterations):
        gradient = predictions.sums(proxies)
        gradient -= sums
        length = xp.sum(gradient * gradient, axis=(1, 2), keepdims=True)
        # Decided where the arrays are: asking for the number would stop a GPU at every step.
        steps = xp.where(length > before, steps / 2, steps)
        before = length
        gradient *= steps
        proxies -= gradient
        proxies /= xp.sqrt(xp.sum(proxies * proxies, axis=2, keepdims=True) + TINY)
    return proxies


class _Predictions:
    """Sums of the features weighted by what proxies predict of them, in work space that is used again and again."""

    def __init__(self, features: Array, fits: int, classes: int, temperature: float) -> None:
        home = Home.of(features)
        self._features, self._temperature = features, temperature
        self._chunks = _chunks(features, fits * classes)
        # Unit vectors have cosines of about 1 at most.
        self._safe = 1.1 / temperature < SAFE_EXPONENT
        largest = max(rows.stop - rows.start for rows in self._chunks)
        self._space = home.zeros((fits * classes * largest,), features.dtype)

    def sums(self, proxies: Array) -> Array:
        """sum_i p_ik x_i, (F, K, d)."""
        xp = namespace(proxies)
        fits, classes, d = proxies.shape
        scaled = proxies.reshape(fits * classes, d) / self._temperature
        total = xp.zeros_like(scaled)
        for rows in self._chunks:
            x = self._features[rows]
            # Samples along the last axis: sums over classes then add long rows.
            flat = self._space[: fits * classes * x.shape[0]].reshape(fits * classes, x.shape[0])
            xp.matmul(scaled, x.T, out=flat)
            p = flat.reshape(fits, classes, x.shape[0])
            if not self._safe:
                p -= xp.max(p, axis=1, keepdims=True)
            xp.exp(p, out=p)
            p /= xp.sum(p, axis=1, keepdims=True)
            total += flat @ x
        return total.reshape(fits, classes, d)


def _chunks(features: Array, columns: int) -> list[slice]:
    """Rows to take together where each needs `columns` numbers."""
    work = WORK_NUMBERS_ON_GPU if Home.of(features).on_gpu else WORK_NUMBERS
    size = max(LEAST_ROWS, work // columns)
    n = features.shape[0]
    return [slice(start, min(start + size, n)) for start in range(0, n, size)]


ROUNDS = {"released": 11, "paper": 1}


class Frolic(LinearTransductive):
    """Takes each class's prompts for samples of a Gaussian, makes a classifier of it and of the whole unlabelled set,
    and takes off how much that classifier favours each class. No labels, and no hyper-parameter chosen by them.

    `adapt` starts afresh from the set it is given. Its cost is that of two products of all features with 2 K vectors,
    `proxy_iterations` times over: minutes on a processor for tens of thousands of features and a hundred classes.
    `predict` scores other features with the classifier and the bias that set taught, which is ours: the authors know no
    other features. Before `adapt` it is the zero-shot classifier.

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

    "released" is the authors' one released file. Their helpers are not released; `image_opt` and `sinkhorn` are taken
    to be those of InMaP, whose arguments are one fewer, with its defaults. Two InMaP classifiers start from the
    prototypes, one with soft labels from cosines to the mean prompts, one from Gaussian logits with the diagonal of the
    covariance of features and prompts together, `1 / (0.1 v + 0.9)`. Their logits are added up and the bias is taken
    off eleven times, measured on samples with a margin above 1 / K. Of a covariance only the diagonal is kept, so
    features and texts turned together can give other soft labels; where those are hardened, mostly the same ones.

    "paper" is reconstructed. The covariance is `mean x x^T - mean m m^T`, which is not positive definite where texts
    and images lie apart; the identity is added until the smallest eigenvalue is `ridge` times the largest in size.
    Gaussian logits, at the temperature at which they are as confident as the zero-shot ones, are added to those, and
    the bias, measured on every sample, is taken off once.

    A class nothing is predicted as has no column in the bias matrix; where no sample has the margin, the bias stays
    uniform. Everything is computed in float64.
    """

    name = "frolic"
    # In float32 the rounding of two thousand steps can decide a round of the bias correction, and with it many labels.
    computes_in = "float64"
    needs = ("prototypes", "prompts")
    state_size = "K d"
    complexity = "O(I N K d), I = 4000 steps"

    prompts: Array = array_parameter("P unit-length text embeddings a class: templates and descriptions.")
    logit_scale: float = parameter(Number(low=0, above=True), "Scale of the logits; 100 for CLIP.", default=100.0)
    variant: str = parameter(
        Choice(("released", "paper")),
        "What the authors' code computes, or what the paper says, reconstructed; see Notes.",
        default="released",
    )
    shrinkage: float = parameter(
        Number(low=0, high=1, above=True),
        'How far the variances of the prompts\' Gaussian are drawn towards 1 ("released").',
        default=0.9,
    )
    label_temperature: float = parameter(
        Number(low=0, above=True),
        'Temperature, exponent of the classes\' shares and number of iterations of the Sinkhorn scaling that makes soft labels ("released"); see `zeroshift.methods._shared.sinkhorn`.',
        default=0.01,
    )
    label_gamma: float = parameter(
        Number(low=0),
        'Temperature, exponent of the classes\' shares and number of iterations of the Sinkhorn scaling that makes soft labels ("released"); see `zeroshift.methods._shared.sinkhorn`.',
        default=1.0,
    )
    label_iterations: int = parameter(
        Number(low=0, integer=True),
        'Temperature, exponent of the classes\' shares and number of iterations of the Sinkhorn scaling that makes soft labels ("released"); see `zeroshift.methods._shared.sinkhorn`.',
        default=20,
    )
    hard_above: float = parameter(
        Number(low=0, high=1), 'Soft labels surer than this are made hard ("released").', default=0.6
    )
    proxy_temperature: float = parameter(
        Number(low=0, above=True),
        'Temperature, first step size and number of steps of the InMaP classifiers ("released"); see `zeroshift.methods.frolic`.',
        default=0.04,
    )
    proxy_rate: float = parameter(
        Number(low=0, above=True),
        'Temperature, first step size and number of steps of the InMaP classifiers ("released"); see `zeroshift.methods.frolic`.',
        default=10.0,
    )
    proxy_iterations: int = parameter(
        Number(low=0, integer=True),
        'Temperature, first step size and number of steps of the InMaP classifiers ("released"); see `zeroshift.methods.frolic`.',
        default=2000,
    )
    ridge: float = parameter(
        Number(low=0, above=True),
        'The smallest eigenvalue of the prompts\' covariance, as a share of the largest in size ("paper").',
        default=1.0,
    )
    bias_margin: float | None = parameter(
        Optional(Number(low=0)),
        'Samples whose two best logits are no further apart do not count for the bias. None: 1 / K for "released", every sample counts for "paper".',
        default=None,
    )
    bias_rounds: int | None = parameter(
        Optional(Number(low=0, integer=True)),
        'How often the bias is measured and taken off. None: 11 for "released", once for "paper".',
        default=None,
    )
    bias_tolerance: float = parameter(
        Number(low=0),
        "When the power iteration for the bias ends: at a change below the one, or after the other.",
        default=1e-3,
    )
    bias_iterations: int = parameter(
        Number(low=0, integer=True),
        "When the power iteration for the bias ends: at a change below the one, or after the other.",
        default=100,
    )

    def _validate(self) -> None:
        self.prompts = checked_prompts(self.prompts, self.prototypes)

    def _learn(self, rows: Rows) -> LinearHead:
        # Thousands of passes: the whole set at once, in one library and precision. Where it is so already, no copy.
        features = rows[slice(0, len(rows))]
        fused = self._released_head(features) if self.variant == "released" else self._paper_head(features)
        return self._unbiased(fused, features)

    @property
    def _mean_prompts(self) -> Array:
        home = Home.of(self.prototypes)
        return mean_prompts(unit_rows(home.bring(self.prompts, home.xp.float64)))

    def _released_head(self, features: Array) -> LinearHead:
        home = Home.of(features)
        means = self._mean_prompts
        precision = shrunken_precision(pooled_variance(features, unit_rows(self.prompts)), self.shrinkage)
        ways: tuple[Callable[[Array], Array], ...] = (
            lambda x: x @ means.T,
            lambda x: prompt_logits(x, means, precision),
        )
        sums = home.xp.stack([self._label_sums(features, way) for way in ways])
        start = home.bring(self.prototypes, features.dtype)
        proxies = refine_proxies(
            features,
            home.xp.stack([start] * len(ways)),
            sums,
            temperature=self.proxy_temperature,
            rate=self.proxy_rate,
            iterations=self.proxy_iterations,
        )
        weights = home.xp.sum(home.bring(proxies, home.xp.float64), axis=0)
        return LinearHead(self.logit_scale * weights, home.zeros((self.n_classes,)))

    def _label_sums(self, features: Array, scores: Callable[[Array], Array]) -> Array:
        """What a classifier learns from soft labels made of these scores."""
        home = Home.of(features)
        labels = home.zeros((features.shape[0], self.n_classes), features.dtype)
        for start in range(0, features.shape[0], BLOCK_ROWS):
            rows = slice(start, start + BLOCK_ROWS)
            # In float64: so low a temperature makes much of the last digits of a cosine.
            wide = scores(home.bring(features[rows], home.xp.float64))
            labels[rows] = softmax(wide / self.label_temperature)
        labels = balance(labels, class_shares(labels, self.label_gamma), self.label_iterations)
        return label_sums(features, labels, self.hard_above)

    def _paper_head(self, features: Array) -> LinearHead:
        zero_shot, means = self._zero_shot, self._mean_prompts
        covariance, _ = moment_covariance(features, means, self.ridge)
        gaussian = LinearHead(*linear_head(means, Home.of(features).xp.linalg.inv(covariance)))
        temperature = matching_temperature(gaussian.scores(features), mean_confidence(zero_shot.scores(features)))
        return LinearHead(
            zero_shot.weights + gaussian.weights / temperature, zero_shot.offsets + gaussian.offsets / temperature
        )

    def _unbiased(self, head: LinearHead, features: Array) -> LinearHead:
        released = self.variant == "released"
        margin = self.bias_margin
        if margin is None:
            margin = 1 / self.n_classes if released else -math.inf
        for _ in range(ROUNDS[self.variant] if self.bias_rounds is None else self.bias_rounds):
            transition = transition_matrix(_logit_blocks(head, features), margin)
            beta = stationary_vector(transition, tolerance=self.bias_tolerance, iterations=self.bias_iterations)
            head = LinearHead(head.weights, corrected(head.offsets, beta))
        return head


def _logit_blocks(head: LinearHead, features: Array) -> Iterator[Array]:
    """The logits of all features, block by block, rather than an array as large as the answer."""
    return (head.scores(features[start : start + BLOCK_ROWS]) for start in range(0, features.shape[0], BLOCK_ROWS))
