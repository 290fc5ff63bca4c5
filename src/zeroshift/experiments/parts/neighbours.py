"""How far a stream is from a random order: how many classes come near each other, and how unequal classes are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from zeroshift.evaluate.streams.arrangement import Arrangement
from zeroshift.features import FeatureSet

__all__ = ["WINDOW", "neighbours"]

WINDOW = 64
"""Samples in a row: what is often given to a model at a time."""


def neighbours(
    features: FeatureSet, *, prompt: str, seed: int, kind: str, parameters: Mapping[str, Any], window: int = WINDOW
) -> dict[str, Any]:
    """Mean number of classes in `window` samples in a row, and the greatest class of the stream against the smallest.

    Windows do not overlap; what is left over at the end is one only where the stream is shorter than a window.

    >>> pets = FeatureSet(np.eye(2)[[0, 1] * 4], prototypes=np.eye(2), labels=[0, 1] * 4)
    >>> neighbours(pets, prompt="default", seed=0, kind="class_sorted", parameters={}, window=4)["classes_in_a_row"]
    1.0
    """
    if features.labels is None:
        raise ValueError(f"features must be labelled: classes are counted; got {features!r}.")
    rows = Arrangement(kind, parameters).stream(features, seed=seed, prompt=prompt).rows
    labels = features.labels[rows]
    starts = range(0, max(1, len(labels) - window + 1), window)
    sizes = np.unique(labels, return_counts=True)[1]
    return {
        "scored": len(rows),
        "classes_in_a_row": float(np.mean([len(set(labels[i : i + window].tolist())) for i in starts])),
        "imbalance": float(sizes.max() / sizes.min()),
        "zero_shot_accuracy": features.subset(rows).zero_shot_accuracy(prompt),
    }
