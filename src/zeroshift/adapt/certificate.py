"""The bank term without touching the bank, wherever a certificate allows it.

r_k = sum_j max(0, x.x_j) p_j is the plain product x.(sum_j p_j x_j) as soon as no cosine in the class's bank is negative.
A bank lies in a cone about its weighted sum s; a sample within 90 degrees minus the cone's half-angle of s has no
negative cosine with any entry. Testing that costs nothing beside the product itself: x.s >= |x| |s| sin(half-angle).
"""

from __future__ import annotations

from zeroshift.adapt.statistics import bank_term
from zeroshift.arrays import Array, namespace

__all__ = ["WORK_NUMBERS", "certified_bank_term", "cone_limits", "mend_bank_term"]

ROUNDING = 1e-12
"""Slack of the certificate, relative to |s|: far above rounding, far below any angle that matters."""

WORK_NUMBERS = 4_000_000
"""Cosines between samples and bank entries held at once: 32 MB in float64."""


def cone_limits(features: Array, occupied: Array, weighted_sums: Array) -> Array:
    """(K,): x.s_k at or above |x| times this certifies class k; infinite where a bank spans a right angle or more.

    >>> import numpy as np
    >>> entries = np.array([[[1.0, 0.0], [0.8, 0.6]]])
    >>> limit = cone_limits(entries, np.ones((1, 2)), entries.sum(axis=1))
    >>> x = np.array([0.0, 1.0])
    >>> bool(x @ entries.sum(axis=1)[0] >= limit[0]), bool(-x @ entries.sum(axis=1)[0] >= limit[0])
    (True, False)
    """
    xp = namespace(features)
    lengths = xp.linalg.vector_norm(weighted_sums, axis=-1)
    projections = xp.matmul(features, weighted_sums[..., None])[..., 0]
    norms = xp.linalg.vector_norm(features, axis=-1)
    reach = norms * lengths[..., None]
    cosines = xp.where((occupied > 0) & (reach > 0), projections / xp.where(reach > 0, reach, 1.0), 1.0)
    narrowest = xp.min(cosines, axis=-1)
    sines = xp.sqrt(xp.clip(1.0 - narrowest * narrowest, min=0.0))
    limits = lengths * (sines + ROUNDING)
    # An empty bank has s = 0 and r = 0: certified by -inf whatever x is.
    limits = xp.where(lengths > 0, limits, -xp.inf)
    return xp.where(narrowest > ROUNDING, limits, xp.inf)


def certified_bank_term(
    x: Array, bank_features: Array, weights: Array, weighted_sums: Array, limits: Array, norms: Array | None = None
) -> Array:
    """`statistics.bank_term`, (n, K), from one product with the weighted sums; exact sums where that is not certified."""
    return mend_bank_term(x @ weighted_sums.T, x, bank_features, weights, limits, norms)


def mend_bank_term(
    term: Array, x: Array, bank_features: Array, weights: Array, limits: Array, norms: Array | None = None
) -> Array:
    """`term` (n, K) = x.s, with every value the certificate does not cover replaced by the exact sum."""
    xp = namespace(x)
    if norms is None:
        norms = xp.linalg.vector_norm(x, axis=1)
    doubtful = term < limits * norms[:, None]
    if not bool(xp.any(doubtful)):
        return term
    rows = xp.nonzero(xp.any(doubtful, axis=1))[0]
    classes = xp.nonzero(xp.any(doubtful, axis=0))[0]
    features, p = bank_features[classes], weights[classes]
    at_once = max(1, WORK_NUMBERS // (p.shape[0] * p.shape[1]))
    term = xp.asarray(term, copy=True)
    for start in range(0, rows.shape[0], at_once):
        some = rows[start : start + at_once]
        exact = bank_term(x[some], features, p)
        place = (some[:, None], classes[None, :])
        term[place] = xp.where(doubtful[place], exact, term[place])
    return term
