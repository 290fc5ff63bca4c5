"""How little a sample is like any class: "none of these", which posteriors, being shares of one, cannot say.

A posterior is a class's evidence divided by that of all classes, so that a stranger's is as sure as anyone's. Here
nothing is divided: a sample's score is the evidence all classes have for it, together, as the calm look weighs it (see
`temperature.py`), and negated. The distance to a class by itself says little, because features differ in how far they
lie from everything; it counts less that from the middle of all samples, which is the same features' distance from
nothing in particular.
"""

from __future__ import annotations

from zeroshift.arrays import Array, Home
from zeroshift.mixture.statistics import Mixture

__all__ = ["nearness", "unlikeness"]


def unlikeness(evidence: Array) -> Array:
    """(n,) the negated logarithm of the evidence, given by its logarithms (n, K), of all classes together.

    >>> import numpy as np
    >>> unlikeness(np.log(np.array([[0.25, 0.25], [0.01, 0.01]]))).round(3).tolist()
    [0.693, 3.912]
    """
    xp = Home.of(evidence).xp
    best = xp.max(evidence, axis=1)
    return -best - xp.log(xp.sum(xp.exp(evidence - best[:, None]), axis=1))


def nearness(mixture: Mixture, features: Array, middle: Array) -> Array:
    """(n, K) how much log-evidence a calm look takes from each class lying nearer than the middle (d,) of all samples;
    negative where it lies farther.

    The distances are not widened: that is a belief about how samples divide among the classes, and would make classes
    of few samples look near.
    """
    xp = Home.of(features).xp
    toward = mixture.precision @ middle
    # (x - m)^T P (x - m) less the same of the middle: x^T P x is in both, and goes.
    less = mixture.lengths - xp.sum(toward * middle) - 2.0 * (features @ (mixture.directions - toward).T)
    return (-0.5 * mixture.rule.weight * mixture.rule.calm * mixture.reliability) * less
