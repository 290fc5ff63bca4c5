"""All metrics of a method's predictions, and the part of a run record that holds them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from zeroshift.arrays import Array
from zeroshift.evaluate.metrics.accuracy import Accuracy, ClassAccuracy, ConfusionMatrix, running_accuracy
from zeroshift.evaluate.metrics.base import (
    PredictionMetric,
    Predictions,
    as_numpy,
    checked_class_count,
    checked_probabilities,
    checked_scores,
)
from zeroshift.evaluate.metrics.calibration import BINS, Brier, Calibration, LogLoss
from zeroshift.evaluate.metrics.gain import PairedGain
from zeroshift.evaluate.metrics.reject import RejectCurve

__all__ = ["CURVE_POINTS", "MAX_CONFUSED_CLASSES", "TOP", "Scorecard", "score_run", "uncertainty"]


def uncertainty(probabilities: Array) -> np.ndarray:
    """(n,) 1 - the largest probability of each row, computed as the sum of the other probabilities.

    The sum of the others keeps its precision where the largest probability rounds to 1.0, so that very confident
    predictions can still be ranked.

    >>> uncertainty(np.array([[0.75, 0.125, 0.125], [1.0, 1e-30, 0.0]])).tolist()
    [0.25, 1e-30]
    """
    rows = checked_probabilities("probabilities", checked_scores("probabilities", probabilities))
    others = np.arange(rows.shape[1]) != np.argmax(rows, axis=1)[:, None]
    return np.asarray(np.sum(rows, axis=1, dtype=np.float64, where=others))


TOP = 5

MAX_CONFUSED_CLASSES = 30
"""Records of sets with more classes hold no confusion matrix."""


class Scorecard(PredictionMetric):
    """Accuracy (top 1, top 5, mean over classes), calibration, log loss, Brier score, and how well the uncertainty of a
    prediction separates wrong predictions from correct ones.

    >>> import numpy as np
    >>> card = Scorecard(classes=2)
    >>> card.update(np.array([[0.9, 0.1], [0.4, 0.6]]), np.array([0, 0]))
    >>> card.record()["accuracy"], card.record()["error_auroc"]
    (0.5, 1.0)
    """

    def __init__(self, classes: int, bins: int = BINS) -> None:
        self.classes = checked_class_count(classes)
        self.top1, self.top5 = Accuracy(), Accuracy(TOP)
        self.by_class = ClassAccuracy(self.classes)
        self.calibration = Calibration(bins)
        self.log_loss, self.brier = LogLoss(), Brier()
        self.errors = RejectCurve()
        """Uncertainty as a score for "this prediction is wrong"."""
        self.confusion = ConfusionMatrix(self.classes) if self.classes <= MAX_CONFUSED_CLASSES else None

    @property
    def settings(self) -> dict[str, Any]:
        return {"classes": self.classes, "bins": self.calibration.bins}

    @property
    def _metrics(self) -> list[PredictionMetric]:
        found = [self.top1, self.top5, self.by_class, self.calibration, self.log_loss, self.brier]
        return found if self.confusion is None else [*found, self.confusion]

    def _add_predictions(self, predictions: Predictions) -> None:
        uncertainties = uncertainty(
            predictions.probabilities
        )  # rejects invalid probabilities before any metric is updated
        for metric in self._metrics:
            metric.add(predictions)
        self.errors.update(uncertainties, ~predictions.right)

    def _merge_counts(self, other: Scorecard) -> None:
        for metric, others in zip(self._metrics, other._metrics, strict=True):
            metric.merge(others)
        self.errors.merge(other.errors)

    def record(self) -> dict[str, float | None]:
        """The scalars, under their names in records. `top5_accuracy` is 1 with at most five classes; the last two are
        None where all predictions are correct or all are wrong."""
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
        """The data of figures: reliability bins and the confusion matrix."""
        return {
            "reliability": self.calibration.reliability,
            "confusion": None if self.confusion is None else self.confusion.counts.tolist(),
        }


CURVE_POINTS = 100
"""Maximum number of points of the running accuracy."""


def score_run(
    probabilities: Array,
    zero_shot: Array,
    labels: Array,
    groups: Array | None = None,
    group_names: Sequence[str] = (),
    *,
    bins: int = BINS,
) -> dict[str, Any]:
    """The scores of a method and of zero-shot on the same samples, in stream order, as a record holds them.

    `groups` (n,) optionally assigns each sample to a group by index; groups without samples are omitted. `group_names`
    names the groups; without names their indices are used. `bins` are those of the calibration error.

    >>> scores = score_run(np.eye(2), np.eye(2)[[0, 0]], np.array([0, 1]))
    >>> scores["accuracy"], scores["zero_shot_accuracy"], scores["paired"]
    (1.0, 0.5, [1, 1, 0, 0])
    """
    predictions = Predictions.of(probabilities, labels)
    # The labels already fit the method's predictions, so check the shape first.
    baseline = checked_scores("zero_shot", zero_shot)
    if baseline.shape != predictions.matrix.shape:
        raise ValueError(
            f"zero_shot must have the shape of probabilities, {predictions.matrix.shape}; got {baseline.shape}. "
            "Fix: pass the zero-shot probabilities of the same samples and classes, in the same order."
        )
    zero_shot_predictions = Predictions.of(baseline, labels, name="zero_shot")
    found = None if groups is None else _checked_groups(groups, len(predictions), group_names)
    card, baseline_card = Scorecard(predictions.classes, bins), Scorecard(predictions.classes, bins)
    paired = PairedGain()
    card.add(predictions)
    baseline_card.add(zero_shot_predictions)
    paired.update(predictions.right, zero_shot_predictions.right)
    return {
        **card.record(),
        **_zero_shot_fields(baseline_card.record()),
        "paired": list(paired.counts),
        "groups": {}
        if found is None
        else _scores_by_group(predictions.right, zero_shot_predictions.right, found, group_names),
        "detail": {
            "curve": _running_accuracies(predictions.right, zero_shot_predictions.right),
            **card.detail(),
            **_zero_shot_fields(baseline_card.detail()),
        },
    }


def _zero_shot_fields(found: dict[str, Any]) -> dict[str, Any]:
    return {f"zero_shot_{name}": value for name, value in found.items()}


def _checked_groups(groups: Array, rows: int, names: Sequence[str]) -> np.ndarray:
    wanted = f"groups must hold an integer for each sample, shape ({rows},)"
    found = as_numpy(wanted, groups)
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


def _scores_by_group(
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


def _running_accuracies(right: np.ndarray, zero_shot: np.ndarray) -> dict[str, list[float]]:
    """Accuracy over the samples so far, at equally spaced positions of the stream."""
    points = min(CURVE_POINTS, len(right))
    rows = -(-np.arange(1, points + 1) * len(right) // points)
    return {
        "rows": rows.tolist(),
        "accuracy": running_accuracy(right)[rows - 1].tolist(),
        "zero_shot": running_accuracy(zero_shot)[rows - 1].tolist(),
    }
