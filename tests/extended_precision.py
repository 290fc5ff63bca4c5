"""ADAPT's definition in extended precision (80 bits on x86), to decide which of two float64 answers is right."""

from __future__ import annotations

import numpy as np
import pytest

from zeroshift.adapt.base import ADAPT

Real = np.longdouble
SMALLEST_TRACE, ZERO_TRACE = 1e-5, 1e-24

needs_extended_precision = pytest.mark.skipif(
    np.finfo(Real).eps > 1e-18, reason="longdouble is not more precise than float64 here"
)


def solve(matrix: np.ndarray, right: np.ndarray) -> np.ndarray:
    """matrix^-1 right by elimination, for a positive definite matrix."""
    joined = np.concatenate([matrix, right], axis=1)
    for c in range(len(matrix)):
        joined[c] /= joined[c, c]
        factors = joined[:, c].copy()
        factors[c] = 0
        joined -= factors[:, None] * joined[c]
    return joined[:, len(matrix) :]


def scores(method: ADAPT, features: np.ndarray, soft: np.ndarray | None = None) -> np.ndarray:
    """log y + g + r with the bank of the method; `soft` are all samples of a set, for the transductive method."""
    t, x = method.prototypes.astype(Real), features.astype(Real)
    bank = method._evidence
    entries, weights, used = (a.astype(Real) for a in (bank.features, bank.weights, bank.occupied))
    d, count = t.shape[1], int(used.sum())
    sums, weight = (weights[:, :, None] * entries).sum(axis=1), weights.sum(axis=1)
    if soft is not None:
        wide = soft.astype(Real)
        y = np.exp(log_posterior(wide, t, method.logit_scale))
        sums, weight = sums + y.T @ wide, weight + y.sum(axis=0)
    mixing = np.where(weight > 0, Real(method.alpha), 0)[:, None]
    means = mixing * (sums / np.where(weight > 0, weight, 1)[:, None]) + (1 - mixing) * t
    deviations = ((entries - means[:, None]) * used[:, :, None]).reshape(-1, d)
    sigma = deviations.T @ deviations / count
    trace, identity = np.trace(sigma), np.eye(d, dtype=Real)
    directions = means
    if trace > ZERO_TRACE:
        directions = d * solve((count - 1) * sigma + max(trace, Real(SMALLEST_TRACE)) * identity, means.T).T
    discriminant = x @ directions.T - (directions * means).sum(axis=1) / 2
    cosines = np.maximum(x @ entries.reshape(-1, d).T, 0)
    term = (cosines * weights.reshape(-1)).reshape(len(x), *weights.shape).sum(axis=2)
    return log_posterior(x, t, method.logit_scale) + discriminant + term


def log_posterior(x: np.ndarray, t: np.ndarray, logit_scale: float) -> np.ndarray:
    return log_softmax(Real(logit_scale) * (x @ t.T))


def log_softmax(values: np.ndarray) -> np.ndarray:
    shifted = values - values.max(axis=1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))


def softmax(values: np.ndarray) -> np.ndarray:
    return np.exp(log_softmax(values)).astype(np.float64)
