"""Accuracy over a stream as it goes by."""

from __future__ import annotations

import numpy as np

from zeroshift.arrays import Array
from zeroshift.evaluate.tallies.checks import flags, whole

__all__ = ["running_accuracy"]


def running_accuracy(correct: Array, window: int | None = None) -> np.ndarray:
    """Accuracy (N,) over the stream so far, or over the last `window` samples (fewer at the start).

    >>> running_accuracy(np.array([True, False, True, True]))
    array([1.        , 0.5       , 0.66666667, 0.75      ])
    >>> running_accuracy(np.array([True, False, True, True]), window=2)
    array([1. , 0.5, 0.5, 1. ])
    """
    hits = flags("correct", correct)
    if len(hits) == 0:
        raise ValueError(
            "correct must be a vector of True and False of at least one sample; got none. "
            "Fix: correct = probabilities.argmax(axis=1) == labels."
        )
    # Sums of whole numbers, divided once: no rounding builds up, however long the stream.
    seen = np.arange(1, len(hits) + 1)
    total = np.cumsum(hits)
    if window is not None:
        window = min(whole("window", window, fix="window=100, or None for the stream so far"), len(hits))
        total[window:] = total[window:] - total[:-window]
        seen = np.minimum(seen, window)
    return np.asarray(total / seen)
