"""The accuracy gain of one method over another on the same samples, with a paired bootstrap interval."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from zeroshift.arrays import Array
from zeroshift.evaluate.metrics.base import Metric, checked_flags, checked_fraction, positive_integer
from zeroshift.parameters import Number

__all__ = ["DRAWS", "LEVEL", "MOST_DRAWS", "PairedGain", "gain_interval"]

LEVEL = 0.95
DRAWS = 2000

MOST_DRAWS = 1_000_000
"""All draws are in memory at once, four counts of 8 bytes each."""


def gain_interval(
    paired: Sequence[int], *, samples: int | None = None, level: float = LEVEL, draws: int = DRAWS, seed: int = 0
) -> tuple[float, float]:
    """Percentile interval of the gain of one method over another on the same samples, in percentage points.

    `paired` counts the samples by which method is right: both, only the first, only the second, neither. The bootstrap
    resamples samples with replacement, keeping both methods' predictions together. The gain depends only on the four
    counts, so a resample is a multinomial draw with the observed frequencies; its cost does not depend on the number of
    samples. The interval covers the choice of samples only, not other orders of the stream, and not what the method
    would have learned from other samples.

    Counts of the same samples in several orders may be added up. `samples` is then the true number of samples, at most
    the sum of the counts, and as many are drawn. The result is the interval of one run in a random order, which is at
    least as wide as the interval of the mean over orders.

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
            "Fix: samples=None, or the number of different samples behind the counts."
        )
    drawn = np.random.default_rng(seed).multinomial(total, counts / counts.sum(), size=draws)
    gains = 100 * (drawn[:, 1] - drawn[:, 2]) / total
    low, high = np.quantile(gains, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


class PairedGain(Metric):
    """Counts of samples by which of two methods is right: both, only the first, only the second, neither.

    >>> import numpy as np
    >>> metric = PairedGain()
    >>> metric.update(np.array([True, True, False, True]), np.array([True, False, False, False]))
    >>> metric.counts, metric.gain
    ((1, 2, 0, 1), 50.0)
    """

    def __init__(self) -> None:
        self.counts: tuple[int, int, int, int] = (0, 0, 0, 0)
        """Both right, only the first, only the second, neither."""

    def update(self, first: Array, second: Array) -> None:
        """Add samples: whether each method is right, True or False, (n,) and (n,)."""
        a = checked_flags("first", first)
        b = checked_flags("second", second, rows=len(a), of="first")
        self._add_counts(int((a & b).sum()), int((a & ~b).sum()), int((~a & b).sum()), int((~a & ~b).sum()))
        self.n_samples += len(a)

    def _add_counts(self, both: int, first: int, second: int, neither: int) -> None:
        have = self.counts
        self.counts = (have[0] + both, have[1] + first, have[2] + second, have[3] + neither)

    def _merge_counts(self, other: PairedGain) -> None:
        self._add_counts(*other.counts)

    @property
    def gain(self) -> float:
        """Accuracy of the first method minus that of the second, in percentage points."""
        return 100 * (self.counts[1] - self.counts[2]) / self._require_samples()

    def interval(self, level: float = LEVEL, draws: int = DRAWS, seed: int = 0) -> tuple[float, float]:
        """Bootstrap interval of the gain, in percentage points: see `gain_interval`."""
        self._require_samples()
        level = checked_fraction("level", level, usual=LEVEL)
        draws = positive_integer(
            "draws", draws, fix=f"draws={DRAWS}", most=MOST_DRAWS, why="all draws are in memory at once"
        )
        return gain_interval(self.counts, level=level, draws=draws, seed=seed)
