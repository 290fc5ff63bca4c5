"""What the record of a run holds of its scores: the method's, zero-shot's on the same samples, and the two together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from zeroshift.arrays import Array
from zeroshift.evaluate.tallies.checks import plain_array, score_rows
from zeroshift.evaluate.tallies.paired_gain import PairedGain
from zeroshift.evaluate.tallies.predictions import Predictions
from zeroshift.evaluate.tallies.running import running_accuracy
from zeroshift.evaluate.tallies.scorecard import Scorecard

__all__ = ["CURVE_POINTS", "score_sheet"]

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
