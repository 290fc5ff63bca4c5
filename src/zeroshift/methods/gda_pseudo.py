"""GDA-CLIP without labels: Gaussian discriminant analysis on what the zero-shot classifier takes the samples for."""

from __future__ import annotations

from typing import NamedTuple

from zeroshift.adapt.statistics import class_means, linear_head, soft_scatter
from zeroshift.arrays import Array, Home, Rows
from zeroshift.linalg import ridge_precision
from zeroshift.methods._shared.linear_head import BLOCK_ROWS, LinearHead, LinearTransductive
from zeroshift.parameters import Number, parameter
from zeroshift.zero_shot import softmax

__all__ = ["GDAPseudo"]

LEAST_WEIGHT = 1e-12
"""A class with less responsibility in the whole set has no samples: so few digits are left that its mean is noise."""
NO_SPREAD = 100.0
"""Spread about the means of up to so many units in the last place of the features' own is rounding."""


class SoftSums(NamedTuple):
    """Sums over a set, in float64."""

    weighted: Array
    """sum r_ik x_i (K, d)."""
    weight: Array
    """sum r_ik (K,)."""


class GDAPseudo(LinearTransductive):
    """Fits one Gaussian a class, all of one covariance, to a whole unlabelled set by expectation maximisation that
    starts from the zero-shot posteriors, and adds their discriminants to the zero-shot logits.

    `adapt` starts afresh from the set it is given. `predict` scores other features with the classifier that set taught,
    before `adapt` with the zero-shot one.

    Examples
    --------
    >>> import numpy as np
    >>> from zeroshift.methods import GDAPseudo
    >>> GDAPseudo(np.eye(3, 8), logit_scale=10.0).adapt(np.eye(3, 8)[[0, 1, 2, 1]]).argmax(axis=1)
    array([0, 1, 2, 1])

    Notes
    -----
    Wang et al., *A Hard-to-Beat Baseline for Training-free CLIP-based Adaptation*, ICLR 2024, whose section on
    unsupervised learning has no released code and was known at second hand only. After that: responsibilities start as
    zero-shot posteriors; class means and one covariance are estimated from them; the prior is uniform. The precision is
    that of the few-shot method, `d ((n - 1) M + tr(M) I)^-1` with M the soft covariance about the means, n the size of
    the set.

    Ours: `alpha` and `iterations`; and later responsibilities are the posteriors of the sum, not of the Gaussians
    alone. The ridge precision is the inverse covariance only up to a factor of about d / n, which `alpha` absorbs;
    Gaussians so much wider than the data would, left to themselves, all drift to the mean of the set. A class without
    responsibility keeps its prototype as mean. Where nothing spreads about the means the answer is the zero-shot one.
    """

    name = "gda_pseudo"
    state_size = "K d"
    complexity = "O(T N K d + N d^2 + T d^3), T iterations"
    reconstructed = "the paper's unsupervised variant has no released code, and its settings are not known"

    logit_scale: float = parameter(Number(low=0, above=True), "Scale of the logits; 100 for CLIP.", default=100.0)
    alpha: float = parameter(
        Number(low=0),
        "Weight of the discriminants: logits + alpha (x.W_k + b_k). 1, of GDA-CLIP's grid 1e-4 to 1e2 the plain sum: the grid is searched with labels, of which there are none.",
        default=1.0,
    )
    iterations: int = parameter(
        Number(low=1, integer=True),
        "How often means, covariance and responsibilities are estimated in turn. 1 learns from the zero-shot posteriors alone.",
        default=10,
    )

    def _learn(self, rows: Rows) -> LinearHead:
        second_moment = _second_moment(rows)
        head = self._zero_shot
        for _ in range(self.iterations):
            head = self._estimated(_soft_sums(rows, head), second_moment, rows)
        return head

    def _estimated(self, sums: SoftSums, second_moment: Array, rows: Rows) -> LinearHead:
        home = Home.of(second_moment)
        xp = home.xp
        prototypes = home.bring(self.prototypes, xp.float64)
        held = sums.weight > LEAST_WEIGHT
        weight = xp.where(held, sums.weight, xp.zeros_like(sums.weight))
        weighted = xp.where(held[:, None], sums.weighted, xp.zeros_like(sums.weighted))
        means = class_means(weighted, weight, prototypes, 1.0, None)
        scatter = soft_scatter(second_moment, weighted, weight, means)
        spread, total = float(xp.linalg.trace(scatter)), float(xp.linalg.trace(second_moment))
        if spread <= NO_SPREAD * float(xp.finfo(rows[slice(0, 1)].dtype).eps) * total:
            return self._zero_shot
        directions, offsets = linear_head(means, ridge_precision(scatter, spread / max(len(rows) - 1, 1)))
        zero_shot = self._zero_shot
        return LinearHead(zero_shot.weights + self.alpha * directions, zero_shot.offsets + self.alpha * offsets)


def _second_moment(rows: Rows) -> Array:
    """sum x x^T (d, d); products in the features' precision, added up in float64."""
    total = None
    for _, x in rows.blocks(BLOCK_ROWS, reuse=True):
        home = Home.of(x)
        part = home.bring(x.T @ x, home.xp.float64)
        total = part if total is None else total + part
    return total


def _soft_sums(rows: Rows, head: LinearHead) -> SoftSums:
    """Sums weighted by the posteriors of a classifier, block by block: no (N, K) array is held."""
    home = Home.of(head.weights)
    weighted, weight = home.zeros(tuple(head.weights.shape)), home.zeros(tuple(head.offsets.shape))
    for _, x in rows.blocks(BLOCK_ROWS, reuse=True):
        responsibilities = softmax(head.scores(x))
        weighted = weighted + home.bring(responsibilities.T @ x, home.xp.float64)
        weight = weight + home.xp.sum(home.bring(responsibilities, home.xp.float64), axis=0)
    return SoftSums(weighted, weight)
