"""How methods divide a plane of the features of a few classes among them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from zeroshift.adapt.online import OnlineADAPT
from zeroshift.adapt.transductive import TransductiveADAPT
from zeroshift.evaluate.threads import one_blas_thread
from zeroshift.experiments.parts.plane import HALF_SIDE, Plane, lifted
from zeroshift.features import FeatureSet
from zeroshift.method import Method
from zeroshift.methods.tda import TDA
from zeroshift.methods.zero_shot import ZeroShot

__all__ = ["METHODS", "boundary", "plane_regions"]

METHODS: Mapping[str, Callable[..., Method]] = {
    "zero_shot": ZeroShot,
    "tda": TDA,
    "adapt_online": OnlineADAPT,
    "adapt_transductive": TransductiveADAPT,
}

CLASSES = 6
POINTS = 300
GRID = 80
"""Classes drawn, points shown, and fields a side of the grid, at most."""

MOST_ROWS = 2000
"""Samples of these classes that methods learn from, at most."""

DECIMALS = 4


def plane_regions(
    features: FeatureSet,
    *,
    prompt: str,
    classes: int = CLASSES,
    points: int = POINTS,
    grid: int = GRID,
    most_rows: int = MOST_ROWS,
    seed: int = 0,
) -> dict[str, Any]:
    """The plane of some classes, drawn at random, its points, and for each method the class of every field of a grid.

    Methods adapt to the lifted points in a random order and then `predict` the fields. Accuracies are of `adapt`, in
    the plane and, of the same rows and classes, in all dimensions; `zero_shot_accuracy` is of these rows and classes
    too. `classes` holds their indices; points and fields are numbered by their place in it.
    """
    if features.labels is None:
        raise ValueError("decision regions are drawn with the true classes of points; this set has no labels.")
    if min(features.n_classes, features.dimension, classes) < 2:
        raise ValueError(
            f"regions need two classes in two dimensions at least; the set has {features.n_classes} in "
            f"{features.dimension}, and classes={classes} are to be drawn. Fix: a set with more classes or "
            "dimensions, and classes of at least 2."
        )
    rng = np.random.default_rng(seed)
    chosen = np.sort(rng.choice(features.n_classes, min(classes, features.n_classes), replace=False))
    rows = rng.permutation(np.flatnonzero(np.isin(features.labels, chosen)))[:most_rows]
    labels = np.searchsorted(chosen, features.labels[rows])
    x = _unit(features.features[rows])
    prototypes = _unit(features.prototypes_for(prompt)[chosen])
    plane = Plane.of(x, prototypes, features.logit_scale)
    fields = lifted(_fields(grid))
    regions = {}
    for name, make in METHODS.items():
        with one_blas_thread():
            whole = make(prototypes, logit_scale=features.logit_scale).adapt(x)
            method = make(lifted(plane.anchors), logit_scale=plane.logit_scale)
            flat = method.adapt(lifted(plane.points))
            divided = np.asarray(method.predict(fields)).argmax(axis=1).reshape(grid, grid)
        regions[name] = {
            "accuracy": float(np.mean(np.asarray(flat).argmax(axis=1) == labels)),
            "accuracy_in_all_dimensions": float(np.mean(np.asarray(whole).argmax(axis=1) == labels)),
            "boundary": boundary(divided),
            "classes_with_a_region": len(np.unique(divided)),
            "classes": divided.tolist(),
        }
    return {
        "classes": chosen.tolist(),
        "zero_shot_accuracy": regions["zero_shot"]["accuracy_in_all_dimensions"],
        "rows": len(rows),
        "dimension": features.dimension,
        "kept": plane.kept,
        "logit_scale": plane.logit_scale,
        "half_side": HALF_SIDE,
        "points": np.round(plane.points[:points], DECIMALS).tolist(),
        "labels": labels[:points].tolist(),
        "anchors": np.round(plane.anchors, DECIMALS).tolist(),
        "regions": regions,
    }


def boundary(classes: np.ndarray) -> float:
    """Share of neighbouring fields that belong to different classes: the length of all borders.

    >>> boundary(np.array([[0, 0], [1, 1]]))
    0.5
    """
    across, up = classes[:, 1:] != classes[:, :-1], classes[1:] != classes[:-1]
    return float((across.sum() + up.sum()) / (across.size + up.size))


def _fields(grid: int) -> np.ndarray:
    """Centres of the fields (grid^2, 2), row by row from the bottom."""
    centres = HALF_SIDE * ((2 * np.arange(grid) + 1) / grid - 1)
    return np.stack(np.meshgrid(centres, centres), axis=-1).reshape(-1, 2)


def _unit(rows: np.ndarray) -> np.ndarray:
    wide = np.asarray(rows, dtype=np.float64)
    return np.asarray(wide / np.linalg.norm(wide, axis=1, keepdims=True))
