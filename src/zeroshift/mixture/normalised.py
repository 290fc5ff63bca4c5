"""Scores made probabilities in their own memory: with a thousand classes, another array costs more than the numbers."""

from __future__ import annotations

from typing import NamedTuple

from zeroshift.arrays import Array, Home

__all__ = ["Normalised", "normalised"]


class Normalised(NamedTuple):
    """Log-posteriors and posteriors, both (n, K)."""

    logs: Array
    posteriors: Array


def normalised(scores: Array) -> Normalised:
    """Log-softmax and softmax of scores (n, K) by one exponential; the scores are overwritten.

    >>> import numpy as np
    >>> found = normalised(np.array([[1.0, 1.0]]))
    >>> found.logs.round(6), found.posteriors
    (array([[-0.693147, -0.693147]]), array([[0.5, 0.5]]))
    """
    home = Home.of(scores)
    xp = home.xp
    if home.library == "torch":
        logs = scores.log_softmax(-1)  # one launch on a GPU in place of five
        return Normalised(logs, xp.exp(logs))
    scores -= xp.max(scores, axis=1, keepdims=True)
    posteriors = xp.exp(scores)
    totals = xp.sum(posteriors, axis=1, keepdims=True)
    posteriors /= totals
    scores -= xp.log(totals)
    return Normalised(scores, posteriors)
