"""Noisy early predictions: some confident pseudo-labels, near the start of a stream, are turned into wrong ones."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from zeroshift.arrays import Array
from zeroshift.evaluate.streams.checks import checked_classes, checked_confidences, checked_seed
from zeroshift.parameters import Number
from zeroshift.zero_shot import graded

__all__ = ["EarlyNoise", "confident_positions", "early_noise"]

PHASE, SHARE = 0.3, 0.3
"""The paper's: 30% of the confident predictions, in the first 30% of the stream."""

CONFIDENT = 0.9
"""Which part of the stream counts as confident, the surest first; see `early_noise`."""

TURNING = 2
"""Kept apart from the seed of the order, so that the noise does not repeat the order's random numbers."""


@dataclass(frozen=True)
class EarlyNoise:
    """Which positions of a stream lose their pseudo-class, and to which other."""

    positions: np.ndarray
    """(m,) ascending."""
    pseudo_classes: np.ndarray
    """(m,) what they had."""
    wrong_classes: np.ndarray
    """(m,) what they have now: never the same."""

    def __len__(self) -> int:
        return len(self.positions)

    def apply(self, log_posteriors: np.ndarray) -> np.ndarray:
        """A copy of the (n, K) log-posteriors, in the order of the stream, with two of each such row swapped: that of
        the pseudo-class and that of the wrong one. The row is as sure as before, of another class."""
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
    """In the first `phase` of the stream exactly round(`share` x confident positions there) get another class, each
    other class being as likely; with `labels` a wrong one, each wrong one being as likely.

    Parameters
    ----------
    confidences, pseudo_classes : (n,) in the order of the stream.
    n_classes : K, at least 2; with `labels` at least 3.
    seed : of every draw.
    labels : (n,) true classes in the order of the stream. The paper reassigns "to incorrect classes": where they are
        given, the new class is neither the pseudo-class nor the true one. Without them one that was wrong may become
        right.
    phase : how much of the stream is touched.
    share : how many of its confident predictions are.
    confident : the surest so much of the whole stream counts as confident. The paper does not say what does. Of all its
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
    sure = confident_positions(confidences, confident)
    early = np.flatnonzero(sure[: round(phase * len(confidences))])
    draw = np.random.default_rng([checked_seed(seed), TURNING])
    positions = np.sort(draw.choice(early, round(share * len(early)), replace=False))
    said = pseudo_classes[positions]
    true = said if labels is None else labels[positions]
    # Drawn among the classes that are left, then moved past those that are not, the lower first.
    wrong = draw.integers(0, n_classes - 1 - (true != said))
    wrong += wrong >= np.minimum(said, true)
    wrong += (true != said) & (wrong >= np.maximum(said, true))
    return EarlyNoise(positions, said, wrong)


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
    """(n,) whether each position is of the surest `confident` of all; of equally sure ones the earlier.

    >>> confident_positions(np.array([-0.5, -0.1, -0.3, -0.9]), 0.5).tolist()
    [False, True, True, False]
    """
    confident = float(Number(0, 1).check("confident", confident))
    confidences = checked_confidences(confidences)
    sure = np.zeros(len(confidences), bool)
    sure[np.argsort(-graded(confidences), kind="stable")[: round(confident * len(confidences))]] = True
    return sure
