"""Every class of a set put to both tests of normality, in many random projections to few dimensions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from zeroshift.experiments.parts.henze_zirkler import henze_zirkler
from zeroshift.experiments.parts.projections import KINDS, projected
from zeroshift.experiments.parts.shapiro import FEWEST, generalised_shapiro_wilk
from zeroshift.features import FeatureSet

__all__ = ["DIMENSIONS", "LEVEL", "REPEATS", "TESTS", "normality_of_classes"]

TESTS = {"Henze-Zirkler": henze_zirkler, "Shapiro-Wilk": generalised_shapiro_wilk}

DIMENSIONS = (2, 4, 6, 8, 10)
REPEATS = 100
LEVEL = 0.05
"""Table 10: dimensions projected to, projections a class, and what its p-values are compared with."""

MOST_SAMPLES = 500
"""Samples of a class that are tested; the cost grows with their square. ImageNet has 50, the bundled packs 150."""


def normality_of_classes(
    features: FeatureSet,
    *,
    prompt: str,
    kind: str,
    dimensions: Sequence[int] = DIMENSIONS,
    repeats: int = REPEATS,
    level: float = LEVEL,
    most_samples: int = MOST_SAMPLES,
    seed: int = 0,
) -> dict[str, Any]:
    """For each test and dimension: share of classes whose mean p-value is above `level`, the mean of these, and the
    share of all single tests that reject at `level`. Classes with too few samples are left out and counted.

    `zero_shot_accuracy` is of the samples that are tested in the fewest dimensions.
    """
    rows = []
    tested: list[np.ndarray] = []
    able = [d for d in dimensions if d <= features.dimension]
    for d in able:
        p_values: dict[str, list[np.ndarray]] = {test: [] for test in TESTS}
        for k, chosen in _classes(features, most_samples, seed):
            if len(chosen) <= d + 1 or len(chosen) < FEWEST:
                continue
            samples = np.asarray(features.features[chosen], dtype=np.float64)
            tested += [chosen] if d == min(able) else []
            views = projected(samples, kind, d, repeats, np.random.default_rng([seed, KINDS.index(kind), d, k]))
            for test, run in TESTS.items():
                p_values[test].append(run(views)[1])
        rows += [_summary(test, d, features.n_classes, np.array(found), level) for test, found in p_values.items()]
    return {
        "view": kind,
        "repeats": repeats,
        "level": level,
        "n_classes": features.n_classes,
        "zero_shot_accuracy": features.subset(np.concatenate(tested)).zero_shot_accuracy(prompt) if tested else None,
        "tests": rows,
    }


def _classes(features: FeatureSet, most: int, seed: int) -> Iterator[tuple[int, np.ndarray]]:
    """Each class, and which of its samples are tested."""
    if features.labels is None:
        raise ValueError("classes can be looked at only where labels say which they are; this set has none.")
    for k in range(features.n_classes):
        rows = np.flatnonzero(features.labels == k)
        if len(rows) > most:
            rows = np.sort(np.random.default_rng([seed, k]).choice(rows, most, replace=False))
        yield k, rows


def _summary(test: str, d: int, n_classes: int, p_values: np.ndarray, level: float) -> dict[str, Any]:
    """From p-values (classes, repeats)."""
    tested = len(p_values)
    averages = p_values.mean(axis=1) if tested else None
    return {
        "test": test,
        "dimension": d,
        "classes": tested,
        "left_out": n_classes - tested,
        "above": None if averages is None else float(np.mean(averages > level)),
        "mean_p": None if averages is None else float(averages.mean()),
        "rejected": float(np.mean(p_values < level)) if tested else None,
    }
