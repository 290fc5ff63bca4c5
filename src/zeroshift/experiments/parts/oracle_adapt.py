"""ADAPT with the truth in place of its pseudo-labels: a bound that uses every label, not a method.

"y replaced by the one-hot truth for the statistics, over the full test set": Algorithm 2 as it stands, with y_ik = 1
for the true class wherever means, banks and covariance are made, and with the zero-shot posterior as ever where a
sample is scored. Two points are left open by that. One-hot posteriors are all equally sure, so a bank takes, of its
true class, those the zero-shot classifier is surest of. And the covariance is that of the banks, as in Algorithm 2, so
that labels are all that differs from transductive ADAPT; `covariance="all"` takes it from every sample instead.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from zeroshift.adapt.statistics import (
    bank_scatter,
    bank_sums,
    bank_term,
    class_means,
    discriminant,
    fuse,
    linear_head,
    ridge_precision,
    soft_scatter,
)
from zeroshift.features import FeatureSet
from zeroshift.zero_shot import confidence, log_posterior

__all__ = ["COVARIANCES", "oracle_adapt", "oracle_scores"]

COVARIANCES = ("banks", "all")

BANK_SIZE = 6
ALPHA = 0.9
"""Transductive ADAPT's, and the paper's."""

BLOCK_ROWS = 2048


def oracle_adapt(
    features: FeatureSet, *, prompt: str, covariance: str = "banks", bank_size: int = BANK_SIZE, alpha: float = ALPHA
) -> dict[str, Any]:
    """Accuracy where the statistics come from true labels."""
    if features.labels is None:
        raise ValueError("the oracle takes its statistics from labels, and this set has none. Fix: pass labels=.")
    scores = oracle_scores(
        features.features,
        features.labels,
        features.prototypes_for(prompt),
        features.logit_scale,
        covariance=covariance,
        bank_size=bank_size,
        alpha=alpha,
    )
    predicted = scores.argmax(axis=1)
    return {"accuracy": float(np.mean(predicted == features.labels)), "scored": len(predicted), "uses_labels": True}


def oracle_scores(
    features: np.ndarray,
    labels: np.ndarray,
    prototypes: np.ndarray,
    logit_scale: float,
    *,
    covariance: str = "banks",
    bank_size: int = BANK_SIZE,
    alpha: float = ALPHA,
) -> np.ndarray:
    """log y + g + r (N, K), with g and r from the true classes."""
    if covariance not in COVARIANCES:
        raise ValueError(f"covariance must be one of {', '.join(COVARIANCES)}; got {covariance!r}.")
    x, t = np.asarray(features, dtype=np.float64), np.asarray(prototypes, dtype=np.float64)
    log_y = np.concatenate([log_posterior(x[rows], t, logit_scale) for rows in _blocks(len(x))])
    bank, occupied = _true_banks(x, labels, confidence(log_y), len(t), bank_size)
    sums, counts = np.zeros_like(t), np.bincount(labels, minlength=len(t)).astype(np.float64)
    np.add.at(sums, labels, x)
    banked_sums, banked_counts = bank_sums(bank, occupied)
    means = class_means(sums + banked_sums, counts + banked_counts, t, alpha, None)
    if covariance == "banks":
        precision = ridge_precision(bank_scatter(bank, occupied, means), int(occupied.sum()))
    else:
        precision = ridge_precision(soft_scatter(x.T @ x, sums, counts, means), len(x))
    head = linear_head(means, precision)
    return np.concatenate(
        [fuse(log_y[r], discriminant(x[r], *head), bank_term(x[r], bank, occupied)) for r in _blocks(len(x))]
    )


def _true_banks(
    x: np.ndarray, labels: np.ndarray, sureness: np.ndarray, n_classes: int, size: int
) -> tuple[np.ndarray, np.ndarray]:
    """The surest samples of each true class (K, L, d), and which slots hold one (K, L)."""
    bank, occupied = np.zeros((n_classes, size, x.shape[1])), np.zeros((n_classes, size))
    for k in range(n_classes):
        rows = np.flatnonzero(labels == k)
        surest = rows[np.argsort(-sureness[rows], kind="stable")][:size]
        bank[k, : len(surest)], occupied[k, : len(surest)] = x[surest], 1.0
    return bank, occupied


def _blocks(rows: int) -> list[slice]:
    return [slice(start, start + BLOCK_ROWS) for start in range(0, rows, BLOCK_ROWS)]
