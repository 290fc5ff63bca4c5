"""Long-tailed streams, with few large classes and many small ones, and noise on their early pseudo-labels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from zeroshift.arrays import Array
from zeroshift.evaluate.streams.stream import Stream, checked_classes, checked_confidences, checked_seed
from zeroshift.parameters import Constraint, Number, Optional
from zeroshift.zero_shot import quantize

__all__ = [
    "CONSTRAINTS",
    "GROUPS",
    "EarlyNoise",
    "confident_positions",
    "early_noise",
    "group_of_size",
    "long_tail",
    "long_tail_counts",
]

GROUPS = ("head", "medium", "tail")

HEAD, TAIL = 0.8, 0.2
"""Fractions of the largest class: classes of at least `HEAD` of it are head, of at most `TAIL` tail. The paper's 40 and
10 of 50."""

IMBALANCE = 50.0
"""Size of the largest class over the smallest; fits the paper's counts."""

FEWEST = 2
"""Minimum size of the largest class; with one row per class there is no tail."""


class _Most(Optional):
    def check(self, name: str, value: Any) -> Any:
        try:
            return super().check(name, value)
        except (TypeError, ValueError) as error:
            fix = f"Fix: {name}=None, which is the size of the smallest class."
            raise type(error)(f"{error} With one row per class there is no tail. {fix}") from None


CONSTRAINTS: dict[str, Constraint] = {"imbalance": Number(1), "most": _Most(Number(FEWEST, integer=True))}


def long_tail_counts(n_classes: int, most: int, imbalance: float = IMBALANCE) -> np.ndarray:
    """Class sizes from `most` down to `most / imbalance` in a geometric sequence, at least 1 each.

    Where `most` is below `imbalance`, the smallest class has one row and the ratio is `most`.

    The paper says "power law" and gives counts alone: 61 classes with 40 or more (2,719 images), 338 between (7,396)
    and 601 with 10 or fewer (2,416). An exponential from 50 down to 1 gives exactly these:

    >>> counts = long_tail_counts(1000, most=50, imbalance=50)
    >>> [(int(part.sum()), len(part)) for part in (counts[counts >= 40], counts[counts <= 10])], int(counts.sum())
    ([(2719, 61), (2416, 601)], 12531)
    """
    n_classes = int(Number(1, integer=True).check("n_classes", n_classes))
    most = int(CONSTRAINTS["most"].check("most", most))
    imbalance = float(CONSTRAINTS["imbalance"].check("imbalance", imbalance))
    ranks = np.arange(n_classes) / max(1, n_classes - 1)
    return np.maximum(1, np.rint(most * imbalance**-ranks)).astype(int)


def group_of_size(counts: np.ndarray, most: int) -> np.ndarray:
    """Index in `GROUPS` for each class size.

    >>> group_of_size(np.array([50, 40, 39, 10]), most=50).tolist()
    [0, 0, 1, 2]
    """
    return np.where(counts >= HEAD * most, 0, np.where(counts <= TAIL * most, 2, 1))


def long_tail(labels: Array, seed: int, *, imbalance: float = IMBALANCE, most: int | None = None) -> Stream:
    """A stream with class sizes from `long_tail_counts`; the ranks of classes, the rows and the order are random.

    Parameters
    ----------
    labels : (N,) class indices; classes without rows are ignored.
    seed : seed of all draws.
    imbalance : size of the largest class over the smallest; at most `most`.
    most : size of the largest class, at least 2; by default the size of the smallest class in `labels`, so that every
        class can have any rank.

    >>> stream = long_tail(np.repeat(np.arange(5), 10), seed=0, imbalance=10)
    >>> len(stream), np.bincount(stream.groups).tolist(), stream.group_names
    (22, [10, 9, 3], ('head', 'medium', 'tail'))
    """
    labels = checked_classes("labels", labels)
    classes, members, sizes = np.unique(labels, return_inverse=True, return_counts=True)
    most = CONSTRAINTS["most"].check("most", most)
    if sizes.min() < FEWEST:
        raise ValueError(
            f"the smallest class has {sizes.min()} row; for a long tail every class needs at least {FEWEST}. "
            "Fix: leave out the classes with fewer."
        )
    if most is None:
        most = int(sizes.min())
    if most > sizes.min():
        raise ValueError(
            f"most must be at most {sizes.min()}, the size of the smallest class; got {most}. "
            f"Fix: most={sizes.min()}, or None."
        )
    draw = np.random.default_rng(checked_seed(seed))
    counts = draw.permutation(long_tail_counts(len(classes), most, imbalance))
    mixed = draw.permutation(len(labels))
    taken = [mixed[members[mixed] == k][:count] for k, count in enumerate(counts)]
    rows = draw.permutation(np.concatenate(taken))
    return Stream(rows, group_of_size(counts, most)[members[rows]], GROUPS)


PHASE, SHARE = 0.3, 0.3
"""The values of the paper: 30% of the confident predictions in the first 30% of the stream."""

CONFIDENT = 0.9
"""Fraction of the stream that counts as confident; see `early_noise`."""

NOISE_DRAW = 2
"""Second seed of the noise, so that it does not repeat the random numbers of the order."""


@dataclass(frozen=True)
class EarlyNoise:
    """Positions of a stream whose pseudo-class is replaced, and by which class."""

    positions: np.ndarray
    """(m,) ascending."""
    pseudo_classes: np.ndarray
    """(m,) their pseudo-classes."""
    wrong_classes: np.ndarray
    """(m,) the classes that replace them; always different."""

    def __len__(self) -> int:
        return len(self.positions)

    def apply(self, log_posteriors: np.ndarray) -> np.ndarray:
        """A copy of the (n, K) log-posteriors, in stream order, with the values of pseudo-class and wrong class swapped
        in each of these rows. The confidence stays the same."""
        noisy = np.array(log_posteriors)
        noisy[self.positions, self.wrong_classes] = log_posteriors[self.positions, self.pseudo_classes]
        noisy[self.positions, self.pseudo_classes] = log_posteriors[self.positions, self.wrong_classes]
        return noisy


def early_noise(
    confidences: Array,
    pseudo_classes: Array,
    n_classes: int,
    seed: int,
    *,
    labels: Array | None = None,
    phase: float = PHASE,
    share: float = SHARE,
    confident: float = CONFIDENT,
) -> EarlyNoise:
    """Replace the pseudo-class of round(`share` x n) of the n confident positions in the first `phase` of the stream by
    a random other class; with `labels`, by a random wrong class.

    Parameters
    ----------
    confidences, pseudo_classes : (n,) in the order of the stream. n_classes : K, at least 2; with `labels` at least 3.
    seed : seed of all draws. labels : (n,) true classes in stream order. The paper reassigns "to incorrect classes":
    with labels, the new class is
        neither the pseudo-class nor the true one. Without labels, a wrong pseudo-class may become correct.
    phase : fraction of the stream that gets noise.
    share : fraction of its confident predictions that are changed.
    confident : fraction of the stream that counts as confident, which the paper does not define. Of all its
        predictions at most 0.3 x 0.3 = 9% turn wrong, and CLIP, which learns nothing, loses 5.9 points by it (the mean
        of its groups over samples; the average printed says 6.08): 0.66 of all samples were both confident and right.
        CLIP is right on 0.69, so nearly all that were right counted as confident: nine tenths of the stream is in
        keeping with that, a half cannot be.

    >>> noise = early_noise(np.linspace(-1, 0, 20), np.zeros(20, int), 3, seed=0, phase=0.5, share=0.5, confident=1.0)
    >>> noise.positions.tolist(), noise.wrong_classes.tolist()
    ([0, 2, 3, 5, 9], [1, 1, 1, 2, 1])
    """
    n_classes = int(Number(2, integer=True).check("n_classes", n_classes))
    confidences = checked_confidences(confidences)
    pseudo_classes = checked_classes("pseudo_classes", pseudo_classes, rows=len(confidences), n_classes=n_classes)
    if labels is not None:
        labels = _checked_labels(labels, len(confidences), n_classes)
    phase = float(Number(0, 1).check("phase", phase))
    share = float(Number(0, 1).check("share", share))
    is_confident = confident_positions(confidences, confident)
    early = np.flatnonzero(is_confident[: round(phase * len(confidences))])
    draw = np.random.default_rng([checked_seed(seed), NOISE_DRAW])
    positions = np.sort(draw.choice(early, round(share * len(early)), replace=False))
    pseudo = pseudo_classes[positions]
    true = pseudo if labels is None else labels[positions]
    # Draw an index among the allowed classes, then skip the excluded ones, the lower first.
    wrong = draw.integers(0, n_classes - 1 - (true != pseudo))
    wrong += wrong >= np.minimum(pseudo, true)
    wrong += (true != pseudo) & (wrong >= np.maximum(pseudo, true))
    return EarlyNoise(positions, pseudo, wrong)


def _checked_labels(labels: Array, n: int, n_classes: int) -> np.ndarray:
    try:
        found = checked_classes("labels", labels, rows=n, n_classes=n_classes)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{error} In the order of the stream: labels[stream.rows].") from None
    if n_classes < 3:
        raise ValueError(
            f"n_classes must be at least 3 where labels are given; got {n_classes}: of two, none is left that is "
            "neither the pseudo-class nor the true one. Fix: labels=None."
        )
    return found


def confident_positions(confidences: Array, confident: float = CONFIDENT) -> np.ndarray:
    """(n,) whether each position is among the most confident fraction `confident`; ties go to the earlier.

    >>> confident_positions(np.array([-0.5, -0.1, -0.3, -0.9]), 0.5).tolist()
    [False, True, True, False]
    """
    confident = float(Number(0, 1).check("confident", confident))
    confidences = checked_confidences(confidences)
    is_confident = np.zeros(len(confidences), bool)
    is_confident[np.argsort(-quantize(confidences), kind="stable")[: round(confident * len(confidences))]] = True
    return is_confident
