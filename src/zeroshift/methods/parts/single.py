"""What makes a stream of single samples quick: products with a vector, and one question to the device a sample."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from zeroshift.arrays import Array, to_numpy
from zeroshift.zero_shot import TIE

__all__ = ["Single", "inner_products", "look_at_one"]


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
