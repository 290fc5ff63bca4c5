"""How far a gain could be from what was measured, had other samples of the same kind come: the paired bootstrap."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from zeroshift.arrays import Array
from zeroshift.evaluate.metrics.base import Tally, flags, share, whole
from zeroshift.parameters import Number

__all__ = ["DRAWS", "LEVEL", "MOST_DRAWS", "PairedGain", "gain_interval"]

LEVEL = 0.95
DRAWS = 2000

BOOTSTRAP_MOST_DRAWS = 1_000_000
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
    draws = int(Number(1, BOOTSTRAP_MOST_DRAWS, integer=True).check("draws", draws))
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


# Two methods on the same samples: how much more often the first is right, and how sure that is.


MOST_DRAWS = 1_000_000
"""All draws are held at once, four counts of 8 bytes each."""


class PairedGain(Tally):
    """Samples by which of two methods is right: both, only the first, only the second, neither.

    >>> import numpy as np
    >>> tally = PairedGain()
    >>> tally.update(np.array([True, True, False, True]), np.array([True, False, False, False]))
    >>> tally.counts, tally.gain
    ((1, 2, 0, 1), 50.0)
    """

    def __init__(self) -> None:
        self.counts: tuple[int, int, int, int] = (0, 0, 0, 0)
        """Both right, only the first, only the second, neither."""

    def update(self, first: Array, second: Array) -> None:
        """Count some samples: whether each method is right, True or False, (n,) and (n,)."""
        a = flags("first", first)
        b = flags("second", second, rows=len(a), of="first")
        self._put(int((a & b).sum()), int((a & ~b).sum()), int((~a & b).sum()), int((~a & ~b).sum()))
        self.n_samples += len(a)

    def _put(self, both: int, first: int, second: int, neither: int) -> None:
        have = self.counts
        self.counts = (have[0] + both, have[1] + first, have[2] + second, have[3] + neither)

    def _add(self, other: PairedGain) -> None:
        self._put(*other.counts)

    @property
    def gain(self) -> float:
        """Accuracy of the first less that of the second, in percentage points."""
        return 100 * (self.counts[1] - self.counts[2]) / self._some()

    def interval(self, level: float = LEVEL, draws: int = DRAWS, seed: int = 0) -> tuple[float, float]:
        """Where the gain lies, in percentage points: see `zeroshift.evaluate.metrics.gain`."""
        self._some()
        level = share("level", level, usual=LEVEL)
        draws = whole("draws", draws, fix=f"draws={DRAWS}", most=MOST_DRAWS, why="all are held at once")
        return gain_interval(self.counts, level=level, draws=draws, seed=seed)
