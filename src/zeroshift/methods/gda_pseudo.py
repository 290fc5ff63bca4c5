"""GDA-CLIP without labels: Gaussian discriminant analysis with zero-shot predictions as labels."""

from __future__ import annotations

from zeroshift.adapt.statistics import class_means, linear_head, soft_scatter
from zeroshift.arrays import Array, namespace
from zeroshift.linalg import ridge_precision
from zeroshift.methods._shared.linear_head import LinearHead, TransductiveLinearMethod
from zeroshift.parameters import Number, parameter
from zeroshift.zero_shot import softmax

MIN_WEIGHT = 1e-12
"""A class with less responsibility in the whole set counts as empty: its mean would be rounding noise."""

NO_SPREAD = 1e-12
"""A spread about the means of at most this share of all squares is rounding."""


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

    def learned_head(self, features: Array) -> LinearHead:
        xp, zero_shot = namespace(features), self._zero_shot
        second_moment = features.T @ features
        head = zero_shot
        for _ in range(self.iterations):
            responsibilities = softmax(head.scores(features))
            weight = responsibilities.sum(axis=0)
            weight = xp.where(weight > MIN_WEIGHT, weight, 0.0)
            weighted = xp.where(weight[:, None] > 0, responsibilities.T @ features, 0.0)
            means = class_means(weighted, weight, self.prototypes64, 1.0, None)
            scatter = soft_scatter(second_moment, weighted, weight, means)
            spread = float(xp.linalg.trace(scatter))
            if spread <= NO_SPREAD * float(xp.linalg.trace(second_moment)):
                return zero_shot
            precision = ridge_precision(scatter, spread / max(len(features) - 1, 1))
            directions, offsets = linear_head(means, precision)
            head = LinearHead(zero_shot.weights + self.alpha * directions, self.alpha * offsets)
        return head
