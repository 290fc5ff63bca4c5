"""How unsure a prediction is."""

from __future__ import annotations

import numpy as np

from zeroshift.arrays import Array
from zeroshift.evaluate.tallies.checks import probability_rows, score_rows

__all__ = ["doubt"]


def doubt(probabilities: Array) -> np.ndarray:
    """(n,) one less the largest probability of each row, summed from the others.

    The same number, but for rounding, and that is the point: a method can be so sure that its largest probability is
    1.0 in floating point, for most samples even; the others still tell which it was less sure of.

    >>> doubt(np.array([[0.75, 0.125, 0.125], [1.0, 1e-30, 0.0]])).tolist()
    [0.25, 1e-30]
    """
    rows = probability_rows("probabilities", score_rows("probabilities", probabilities))
    others = np.arange(rows.shape[1]) != np.argmax(rows, axis=1)[:, None]
    return np.asarray(np.sum(rows, axis=1, dtype=np.float64, where=others))
