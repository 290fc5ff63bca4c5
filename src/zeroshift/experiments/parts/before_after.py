"""How a gain comes about: accuracy along the stream, and which classes are taken for which before and after."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from zeroshift.experiments.parts.findings import Confusion, Lines, Series
from zeroshift.features import FeatureSet

__all__ = ["class_names", "confusion", "running"]

Record = Mapping[str, Any]


def class_names(features: FeatureSet, *, prompt: str) -> dict[str, Any]:
    """What the classes of a set are called."""
    return {"class_names": list(features.class_names)}


def running(name: str, title: str, online: Record, whole: Record | None, labels: Mapping[str, str]) -> Lines:
    """Accuracy so far of zero-shot and an online method, from its record; that of a transductive one as a level.

    `labels` names the three, by method: zero-shot, the online, the transductive one.
    """
    curve = online["detail"]["curve"]
    x = tuple(map(float, curve["rows"]))
    before, after, level = labels
    series = [
        Series(labels[method], x, tuple(100 * y for y in curve[key]), method=method)
        for method, key in ((before, "zero_shot"), (after, "accuracy"))
    ]
    if whole is not None:
        reached = 100 * float(whole["accuracy"])
        series.append(Series(labels[level], (x[0], x[-1]), (reached, reached), method=level))
    return Lines(
        name,
        f"Accuracy over the stream: {title}",
        "samples seen",
        "accuracy so far (%)",
        tuple(series),
        f"One random order. {labels[level]} sees the whole set first: its accuracy on all of it, as a level.",
    )


def confusion(title: str, names: Sequence[str], record: Record, after_label: str) -> Confusion:
    """Of a record, zero-shot's before and the method's after."""
    before, after = (_fractions(record["detail"][key]) for key in ("zero_shot_confusion", "confusion"))
    return Confusion(
        "confusion",
        f"Which classes are taken for which: {title}",
        tuple(names),
        before,
        after,
        after_label=after_label,
        caption="Rows are true classes, columns predicted ones; each row is a share of its class.",
    )


def _fractions(counts: Sequence[Sequence[int]]) -> np.ndarray:
    found = np.asarray(counts, float)
    return np.asarray(found / np.maximum(found.sum(axis=1, keepdims=True), 1))
