"""The exponential kernel of cosines that Tip-Adapter, TDA, DMN and TCA weigh stored samples with."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from zeroshift.arrays import Array, namespace, to_numpy
from zeroshift.zero_shot import TIE

__all__ = ["Single", "exponential_kernel", "inner_products", "look_at_one", "normalize_rows", "unit_rows"]


def exponential_kernel(cosines: Array, beta: float) -> Array:
    """exp(-beta (1 - cosine)): 1 for the sample itself, the less the further away.

    >>> import numpy as np
    >>> exponential_kernel(np.array([1.0, 0.96]), 5.0).round(6)
    array([1.      , 0.818731])
    """
    return namespace(cosines).exp(beta * (cosines - 1.0))


# What makes a stream of single samples quick: products with a vector, and one question to the device a sample.


class Single(NamedTuple):
    """One sample as the zero-shot classifier sees it."""

    logits: Array
    """(1, K), where the features are."""
    probabilities: np.ndarray
    """(K,), on the host."""
    k: int
    entropy: float


def look_at_one(features: Array, text: Array, logit_scale: float) -> Single:
    """Logits, class and entropy of a sample (1, d).

    >>> one = look_at_one(np.array([[0.8, 0.6]]), np.eye(2), 5.0)
    >>> one.k, round(one.entropy, 4)
    (0, 0.5822)
    """
    logits = logit_scale * inner_products(features, text)
    # On the host from here on: a GPU would take ten launches to class and entropy, and be waited for twice.
    scores = to_numpy(logits)[0]
    scores = scores - scores.max()
    y = np.exp(scores)
    total = y.sum()
    y /= total
    return Single(logits, y, int((scores >= -TIE).argmax()), float(np.log(total) - y @ scores))


def inner_products(features: Array, rows: Array) -> Array:
    """(n, m) of features (n, d) and rows (m, d); for one sample with a vector, on a GPU several times as fast."""
    return features @ rows.T if features.shape[0] > 1 else (rows @ features[0])[None, :]


# Rows of non-negative weights as probabilities, and rows of unit length.


TINY = 1e-12


def normalize_rows(weights: Array) -> Array:
    """Each row divided by its sum; a row without any weight becomes a guess.

    >>> import numpy as np
    >>> normalize_rows(np.array([[1.0, 3.0], [0.0, 0.0]]))
    array([[0.25, 0.75],
           [0.5 , 0.5 ]])
    """
    xp = namespace(weights)
    total = xp.sum(weights, axis=-1, keepdims=True)
    empty = total <= 0
    return xp.where(empty, 1 / weights.shape[-1], weights / xp.where(empty, xp.ones_like(total), total))


def unit_rows(rows: Array) -> Array:
    """Each row (the last axis) at unit length; a zero row stays zero.

    >>> import numpy as np
    >>> unit_rows(np.array([[3.0, 4.0], [0.0, 0.0]]))
    array([[0.6, 0.8],
           [0. , 0. ]])
    """
    xp = namespace(rows)
    lengths = xp.linalg.vector_norm(rows, axis=-1, keepdims=True)
    return rows / xp.where(lengths > TINY, lengths, xp.ones_like(lengths))
