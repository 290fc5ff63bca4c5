"""How unsure a prediction is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from zeroshift.arrays import Array
from zeroshift.evaluate.metrics.accuracy import Accuracy, ClassAccuracy, Confusion, running_accuracy
from zeroshift.evaluate.metrics.base import (
    Predictions,
    PredictionTally,
    class_count,
    plain_array,
    probability_rows,
    score_rows,
)
from zeroshift.evaluate.metrics.calibration import BINS, Brier, Calibration, LogLoss
from zeroshift.evaluate.metrics.gain import PairedGain
from zeroshift.evaluate.metrics.reject import RejectCurve

__all__ = ["CURVE_POINTS", "MAX_CONFUSED_CLASSES", "TOP", "Scorecard", "doubt", "score_sheet"]


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


# Every metric of a method's predictions at once, and what a record holds of them.


TOP = 5

MAX_CONFUSED_CLASSES = 30
"""Beyond this a record holds no confusion matrix: nobody could read it, and it would be most of the file."""


class Scorecard(PredictionTally):
    """Accuracy (top 1, top 5, mean of the classes), calibration, log loss, Brier score and how well one less the
    largest probability tells wrong predictions from right ones.

    >>> import numpy as np
    >>> card = Scorecard(classes=2)
    >>> card.update(np.array([[0.9, 0.1], [0.4, 0.6]]), np.array([0, 0]))
    >>> card.record()["accuracy"], card.record()["error_auroc"]
    (0.5, 1.0)
    """

    def __init__(self, classes: int, bins: int = BINS) -> None:
        self.classes = class_count(classes)
        self.top1, self.top5 = Accuracy(), Accuracy(TOP)
        self.by_class = ClassAccuracy(self.classes)
        self.calibration = Calibration(bins)
        self.log_loss, self.brier = LogLoss(), Brier()
        self.errors = RejectCurve()
        """Scores for "this prediction is wrong"."""
        self.confusion = Confusion(self.classes) if self.classes <= MAX_CONFUSED_CLASSES else None

    @property
    def settings(self) -> dict[str, Any]:
        return {"classes": self.classes, "bins": self.calibration.bins}

    @property
    def _tallies(self) -> list[PredictionTally]:
        found = [self.top1, self.top5, self.by_class, self.calibration, self.log_loss, self.brier]
        return found if self.confusion is None else [*found, self.confusion]

    def _count(self, said: Predictions) -> None:
        doubts = doubt(said.probabilities)  # refuses what are no probabilities before any tally has counted them
        for tally in self._tallies:
            tally.count(said)
        self.errors.update(doubts, ~said.right)

    def _add(self, other: Scorecard) -> None:
        for tally, others in zip(self._tallies, other._tallies, strict=True):
            tally.merge(others)
        self.errors.merge(other.errors)

    def record(self) -> dict[str, float | None]:
        """The scalars, by the names records have. `top5_accuracy` is 1 with five classes or fewer; the last two are
        None where all predictions are right, or all wrong."""
        return {
            "accuracy": self.top1.value,
            "top5_accuracy": self.top5.value,
            "class_mean_accuracy": self.by_class.mean,
            "calibration_error": self.calibration.error,
            "nll": self.log_loss.value,
            "brier": self.brier.value,
            "error_auroc": self.errors.auroc,
            "error_fpr95": self.errors.false_positive_rate(),
        }

    def detail(self) -> dict[str, Any]:
        """What figures are drawn from."""
        return {
            "reliability": self.calibration.reliability,
            "confusion": None if self.confusion is None else self.confusion.counts.tolist(),
        }


# What the record of a run holds of its scores: the method's, zero-shot's on the same samples, and the two together.


CURVE_POINTS = 100
"""Points of the running accuracy, at most."""


def score_sheet(
    probabilities: Array,
    zero_shot: Array,
    labels: Array,
    groups: Array | None = None,
    group_names: Sequence[str] = (),
) -> dict[str, Any]:
    """Scores of a method beside zero-shot's, samples in the order of the stream.

    `groups` (n,) is the group each sample belongs to, by number, where there are groups; those without a sample are
    left out. `group_names` has a name for each number; without names the numbers are used.

    >>> sheet = score_sheet(np.eye(2), np.eye(2)[[0, 0]], np.array([0, 1]))
    >>> sheet["accuracy"], sheet["zero_shot_accuracy"], sheet["paired"]
    (1.0, 0.5, [1, 1, 0, 0])
    """
    said = Predictions.of(probabilities, labels)
    # Its shape before the labels, which fit the method's: they are not what is wrong.
    baseline = score_rows("zero_shot", zero_shot)
    if baseline.shape != said.matrix.shape:
        raise ValueError(
            f"zero_shot must have the shape of probabilities, {said.matrix.shape}; got {baseline.shape}. "
            "Fix: what zero-shot says of the same samples and classes, in the same order."
        )
    before = Predictions.of(baseline, labels, name="zero_shot")
    found = None if groups is None else _group_numbers(groups, len(said), group_names)
    card, plain, paired = Scorecard(said.classes), Scorecard(before.classes), PairedGain()
    card.count(said)
    plain.count(before)
    paired.update(said.right, before.right)
    return {
        **card.record(),
        **_twins(plain.record()),
        "paired": list(paired.counts),
        "groups": {} if found is None else _by_group(said.right, before.right, found, group_names),
        "detail": {"curve": _curve(said.right, before.right), **card.detail(), **_twins(plain.detail())},
    }


def _twins(found: dict[str, Any]) -> dict[str, Any]:
    return {f"zero_shot_{name}": value for name, value in found.items()}


def _group_numbers(groups: Array, rows: int, names: Sequence[str]) -> np.ndarray:
    wanted = f"groups must hold a whole number for each sample, shape ({rows},)"
    found = plain_array(wanted, groups)
    if found.shape != (rows,) or found.dtype.kind not in "iu":
        raise ValueError(
            f"{wanted}; got shape {found.shape} of {found.dtype}. "
            "Fix: groups = [group_names.index(name) for name in groups] where they are names."
        )
    if isinstance(names, str):
        raise TypeError(f"group_names must be a list of names; got {names!r}. Fix: group_names=[{names!r}].")
    if len(set(names)) < len(names):
        raise ValueError(f"group_names must differ; got {list(names)}. Fix: one number in groups for one name.")
    most = len(names) - 1 if len(names) else None
    outside = (found < 0) | (False if most is None else found > most)
    if outside.any():
        row = int(np.argmax(outside))
        allowed = "at least 0" if most is None else f"from 0 to {most}, as group_names has {len(names)}"
        raise ValueError(
            f"groups row {row} is {found[row]}; groups are numbered {allowed}. "
            "Fix: number groups from 0 on, with a name for each in group_names, or group_names=()."
        )
    return found


def _by_group(
    right: np.ndarray, zero_shot: np.ndarray, groups: np.ndarray, names: Sequence[str]
) -> dict[str, dict[str, float]]:
    found = {}
    for group in np.unique(groups).tolist():
        here = groups == group
        found[names[group] if len(names) else str(group)] = {
            "scored": int(here.sum()),
            "accuracy": float(right[here].mean()),
            "zero_shot_accuracy": float(zero_shot[here].mean()),
        }
    return found


def _curve(right: np.ndarray, zero_shot: np.ndarray) -> dict[str, list[float]]:
    """Accuracy over the samples so far, at the ends of equal stretches of the stream."""
    points = min(CURVE_POINTS, len(right))
    rows = -(-np.arange(1, points + 1) * len(right) // points)
    return {
        "rows": rows.tolist(),
        "accuracy": running_accuracy(right)[rows - 1].tolist(),
        "zero_shot": running_accuracy(zero_shot)[rows - 1].tolist(),
    }
