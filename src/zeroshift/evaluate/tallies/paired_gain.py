"""Two methods on the same samples: how much more often the first is right, and how sure that is."""

from __future__ import annotations

from zeroshift.arrays import Array
from zeroshift.evaluate.bootstrap import DRAWS, LEVEL, gain_interval
from zeroshift.evaluate.tallies.base import Tally
from zeroshift.evaluate.tallies.checks import flags, share, whole

__all__ = ["MOST_DRAWS", "PairedGain"]

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
        """Where the gain lies, in percentage points: see `zeroshift.evaluate.bootstrap`."""
        self._some()
        level = share("level", level, usual=LEVEL)
        draws = whole("draws", draws, fix=f"draws={DRAWS}", most=MOST_DRAWS, why="all are held at once")
        return gain_interval(self.counts, level=level, draws=draws, seed=seed)
