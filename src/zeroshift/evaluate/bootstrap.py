"""How far a gain could be from what was measured, had other samples of the same kind come: the paired bootstrap."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from zeroshift.parameters import Number

__all__ = ["DRAWS", "LEVEL", "gain_interval"]

LEVEL = 0.95
DRAWS = 2000

MOST_DRAWS = 1_000_000
"""An interval's ends are steady long before; each draw is four numbers in memory."""


def gain_interval(
    paired: Sequence[int], *, samples: int | None = None, level: float = LEVEL, draws: int = DRAWS, seed: int = 0
) -> tuple[float, float]:
    """Percentile interval of the gain of one method over another on the same samples, in percentage points.

    `paired` counts the samples by who is right: both, only the first, only the second, neither. Samples are resampled
    with replacement, each with both methods' answers. Only in which of the four counts a sample is matters to the gain,
    so the counts of a resample are a multinomial draw with the shares observed: no sample need be kept, and a draw
    costs the same for any number of them. What is resampled is samples only: the interval does not cover other orders
    of the stream, nor what the method would have learned from other samples.

    Counts of the same samples in several orders of the stream may be added up; `samples` then says how many samples
    there really are, never more than were counted, and that many are drawn. That is the interval of one run in an order
    drawn at random, and so no narrower than that of the mean of the orders.

    >>> low, high = gain_interval([70, 12, 2, 16])
    >>> bool(0 < low < 10 < high < 20)
    True
    >>> gain_interval([80, 0, 0, 20])
    (0.0, 0.0)
    """
    counts = np.asarray(paired)
    if counts.shape != (4,) or counts.dtype.kind not in "iu" or (counts < 0).any() or counts.sum() == 0:
        raise ValueError(
            "paired must be four counts (both right, only the first, only the second, neither) of at least one sample; "
            f"got {paired!r}."
        )
    level = float(Number(0, 1, above=True).check("level", level))
    draws = int(Number(1, MOST_DRAWS, integer=True).check("draws", draws))
    seed = int(Number(0, integer=True).check("seed", seed))
    total = int(counts.sum()) if samples is None else int(Number(1, integer=True).check("samples", samples))
    if total > counts.sum():
        raise ValueError(
            f"samples must be at most {counts.sum()}, as many as paired counts; got {samples}. "
            "Fix: samples=None, or how many different samples the counts are of."
        )
    drawn = np.random.default_rng(seed).multinomial(total, counts / counts.sum(), size=draws)
    gains = 100 * (drawn[:, 1] - drawn[:, 2]) / total
    low, high = np.quantile(gains, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)
