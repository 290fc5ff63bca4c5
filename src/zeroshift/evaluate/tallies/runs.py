"""Many runs of one thing: their mean, and the worst of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from zeroshift.evaluate.tallies.base import Tally
from zeroshift.evaluate.tallies.checks import number_list
from zeroshift.evaluate.tallies.checks import share as checked_share

__all__ = ["WORST_SHARE", "Runs", "worst_share"]

WORST_SHARE = 0.1


def worst_share(values: Sequence[float], share: float = WORST_SHARE) -> float:
    """Mean of the lowest `share` of the values: as many whole runs as that is, and at least one.

    >>> worst_share([0.9, 0.7, 0.8])
    0.7
    >>> worst_share([0.75, 0.5, 1.0, 0.25], share=0.5)
    0.375
    """
    found = np.sort(number_list("values", values))
    if len(found) == 0:
        raise ValueError("values must hold the number of at least one run; got none. Fix: values=[0.75].")
    share = checked_share("share", share, usual=WORST_SHARE)
    taken = max(1, int(share * len(found) + 1e-9))  # 0.1 of 30 is 3, whatever the product rounds to
    return float(found[:taken].mean())


class Runs(Tally):
    """A number of each run; all are kept, there are few of them.

    >>> runs = Runs()
    >>> runs.update([0.75, 0.5])
    >>> runs.mean, runs.least, runs.greatest, runs.worst()
    (0.625, 0.5, 0.75, 0.5)
    """

    def __init__(self) -> None:
        self.values: list[float] = []

    def update(self, values: Sequence[float]) -> None:
        found = number_list("values", values).tolist()
        self.values += found
        self.n_samples += len(found)

    def _add(self, other: Runs) -> None:
        self.values += other.values

    @property
    def mean(self) -> float:
        self._some()
        return float(np.mean(self.values))

    @property
    def least(self) -> float:
        self._some()
        return min(self.values)

    @property
    def greatest(self) -> float:
        self._some()
        return max(self.values)

    def worst(self, share: float = WORST_SHARE) -> float:
        """See `worst_share`."""
        self._some()
        return worst_share(self.values, share)
