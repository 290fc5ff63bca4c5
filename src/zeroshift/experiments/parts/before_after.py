"""How a gain comes about: accuracy along the stream, and which classes are taken for which before and after."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from zeroshift.experiments.parts.findings import Confusion, Lines, Series

__all__ = ["SETTLED", "confusion", "running"]

Record = Mapping[str, Any]

SETTLED = 50
"""Sample from which running accuracy is drawn, or a quarter of a short stream: before, it jumps between 0 and 1."""


def running(name: str, title: str, online: Record, whole: Record | None, labels: Mapping[str, str]) -> Lines:
    """Accuracy so far of zero-shot and an online method, from its record; that of a transductive one as a level.

    `labels` names the three, by method: zero-shot, the online, the transductive one.
    """
    curve = online["detail"]["curve"]
    rows = curve["rows"]
    settled = min(SETTLED, max(1, rows[-1] // 4))
    drawn = [place for place, row in enumerate(rows) if row >= settled]
    x = tuple(float(rows[place]) for place in drawn)
    before, after, level = labels
    series = [
        Series(labels[method], x, tuple(100 * curve[key][place] for place in drawn), method=method)
        for method, key in ((before, "zero_shot"), (after, "accuracy"))
    ]
    told = ""
    if whole is not None:
        told = f" {labels[level]} sees the whole set first: its accuracy on all of it, as a level."
        reached = 100 * float(whole["accuracy"])
        series.append(Series(labels[level], (x[0], x[-1]), (reached, reached), method=level))
    return Lines(
        name,
        f"Accuracy over the stream: {title}",
        "samples seen",
        "accuracy so far (%)",
        tuple(series),
        f"One random order, from sample {rows[drawn[0]]:,} on." + told,
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
