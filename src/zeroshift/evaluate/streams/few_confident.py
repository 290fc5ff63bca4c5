"""A stream from which most of the confident samples are gone."""

from __future__ import annotations

import numpy as np

from zeroshift.arrays import Array
from zeroshift.evaluate.streams.checks import checked_classes, checked_confidences, checked_seed
from zeroshift.evaluate.streams.stream import Stream
from zeroshift.parameters import Constraint, Number
from zeroshift.zero_shot import graded

__all__ = ["CONSTRAINTS", "few_confident"]

CONSTRAINTS: dict[str, Constraint] = {"per_class": Number(0, integer=True), "share": Number(0, 1)}


def few_confident(
    confidences: Array, pseudo_classes: Array, seed: int, *, per_class: int = 2, share: float = 0.5
) -> Stream:
    """Of the surest `share` of every pseudo-class, `per_class` rows drawn at random stay; the rest of it is left out.

    The less sure rows all stay. The order is random. The paper does not say how it made its streams with N confident
    samples a class; this goes by what a method without labels can know.

    >>> few_confident(np.array([-0.1, -0.2, -0.3, -0.4]), np.zeros(4, int), seed=0, per_class=1).rows.tolist()
    [2, 1, 3]
    """
    per_class = int(CONSTRAINTS["per_class"].check("per_class", per_class))
    share = float(CONSTRAINTS["share"].check("share", share))
    confidences = checked_confidences(confidences)
    pseudo_classes = checked_classes("pseudo_classes", pseudo_classes, rows=len(confidences))
    draw = np.random.default_rng(checked_seed(seed))
    mixed = draw.permutation(len(confidences))
    ordered = mixed[np.argsort(-graded(confidences)[mixed], kind="stable")]
    gone = np.zeros(len(confidences), bool)
    for k in np.unique(pseudo_classes):
        rows = ordered[pseudo_classes[ordered] == k]
        confident = draw.permutation(rows[: round(share * len(rows))])
        gone[confident[per_class:]] = True
    return Stream(mixed[~gone[mixed]])
