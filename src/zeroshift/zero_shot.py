"""Posterior and confidence of a zero-shot classifier (Eq. 1 and 2 of the ADAPT paper), as pure functions."""

from __future__ import annotations

from typing import NamedTuple

from zeroshift.arrays import Array, Home, namespace

__all__ = [
    "Look",
    "confidence",
    "graded",
    "log_posterior",
    "log_softmax",
    "logits",
    "look",
    "posterior",
    "pseudo_class",
    "softmax",
]

TIE = 1e-9
"""Log-posteriors this close are tied: equal prototypes can leave a matrix product a rounding error apart.

Meant for logit scales from about 1e-3 to 1e4; far below, real differences are as small, far above, rounding is larger.
"""


GRADES = 2.0**30
"""Confidences are compared to nine digits: products of another shape leave those of equal samples a rounding apart."""


def log_softmax(scores: Array) -> Array:
    """Logarithm of the softmax over the last axis; finite for any finite scores."""
    xp = namespace(scores)
    if hasattr(scores, "log_softmax"):
        return scores.log_softmax(-1)  # torch's own: one launch on a GPU in place of five
    shifted = scores - xp.max(scores, axis=-1, keepdims=True)
    return shifted - xp.log(xp.sum(xp.exp(shifted), axis=-1, keepdims=True))


def softmax(scores: Array) -> Array:
    return scores.softmax(-1) if hasattr(scores, "softmax") else namespace(scores).exp(log_softmax(scores))


def logits(features: Array, prototypes: Array, logit_scale: float) -> Array:
    """s t_k.x for every row and class. Half precision is computed, and answered, in float32.

    >>> import numpy as np
    >>> logits(np.array([[0.8, 0.6]]), np.eye(2), 5.0)
    array([[4., 3.]])
    """
    features = Home.of(features).bring(features)
    prototypes = Home.of(features).bring(prototypes, features.dtype)
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
    """Negative entropy of each row (Eq. 2), from logarithms so that it is never NaN: 0 is certain, -log K is a guess.

    >>> import numpy as np
    >>> confidence(np.log(np.array([[0.731059, 0.268941]]))).round(4)
    array([-0.5822])
    """
    xp = namespace(log_posterior)
    return xp.sum(xp.exp(log_posterior) * log_posterior, axis=-1)


def graded(confidences: Array) -> Array:
    """Confidences, or entropies, as they are compared.

    >>> import numpy as np
    >>> float(graded(np.array([-0.3 - 1e-15]))[0] - graded(np.array([-0.3]))[0])
    0.0
    """
    xp = namespace(confidences)
    mantissas, exponents = xp.frexp(confidences)
    return xp.ldexp(xp.round(mantissas * GRADES) / GRADES, exponents)


def pseudo_class(log_posterior: Array) -> Array:
    """The most probable class of each row, the first on a tie, in whatever order a library's products round.

    >>> import numpy as np
    >>> pseudo_class(np.log(np.array([[0.2, 0.4, 0.4]])))
    array([1])
    """
    xp = namespace(log_posterior)
    classes = log_posterior.shape[-1]
    columns = xp.arange(classes, device=Home.of(log_posterior).device)
    tied = log_posterior >= xp.max(log_posterior, axis=-1, keepdims=True) - TIE
    return xp.min(xp.where(tied, columns, classes), axis=-1)


class Look(NamedTuple):
    """Log-posterior (n, K), pseudo-class (n,) and confidence (n,) of some rows."""

    log_y: Array
    classes: Array
    confidences: Array


def look(features: Array, prototypes: Array, logit_scale: float) -> Look:
    """`log_posterior`, `pseudo_class` and `confidence` in one go, for arrays that already are where they should be.

    >>> import numpy as np
    >>> look(np.array([[0.8, 0.6]]), np.eye(2), 5.0).classes
    array([0])
    """
    xp = namespace(features)
    # For one row as a product with a vector: on a GPU several times as fast as with a matrix of one row.
    scores = features @ prototypes.T if features.shape[0] > 1 else (prototypes @ features[0])[None, :]
    scores *= logit_scale
    scores -= xp.max(scores, axis=1, keepdims=True)
    classes = xp.argmax((scores >= -TIE).view(xp.int8), axis=1)
    y = xp.exp(scores)
    total = xp.sum(y, axis=1, keepdims=True)
    scores -= xp.log(total)
    y *= scores
    return Look(scores, classes, xp.sum(y, axis=1) / total[:, 0])
