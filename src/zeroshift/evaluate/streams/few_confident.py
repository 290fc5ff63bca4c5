"""A stream from which most of the confident samples are gone."""

from __future__ import annotations

import numpy as np

from zeroshift.evaluate.streams.stream import Stream
from zeroshift.parameters import Number
from zeroshift.zero_shot import graded

__all__ = ["few_confident"]


def few_confident(
    confidences: np.ndarray, pseudo_classes: np.ndarray, seed: int, *, per_class: int = 2, share: float = 0.5
) -> Stream:
    """Of the surest `share` of every pseudo-class, `per_class` rows drawn at random stay; the rest of it is left out.

    The less sure rows all stay. The order is random. The paper does not say how it made its streams with N confident
    samples a class; this goes by what a method without labels can know.

    >>> few_confident(np.array([-0.1, -0.2, -0.3, -0.4]), np.zeros(4, int), seed=0, per_class=1).rows.tolist()
    [2, 1, 3]
    """
    per_class = int(Number(0, integer=True).check("per_class", per_class))
    share = float(Number(0, 1).check("share", share))
    draw = np.random.default_rng(seed)
    mixed = draw.permutation(len(confidences))
    ordered = mixed[np.argsort(-graded(confidences)[mixed], kind="stable")]
    gone = np.zeros(len(confidences), bool)
    for k in np.unique(pseudo_classes):
        rows = ordered[pseudo_classes[ordered] == k]
        confident = draw.permutation(rows[: round(share * len(rows))])
        gone[confident[per_class:]] = True
    return Stream(mixed[~gone[mixed]])
