"""InMaP's proxies: class vectors moved in closed-form steps until their soft predictions agree with soft labels."""

from __future__ import annotations

from zeroshift.arrays import Array, Home, namespace

__all__ = ["harden", "label_sums", "refine_proxies"]

WORK_NUMBERS, WORK_NUMBERS_ON_GPU = 4_000_000, 64_000_000
"""Predictions held at once: few enough to stay in a processor's cache, many enough to keep a GPU busy."""
LEAST_ROWS = 256
BLOCK_ROWS = 4096
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
