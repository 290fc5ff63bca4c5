"""The first pass over a whole set: soft sums of all samples, and each pseudo-class's surest samples into the bank."""

from __future__ import annotations

import numpy as np

from zeroshift.adapt.bank import KnowledgeBank
from zeroshift.arrays import Array, Home, Rows, namespace, to_numpy
from zeroshift.zero_shot import confidence, log_posterior, pseudo_class

__all__ = ["CHUNK_ROWS", "SoftSums", "added", "survey"]

CHUNK_ROWS = 4096
"""Rows worked on together where a method's `chunk_size` is not given."""

SoftSums = tuple[Array, Array]
"""sum_i y_ik x_i (K, d) and sum_i y_ik (K,)."""


def added(sums: SoftSums, features: Array, posterior: Array) -> SoftSums:
    """The sums with these samples, counted by `posterior` (n, K), added."""
    weighted_sum, weight = sums
    return weighted_sum + posterior.T @ features, weight + namespace(posterior).sum(posterior, axis=0)


def survey(rows: Rows, chunk_rows: int, prototypes: Array, logit_scale: float, bank: KnowledgeBank) -> SoftSums:
    """Fill `bank` with each pseudo-class's L surest samples (the earlier on a tie); return all samples' soft sums."""
    home = Home.of(prototypes)
    xp = home.xp
    sums: SoftSums = (xp.zeros_like(prototypes), home.zeros((prototypes.shape[0],)))
    pseudo_classes, confidences, probabilities = [], [], []
    for _, features in rows.blocks(chunk_rows):
        log_y = log_posterior(features, prototypes, logit_scale)
        sums = added(sums, features, xp.exp(log_y))
        pseudo = to_numpy(pseudo_class(log_y))
        pseudo_classes.append(pseudo)
        confidences.append(to_numpy(confidence(log_y)))
        probabilities.append(np.exp(to_numpy(log_y)[np.arange(len(pseudo)), pseudo]))
    _fill(bank, rows, np.concatenate(pseudo_classes), np.concatenate(confidences), np.concatenate(probabilities), home)
    return sums


def _fill(
    bank: KnowledgeBank, rows: Rows, classes: np.ndarray, confidences: np.ndarray, probabilities: np.ndarray, home: Home
) -> None:
    # By class, then surest first, then first come: lexsort is stable, which is the tie rule.
    order = np.lexsort((-confidences, classes))
    sorted_classes = classes[order]
    rank = np.arange(len(order)) - np.searchsorted(sorted_classes, sorted_classes)
    chosen, rank = order[rank < bank.capacity], rank[rank < bank.capacity]
    features = home.xp.concat([rows[int(row) : int(row) + 1] for row in chosen], axis=0)
    bank.fill(features, classes[chosen], rank, home.bring(probabilities[chosen]), home.bring(confidences[chosen]))
