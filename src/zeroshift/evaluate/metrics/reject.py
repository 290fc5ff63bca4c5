"""How little a sample is like any of the classes: "none of these", which a softmax over the classes cannot say."""

from __future__ import annotations

import numpy as np

from zeroshift.arrays import Array
from zeroshift.evaluate.metrics.base import Tally, flags, number_list, share
from zeroshift.features import FeatureSet
from zeroshift.features.checks import blocks

__all__ = ["TRUE_POSITIVE_RATE", "RejectCurve", "reject_scores"]


def reject_scores(features: FeatureSet, prompt: str | None = None) -> np.ndarray:
    """(N,) one less the largest cosine to a prototype: 0 on top of one, the higher the less it is like any.

    Scores of one set can be ranked and cut at a threshold; where to cut differs from encoder to encoder. It does not
    depend on the logit scale, nor on what a method has learned.

    >>> pets = FeatureSet(np.array([[1.0, 0.0], [0.6, 0.8]]), prototypes=np.array([[1.0, 0.0]]))
    >>> reject_scores(pets).tolist()
    [0.0, 0.4]
    """
    if not isinstance(features, FeatureSet):
        raise TypeError(
            f"features must be a FeatureSet; got {type(features).__name__}. "
            "Fix: zeroshift.FeatureSet(features, prototypes=prototypes)."
        )
    prototypes = features.prototypes_for(prompt).astype(np.float32)
    scores = np.empty(features.n_samples, np.float32)
    for rows in blocks(features.n_samples, max(features.n_classes, features.dimension)):
        cosines = np.asarray(features.features[rows], np.float32) @ prototypes.T
        scores[rows] = np.maximum(1 - cosines.max(axis=1), 0)  # rounding makes some rows a little longer than one
    return scores.astype(np.float64).round(6)


# How well a score tells the samples to be rejected from the others.


TRUE_POSITIVE_RATE = 0.95
"""Where the field reads the false positive rate."""


class RejectCurve(Tally):
    """Scores, the higher the more a sample ought to be rejected, and whether it ought to be.

    Every score is kept: exact areas and rates need their ranks, which no count of bins gives.

    >>> tally = RejectCurve()
    >>> tally.update(np.array([0.9, 0.4, 0.4, 0.1]), np.array([True, True, False, False]))
    >>> tally.auroc, tally.false_positive_rate()
    (0.875, 0.5)
    """

    def __init__(self) -> None:
        self._scores: list[np.ndarray] = []
        self._wanted: list[np.ndarray] = []

    def update(self, scores: Array, positive: Array) -> None:
        """Count some samples: scores (n,), and whether each ought to be rejected, True or False (n,)."""
        values = number_list("scores", scores, each="sample")
        self._wanted.append(flags("positive", positive, rows=len(values), of="scores").copy())
        self._scores.append(values)
        self.n_samples += len(values)

    def _add(self, other: RejectCurve) -> None:
        self._scores += other._scores
        self._wanted += other._wanted

    @property
    def auroc(self) -> float | None:
        """Chance that a sample to be rejected scores higher than one that is not, a tie counting half; None where all
        samples are of one kind."""
        hits, false = self._rejected()
        if hits[-1] == 0 or false[-1] == 0:
            return None
        # In halves, to stay with whole numbers: at each step so many false ones come, under hits[i] + hits[i-1] halves.
        steps = np.diff(false, prepend=0)
        halves = int((steps * (hits + np.concatenate([[0], hits[:-1]]))).sum())
        return halves / (2 * int(hits[-1]) * int(false[-1]))

    def false_positive_rate(self, tpr: float = TRUE_POSITIVE_RATE) -> float | None:
        """Share of the other samples that is rejected along, at the highest threshold that rejects at least `tpr` of
        those that ought to be. Samples of one score are rejected together. None where all are of one kind."""
        tpr = share("tpr", tpr, usual=TRUE_POSITIVE_RATE)
        hits, false = self._rejected()
        if hits[-1] == 0 or false[-1] == 0:
            return None
        place = int(np.argmax(hits / hits[-1] >= tpr))
        return int(false[place]) / int(false[-1])

    def _rejected(self) -> tuple[np.ndarray, np.ndarray]:
        """Samples rejected at every threshold, from the highest on: rightly, and wrongly."""
        self._some()
        scores, wanted = np.concatenate(self._scores), np.concatenate(self._wanted)
        order = np.argsort(-scores, kind="stable")
        scores, wanted = scores[order], wanted[order]
        last = np.append(np.flatnonzero(np.diff(scores)), len(scores) - 1)
        hits = np.cumsum(wanted)[last]
        return hits, last + 1 - hits
