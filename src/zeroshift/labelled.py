"""Labelled samples a user brings: a pair (features, labels), checked and brought to where a method keeps its state."""

from __future__ import annotations

from typing import Any

import numpy as np

from zeroshift.arrays import Array, Home, check_labels, check_matrix

__all__ = ["Labelled", "checked_labelled"]

Labelled = tuple[Array, np.ndarray]
"""Unit features (n, d), and class indices (n,) on the host."""


def checked_labelled(name: str, pair: Any, prototypes: Array) -> Labelled:
    """The pair, refused by `name` where it is not one; features are copied, so that the caller's may change."""
    if not isinstance(pair, (tuple, list)) or len(pair) != 2:
        given = f"a {type(pair).__name__} of {len(pair)}" if isinstance(pair, (tuple, list)) else type(pair).__name__
        fix = f"{name}=({name}.features, {name}.labels)" if hasattr(pair, "labels") else f"{name}=(features, labels)"
        raise TypeError(f"{name} must be a pair (features, labels); got {given}. Fix: {fix}.")
    features, labels = pair
    check_matrix(f"{name} features", features, columns=prototypes.shape[1])
    labels = check_labels(f"{name} labels", labels, rows=features.shape[0], classes=prototypes.shape[0])
    home = Home.of(prototypes)
    return home.copy(home.bring(features)), labels
