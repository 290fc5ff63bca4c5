"""Posterior, confidence and pseudo-class of a zero-shot classifier (Eq. 1 and 2 of the ADAPT paper)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from zeroshift.arrays import Array, Backend, namespace
from zeroshift.linalg import thin_product

__all__ = [
    "Observation",
    "ZeroShotStats",
    "class_columns",
    "confidence",
    "log_posterior",
    "log_softmax",
    "logits",
    "observe",
    "posterior",
    "pseudo_class",
    "quantize",
    "softmax",
    "zero_shot_stats",
]

TIE = 1e-9
"""Log-posteriors that differ by less are tied: the products of equal prototypes may differ by rounding.

Meant for logit scales from about 1e-3 to 1e4. For much smaller scales real differences are as small, for much larger
ones rounding errors are larger.
"""

QUANTIZER = 2.0**23 + 1
"""Confidences are compared to nine digits (30 bits): those of equal samples may differ by rounding in different
products. Adding and subtracting a multiple of a number by this factor removes its last 23 bits."""


def log_softmax(scores: Array) -> Array:
    """Logarithm of the softmax over the last axis; finite for any finite scores."""
    xp = namespace(scores)
    if hasattr(scores, "log_softmax"):
        return scores.log_softmax(-1)  # torch's own: one kernel launch on a GPU instead of five
    shifted = scores - scores.max(axis=-1, keepdims=True)
    return shifted - xp.log(xp.exp(shifted).sum(axis=-1, keepdims=True))


def softmax(scores: Array) -> Array:
    """Exponentials over their sum along the last axis; finite for any finite scores."""
    if hasattr(scores, "softmax"):
        return scores.softmax(-1)
    powers = namespace(scores).exp(scores - scores.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def logits(features: Array, prototypes: Array, logit_scale: float) -> Array:
    """s t_k.x for every row and class. For half precision, computation and result are in float32.

    >>> import numpy as np
    >>> logits(np.array([[0.8, 0.6]]), np.eye(2), 5.0)
    array([[4., 3.]])
    """
    features = Backend.of(features).asarray(features)
    prototypes = Backend.of(features).asarray(prototypes, features.dtype)
    return logit_scale * (features @ prototypes.T)


def log_posterior(features: Array, prototypes: Array, logit_scale: float) -> Array:
    return log_softmax(logits(features, prototypes, logit_scale))


def posterior(features: Array, prototypes: Array, logit_scale: float) -> Array:
    """Class probabilities of the zero-shot classifier (Eq. 1).

    >>> import numpy as np
    >>> posterior(np.array([[0.8, 0.6]]), np.eye(2), 5.0).round(6)
    array([[0.731059, 0.268941]])
    """
    return namespace(features).exp(log_posterior(features, prototypes, logit_scale))


def confidence(log_posterior: Array) -> Array:
    """Negative entropy of each row (Eq. 2): 0 for a certain prediction, -log K for a uniform one. Never NaN.

    >>> import numpy as np
    >>> confidence(np.log(np.array([[0.731059, 0.268941]]))).round(4)
    array([-0.5822])
    """
    xp = namespace(log_posterior)
    return xp.sum(xp.exp(log_posterior) * log_posterior, axis=-1)


def quantize(confidences: Array) -> Array:
    """Confidences, or entropies, rounded to nine digits for comparisons.

    >>> import numpy as np
    >>> float(quantize(np.array([-0.3 - 1e-15]))[0] - quantize(np.array([-0.3]))[0])
    0.0
    """
    large = QUANTIZER * confidences
    return large - (large - confidences)


def pseudo_class(log_posterior: Array) -> Array:
    """The most probable class of each row, the first of tied ones, however a library rounds its products.

    >>> import numpy as np
    >>> pseudo_class(np.log(np.array([[0.2, 0.4, 0.4]])))
    array([1])
    """
    xp = namespace(log_posterior)
    classes = log_posterior.shape[-1]
    columns = xp.arange(classes, device=Backend.of(log_posterior).device)
    tied = log_posterior >= xp.max(log_posterior, axis=-1, keepdims=True) - TIE
    return xp.min(xp.where(tied, columns, classes), axis=-1)


def class_columns(
    probabilities: np.ndarray, names: Sequence[str], top_k: int, per_class: bool
) -> dict[str, np.ndarray]:
    """Columns of a table of predictions from probabilities (N, K): `top_1` (class indices), `top_1_probability` and so
    on, and with `per_class` a `p(NAME)` for every class. Of equally probable classes, the first comes first.

    >>> columns = class_columns(np.array([[0.2, 0.5, 0.3]]), ("cat", "dog", "fox"), 2, False)
    >>> {name: column.tolist() for name, column in columns.items()}
    {'top_1': [1], 'top_1_probability': [0.5], 'top_2': [2], 'top_2_probability': [0.3]}
    """
    columns = {}
    ranked = np.argsort(-probabilities, axis=1, kind="stable")[:, :top_k]
    for place in range(top_k):
        columns[f"top_{place + 1}"] = ranked[:, place]
        columns[f"top_{place + 1}_probability"] = np.take_along_axis(probabilities, ranked[:, [place]], axis=1)[:, 0]
    if per_class:
        columns |= {f"p({name})": probabilities[:, k] for k, name in enumerate(names)}
    return columns


class ZeroShotStats(NamedTuple):
    """Log-posterior (n, K), pseudo-class (n,) and confidence (n,) of some rows."""

    log_y: Array
    classes: Array
    confidences: Array


def zero_shot_stats(features: Array, prototypes: Array, logit_scale: float) -> ZeroShotStats:
    """`log_posterior`, `pseudo_class` and `confidence` together, for arrays of the same library, device and type.

    >>> import numpy as np
    >>> zero_shot_stats(np.array([[0.8, 0.6]]), np.eye(2), 5.0).classes
    array([0])
    """
    xp = namespace(features)
    if type(features) is np.ndarray and features.shape[0] == 1:
        return _stats_of_one(thin_product(features, prototypes)[0], logit_scale)
    # A matrix-vector product for one row: on a GPU several times as fast as with a matrix of one row.
    scores = features @ prototypes.T if features.shape[0] > 1 else (prototypes @ features[0])[None, :]
    scores *= logit_scale
    scores -= xp.max(scores, axis=1, keepdims=True)
    classes = xp.argmax((scores >= -TIE).view(xp.int8), axis=1)
    y = xp.exp(scores)
    total = xp.sum(y, axis=1, keepdims=True)
    scores -= xp.log(total)
    y *= scores
    return ZeroShotStats(scores, classes, xp.sum(y, axis=1) / total[:, 0])


def _stats_of_one(scores: np.ndarray, logit_scale: float) -> ZeroShotStats:
    """The same for one row, without axes: calls of NumPy take longer than their work if there are few classes."""
    scores *= logit_scale
    scores -= scores.max()
    k = (scores >= -TIE)[None, :].argmax(axis=1)
    y = np.exp(scores)
    total = y.sum()
    scores -= np.log(total)
    return ZeroShotStats(scores[None, :], k, (y @ scores / total)[None])


class Observation(NamedTuple):
    """Samples and what zero-shot says about them. `learn` gets one of them, without the axis of samples."""

    features: Array
    """(n, d)."""
    logits: Array
    """(n, K)."""
    y: Array
    """Posteriors (n, K)."""
    k: Array
    """Pseudo-classes (n,)."""
    entropy: Array
    """Entropies of the posteriors (n,), in nats."""


def observe(features: Array, prototypes: Array, logit_scale: float) -> Observation:
    """Features (n, d) with their zero-shot predictions.

    >>> import numpy as np
    >>> x = observe(np.array([[0.8, 0.6]]), np.eye(2), 5.0)
    >>> x.k, x.entropy.round(4)
    (array([0]), array([0.5822]))
    """
    scores = logit_scale * thin_product(features, prototypes)
    log_y = log_softmax(scores)
    y = namespace(features).exp(log_y)
    return Observation(features, scores, y, pseudo_class(log_y), -(y * log_y).sum(axis=-1))
