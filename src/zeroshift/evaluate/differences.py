"""Paired differences: how much more accurate one method is than another, with an interval from the same samples.

Every draw takes the samples of a set with replacement, the same ones for all methods, runs and streams; the accuracy of
a draw is the mean over sets. So an interval is paired over the samples within a set. It covers the choice of samples,
not other sets and not other orders.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from zeroshift.evaluate.metrics.gain import LEVEL
from zeroshift.evaluate.outcomes import Outcomes
from zeroshift.suggest import did_you_mean

__all__ = [
    "DRAWS",
    "Cell",
    "Difference",
    "check_baseline",
    "differences_to",
    "paired_intervals",
    "resample_set",
    "resampled_accuracies",
]

DRAWS = 1000

ROWS_AT_ONCE = 2_000_000
"""Numbers of a block of draws."""

DIGITS = 9
"""Differences in points are rounded to so many decimals: equal accuracies can differ in their last bits."""


@dataclass(frozen=True)
class Difference:
    """The accuracy of a method minus that of another, in points, and its interval."""

    to: str
    """The label of the other method."""
    points: float
    low: float
    high: float

    @property
    def is_tie(self) -> bool:
        """Whether the interval contains zero: the samples cannot tell the methods apart."""
        return self.low <= 0 <= self.high


def check_baseline(baseline: str, labels: Sequence[str]) -> None:
    """Refuse a baseline that is not compared."""
    if baseline not in labels:
        raise ValueError(
            f"--baseline: {baseline!r} is not among the compared methods: {', '.join(labels)}. "
            f"{did_you_mean(baseline, labels)}Fix: name one of them, or add it to --methods."
        )


def differences_to(
    other: str, labels: Sequence[str], means: Sequence[float], accuracies: np.ndarray, *, level: float = LEVEL
) -> dict[str, Difference]:
    """The difference of every method to the one labelled `other`, from the means and the (M, draws) paired draws of
    their accuracies."""
    place = labels.index(other)
    ends = paired_intervals(accuracies, accuracies[place], level=level).T.tolist()
    return {
        label: Difference(other, 100 * (mean - means[place]), low, high)
        for label, mean, (low, high) in zip(labels, means, ends, strict=True)
    }


def paired_intervals(accuracies: np.ndarray, others: np.ndarray, *, level: float = LEVEL) -> np.ndarray:
    """(2, ...) lower and upper ends of the accuracies minus the others, in points. Both are paired draws, which are the
    last axis: see `resampled_accuracies`.

    >>> draws = np.array([[0.8, 0.9, 0.8], [0.7, 0.8, 0.8]])
    >>> paired_intervals(draws[0], draws[1], level=0.5).tolist()
    [5.0, 10.0]
    """
    ends = np.quantile(100 * (accuracies - others), [(1 - level) / 2, (1 + level) / 2], axis=-1)
    return np.round(ends, DIGITS)


Cell = Sequence[Sequence[Outcomes]]
"""The runs of a method on a set, by stream."""


def resampled_accuracies(sets: Sequence[Sequence[Cell]], *, draws: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """(M, draws) accuracies of M methods on resampled sets, and those of zero-shot on the rows of each.

    `sets[s][m]` has the runs of method m on set s. A method's accuracy is the mean over sets of the mean over streams
    of the mean over runs.
    """
    found = [resample_set(cells, draws=draws, seed=(seed, place)) for place, cells in enumerate(sets)]
    accuracies, zero_shot = np.mean(found, axis=0)
    return accuracies, zero_shot


def resample_set(cells: Sequence[Cell], *, draws: int, seed: Sequence[int]) -> np.ndarray:
    """(2, M, draws) accuracies of methods and of zero-shot on a set; `cells[m]` has the runs of method m. In every draw
    the rows are drawn with replacement, the same for all methods."""
    n_rows = len(cells[0][0][0].scored)
    generator = np.random.default_rng(seed)
    block = max(1, ROWS_AT_ONCE // n_rows)
    found = []
    for start in range(0, draws, block):
        size = min(block, draws - start)
        counts = generator.multinomial(n_rows, np.full(n_rows, 1 / n_rows), size=size)
        found.append(_weighted_accuracies(cells, counts.astype(np.float64)))
    return np.concatenate(found, axis=2)


def _weighted_accuracies(cells: Sequence[Cell], counts: np.ndarray) -> np.ndarray:
    """(2, M, D) accuracies of methods and of zero-shot, where row n counts `counts[d, n]` times."""
    found = np.empty((2, len(cells), len(counts)))
    whole = [place for place, cell in enumerate(cells) if all(run.scored.all() for runs in cell for run in runs)]
    if whole:
        # Every row is scored in every run: the mean over runs commutes with the mean over rows.
        for which, name in enumerate(("right", "zero_shot")):
            means = [
                np.mean([np.mean([getattr(run, name) for run in runs], axis=0) for runs in cells[place]], axis=0)
                for place in whole
            ]
            found[which, whole] = np.stack(means) @ counts.T / counts.sum(axis=1)
    for place in set(range(len(cells))) - set(whole):
        found[:, place] = np.mean([_scored_accuracies(runs, counts).mean(axis=1) for runs in cells[place]], axis=0)
    return found


def _scored_accuracies(runs: Sequence[Outcomes], counts: np.ndarray) -> np.ndarray:
    """(2, R, D) accuracies of R runs and of zero-shot among the drawn rows that were scored; where none was drawn,
    among all scored rows."""
    flags = np.stack([[run.right for run in runs], [run.zero_shot for run in runs], [run.scored for run in runs]])
    *right, drawn = flags @ counts.T
    *all_right, scored = flags.sum(axis=2)
    return np.where(drawn > 0, right / np.maximum(drawn, 1), (np.array(all_right) / scored)[:, :, None])
