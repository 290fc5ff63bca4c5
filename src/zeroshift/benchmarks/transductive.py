"""The transductive method against three bare products, and against its definition on sampled rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from zeroshift.adapt import TransductiveADAPT
from zeroshift.adapt.statistics import (
    bank_scatter,
    bank_term,
    class_means,
    discriminant,
    fuse,
    linear_head,
    ridge_precision,
)
from zeroshift.arrays import Array, Home, to_numpy
from zeroshift.benchmarks.clip_like import ClipLike
from zeroshift.benchmarks.clock import Clock, spread
from zeroshift.benchmarks.stepping import agreement
from zeroshift.zero_shot import confidence, log_posterior, pseudo_class, softmax

__all__ = ["measure_transductive"]

CHECKED_ROWS = 200
"""Rows, spread over the set, whose answers are compared with the definition's."""

BLOCK_ROWS = 4096

PRODUCTS = 3
"""N K d products the method cannot do without: posterior, discriminant, bank term."""


def measure_transductive(
    problem: ClipLike, features: Array, home: Home, floor_seconds: float, repeats: int
) -> dict[str, Any]:
    prototypes = home.bring(np.asarray(problem.prototypes))
    adapter = TransductiveADAPT(prototypes, logit_scale=problem.logit_scale)
    clock, taken, answer = Clock(home), [], None
    for _ in range(repeats + 1):
        answer = None  # two answers at once could be more than the memory there is
        seconds, answer = clock.time(adapter.adapt, features)
        taken.append(seconds)
    rows = np.unique(np.linspace(0, features.shape[0] - 1, CHECKED_ROWS).round().astype(np.int64))
    times = spread(taken[1:])
    sampled = to_numpy(answer)[rows].astype(np.float64)
    scores = to_numpy(adapter.predict_scores(home.bring(np.asarray(problem.features[rows]), home.xp.float64)))
    definition = _definition(problem, rows, adapter)
    return {
        "timed": "the whole set in one call",
        "seconds": times["median"],
        "seconds_a_sample": times["median"] / features.shape[0],
        "repeated": times,
        "times_three_products": times["median"] / (PRODUCTS * floor_seconds),
        "agreement": agreement(sampled, softmax(definition), scores, definition),
    }


def _definition(problem: ClipLike, rows: np.ndarray, adapter: TransductiveADAPT) -> np.ndarray:
    """Scores of the given rows by Algorithm 2 as the equations have it, in NumPy float64."""
    prototypes = np.asarray(problem.prototypes, np.float64)
    classes, d = prototypes.shape
    sums, weight = np.zeros((classes, d)), np.zeros(classes)
    pseudo, sure, own = [], [], []
    for start in range(0, len(problem.features), BLOCK_ROWS):
        x = np.asarray(problem.features[start : start + BLOCK_ROWS], np.float64)
        log_y = log_posterior(x, prototypes, problem.logit_scale)
        y = np.exp(log_y)
        sums, weight = sums + y.T @ x, weight + y.sum(axis=0)
        pseudo.append(pseudo_class(log_y))
        sure.append(confidence(log_y))
        own.append(y[np.arange(len(x)), pseudo[-1]])
    k, c, p = (np.concatenate(parts) for parts in (pseudo, sure, own))
    banks, weights = np.zeros((classes, adapter.bank_size, d)), np.zeros((classes, adapter.bank_size))
    for label in range(classes):
        of_class = np.flatnonzero(k == label)
        surest = of_class[np.argsort(-c[of_class], kind="stable")][: adapter.bank_size]
        banks[label, : len(surest)] = problem.features[surest]
        weights[label, : len(surest)] = p[surest]
    sums = sums + (weights[:, :, None] * banks).sum(axis=1)
    means = class_means(sums, weight + weights.sum(axis=1), prototypes, adapter.alpha, adapter.beta)
    occupied = (weights > 0).astype(np.float64)
    precision = ridge_precision(bank_scatter(banks, occupied, means), float(occupied.sum()))
    x = np.asarray(problem.features[rows], np.float64)
    g = discriminant(x, *linear_head(means, precision))
    scores: np.ndarray = fuse(log_posterior(x, prototypes, problem.logit_scale), g, bank_term(x, banks, weights))
    return scores
