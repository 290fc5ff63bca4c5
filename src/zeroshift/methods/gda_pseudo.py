"""GDA-CLIP without labels: Gaussian discriminant analysis with zero-shot predictions as labels."""

from __future__ import annotations

from typing import NamedTuple

from zeroshift.adapt.statistics import class_means, linear_head, soft_scatter
from zeroshift.arrays import Array, Backend, Rows
from zeroshift.linalg import ridge_precision
from zeroshift.methods._shared.linear_head import BLOCK_ROWS, LinearHead, TransductiveLinearMethod
from zeroshift.parameters import Number, parameter
from zeroshift.zero_shot import softmax

__all__ = ["GDAPseudo"]

MIN_WEIGHT = 1e-12
"""A class with less responsibility in the whole set counts as empty: its mean would be rounding noise."""
NO_SPREAD = 100.0
"""A spread about the means of at most this many machine epsilons of the features is rounding."""


class PseudoLabelSums(NamedTuple):
    """Sums over a set, in float64."""

    weighted: Array
    """sum r_ik x_i (K, d)."""
    weight: Array
    """sum r_ik (K,)."""


class GDAPseudo(TransductiveLinearMethod):
    """Fits one Gaussian per class, with one covariance for all, to a whole unlabelled set by expectation maximisation
    that starts from the zero-shot posteriors, and adds the discriminants to the zero-shot logits.

    Every call of `adapt` starts from the beginning with the set it is given. `predict` scores other features with the
    learned classifier, and before `adapt` with the zero-shot one.

    Examples
    --------
    >>> import numpy as np
    >>> from zeroshift.methods import GDAPseudo
    >>> GDAPseudo(np.eye(3, 8), logit_scale=10.0).adapt(np.eye(3, 8)[[0, 1, 2, 1]]).argmax(axis=1)
    array([0, 1, 2, 1])

    Notes
    -----
    Wang et al., *A Hard-to-Beat Baseline for Training-free CLIP-based Adaptation*, ICLR 2024, whose section on
    unsupervised learning has no released code and was known to us from secondary sources only. From these:
    responsibilities start as zero-shot posteriors; class means and one covariance are estimated from them; the prior is
    uniform. The precision is that of the few-shot method, `d ((n - 1) M + tr(M) I)^-1` with M the soft covariance about
    the means, n the size of the set.

    Ours: `alpha` and `iterations`; and later responsibilities are the posteriors of the sum, not of the Gaussians
    alone. The ridge precision is the inverse covariance only up to a factor of about d / n, which `alpha` absorbs; on
    their own, Gaussians so much wider than the data would all drift to the mean of the set. A class without
    responsibility keeps its prototype as mean. If there is no spread about the means, the prediction is zero-shot.
    """

    name = "gda_pseudo"
    headline = "Gaussians by expectation maximisation"
    state_size = "K d"
    complexity = "O(T N K d + N d^2 + T d^3), T iterations"
    reconstructed = "the paper's unsupervised variant has no released code, and its settings are not known"

    alpha: float = parameter(
        Number(low=0),
        "Weight of the discriminants in logits + alpha (x.W_k + b_k). GDA-CLIP searches it with labels, from 1e-4 to "
        "1e2; without labels, the default is the plain sum.",
        default=1.0,
    )
    iterations: int = parameter(
        Number(low=1, integer=True),
        "Rounds of estimating means, covariance and responsibilities. 1 learns from the zero-shot posteriors alone.",
        default=10,
    )

    def _learn(self, rows: Rows) -> LinearHead:
        second_moment = _second_moment(rows)
        head = self._zero_shot
        for _ in range(self.iterations):
            head = self._estimate(_soft_sums(rows, head), second_moment, rows)
        return head

    def _estimate(self, sums: PseudoLabelSums, second_moment: Array, rows: Rows) -> LinearHead:
        backend = Backend.of(second_moment)
        xp = backend.xp
        prototypes = backend.asarray(self.prototypes, xp.float64)
        nonempty = sums.weight > MIN_WEIGHT
        weight = xp.where(nonempty, sums.weight, xp.zeros_like(sums.weight))
        weighted = xp.where(nonempty[:, None], sums.weighted, xp.zeros_like(sums.weighted))
        means = class_means(weighted, weight, prototypes, 1.0, None)
        scatter = soft_scatter(second_moment, weighted, weight, means)
        spread, total = float(xp.linalg.trace(scatter)), float(xp.linalg.trace(second_moment))
        if spread <= NO_SPREAD * float(xp.finfo(rows[slice(0, 1)].dtype).eps) * total:
            return self._zero_shot
        directions, offsets = linear_head(means, ridge_precision(scatter, spread / max(len(rows) - 1, 1)))
        zero_shot = self._zero_shot
        return LinearHead(zero_shot.weights + self.alpha * directions, zero_shot.offsets + self.alpha * offsets)


def _second_moment(rows: Rows) -> Array:
    """sum x x^T (d, d); products in the precision of the features, summed in float64."""
    total = None
    for _, x in rows.blocks(BLOCK_ROWS, reuse=True):
        backend = Backend.of(x)
        part = backend.asarray(x.T @ x, backend.xp.float64)
        total = part if total is None else total + part
    return total


def _soft_sums(rows: Rows, head: LinearHead) -> PseudoLabelSums:
    """Sums weighted by the posteriors of a classifier, block by block: no (N, K) array is needed."""
    backend = Backend.of(head.weights)
    weighted, weight = backend.zeros(tuple(head.weights.shape)), backend.zeros(tuple(head.offsets.shape))
    for _, x in rows.blocks(BLOCK_ROWS, reuse=True):
        responsibilities = softmax(head.scores(x))
        weighted = weighted + backend.asarray(responsibilities.T @ x, backend.xp.float64)
        weight = weight + backend.xp.sum(backend.asarray(responsibilities, backend.xp.float64), axis=0)
    return PseudoLabelSums(weighted, weight)
