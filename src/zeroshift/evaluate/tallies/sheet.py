"""What the record of a run holds of its scores: the method's, zero-shot's on the same samples, and the two together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from zeroshift.evaluate.tallies.paired_gain import PairedGain
from zeroshift.evaluate.tallies.predictions import Predictions
from zeroshift.evaluate.tallies.running import running_accuracy
from zeroshift.evaluate.tallies.scorecard import Scorecard

__all__ = ["CURVE_POINTS", "score_sheet"]

CURVE_POINTS = 100
"""Points of the running accuracy, at most."""


def score_sheet(
    probabilities: np.ndarray,
    zero_shot: np.ndarray,
    labels: np.ndarray,
    groups: np.ndarray | None = None,
    group_names: Sequence[str] = (),
) -> dict[str, Any]:
    """Scores of a method beside zero-shot's, samples in the order of the stream.

    `groups` (n,) is the group each sample belongs to, by number, where there are groups; those without a sample are
    left out.

    >>> sheet = score_sheet(np.eye(2), np.eye(2)[[0, 0]], np.array([0, 1]))
    >>> sheet["accuracy"], sheet["zero_shot_accuracy"], sheet["paired"]
    (1.0, 0.5, [1, 1, 0, 0])
    """
    said, before = Predictions.of(probabilities, labels), Predictions.of(zero_shot, labels)
    card, plain, paired = Scorecard(said.classes), Scorecard(before.classes), PairedGain()
    card.count(said)
    plain.count(before)
    paired.update(said.right, before.right)
    return {
        **card.record(),
        **_twins(plain.record()),
        "paired": list(paired.counts),
        "groups": {} if groups is None else _by_group(said.right, before.right, groups, group_names),
        "detail": {"curve": _curve(said.right, before.right), **card.detail(), **_twins(plain.detail())},
    }


def _twins(found: dict[str, Any]) -> dict[str, Any]:
    return {f"zero_shot_{name}": value for name, value in found.items()}


def _by_group(
    right: np.ndarray, zero_shot: np.ndarray, groups: np.ndarray, names: Sequence[str]
) -> dict[str, dict[str, float]]:
    found = {}
    for group in np.unique(groups).tolist():
        here = groups == group
        found[names[group] if names else str(group)] = {
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
