"""The temperature at which one classifier is as confident as another, on average."""

from __future__ import annotations

import math

from zeroshift.arrays import Array, Home, namespace
from zeroshift.zero_shot import log_softmax

__all__ = ["matching_temperature", "mean_confidence"]

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
