"""How far the covariances of classes lie from the pooled one, and how far sampling alone would put them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from zeroshift.features import FeatureSet

__all__ = ["NEAR", "SHOWN", "SHUFFLES", "covariance_spread", "spread"]

NEAR = 0.1
"""The Frobenius distance below which the paper calls a class's covariance aligned with the pooled one."""

SHUFFLES = 19
"""Random re-assignments: a class that is like the others is farther than in all of these one time in twenty."""

PAIRED = 30
PICTURED = 3
SHOWN = 32
"""Classes compared in pairs, classes whose covariance is shown, and how many of its first dimensions."""

DIGITS = 7
"""Decimals kept of the numbers that are only looked at."""


def covariance_spread(
    features: FeatureSet, *, prompt: str, near: float = NEAR, shuffles: int = SHUFFLES, seed: int = 0
) -> dict[str, Any]:
    """Distances, traces and some covariances of the classes of a set. Classes of one sample are left out.

    `classes`, `pictured` and `paired` hold indices of classes.

    The yardstick: samples, each centred on its class, are dealt to the classes anew at random, so that all classes have
    one covariance by construction, and the same distances are taken.
    """
    if features.labels is None:
        raise ValueError("covariances of classes need labels that say which they are; this set has none.")
    labels = np.asarray(features.labels)
    classes = [k for k in range(features.n_classes) if np.count_nonzero(labels == k) >= 2]
    if not classes:
        raise ValueError("no class has two samples, so none has a covariance. Fix: a set with more samples a class.")
    groups = [np.asarray(features.features[labels == k], dtype=np.float64) for k in classes]
    pooled, distances, traces = spread(groups)
    rng = np.random.default_rng(seed)
    shuffled = np.array([spread(_dealt_anew(groups, rng))[1] for _ in range(shuffles)]).reshape(shuffles, len(groups))
    norm = float(np.linalg.norm(pooled))
    chosen = np.sort(rng.choice(len(groups), min(PAIRED, len(groups)), replace=False))
    pictured = np.sort(rng.choice(len(groups), min(PICTURED, len(groups)), replace=False))
    return {
        "classes": classes,
        "left_out": features.n_classes - len(classes),
        "zero_shot_accuracy": features.subset(np.isin(labels, classes)).zero_shot_accuracy(prompt),
        "pooled_norm": norm,
        "pooled_trace": float(np.trace(pooled)),
        "near": near,
        "share_near": float(np.mean(distances < near)),
        "distances": distances.tolist(),
        "traces": traces.tolist(),
        "sampling": shuffled.mean(axis=0).tolist(),
        "share_beyond_sampling": float(np.mean(distances > shuffled.max(axis=0))) if shuffles else None,
        "pictured": [classes[k] for k in pictured],
        "pooled": _corner(pooled),
        "covariances": [_corner(_covariance(groups[k])) for k in pictured],
        "paired": [classes[k] for k in chosen],
        "dissimilarity": np.round(_dissimilarity([groups[k] for k in chosen]) / norm, DIGITS).tolist(),
    }


def spread(groups: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The pooled covariance (d, d), each group's Frobenius distance to it (K,) and each group's trace (K,).

    >>> pooled, distances, traces = spread([np.array([[-1.0, 0.0], [1.0, 0.0]]), np.array([[0.0, -1.0], [0.0, 1.0]])])
    >>> pooled.tolist(), distances.round(3).tolist(), traces.tolist()
    ([[1.0, 0.0], [0.0, 1.0]], [1.414, 1.414], [2.0, 2.0])
    """
    degrees = sum(len(group) - 1 for group in groups)
    pooled = sum((len(group) - 1) * _covariance(group) for group in groups) / degrees
    # Once more, rather than kept: a thousand classes in 512 dimensions are 2 GB.
    pairs = [(float(np.linalg.norm(c - pooled)), float(np.trace(c))) for c in map(_covariance, groups)]
    distances, traces = np.array(pairs).T
    return np.asarray(pooled), distances, traces


def _covariance(group: np.ndarray) -> np.ndarray:
    centred = group - group.mean(axis=0)
    return np.asarray(centred.T @ centred / (len(group) - 1))


def _dealt_anew(groups: Sequence[np.ndarray], rng: np.random.Generator) -> list[np.ndarray]:
    # Centring on the mean of n samples shrinks their covariance by (n - 1) / n; this takes it back.
    centred = [(group - group.mean(axis=0)) * np.sqrt(len(group) / (len(group) - 1)) for group in groups]
    dealt = rng.permutation(np.concatenate(centred))
    return np.split(dealt, np.cumsum([len(group) for group in groups])[:-1])


def _dissimilarity(groups: Sequence[np.ndarray]) -> np.ndarray:
    covariances = np.array([_covariance(group).ravel() for group in groups])
    return np.array([np.linalg.norm(covariances - one, axis=1) for one in covariances])


def _corner(covariance: np.ndarray) -> list[list[float]]:
    found: list[list[float]] = np.round(covariance[:SHOWN, :SHOWN], DIGITS).tolist()
    return found
