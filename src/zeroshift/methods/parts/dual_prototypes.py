"""DPE's classifier: a text prototype for every class, and a visual one for every class that has been seen."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from zeroshift.arrays import Array, namespace
from zeroshift.methods.parts.adamw import AdamW
from zeroshift.methods.parts.kernel import exponential_kernel
from zeroshift.methods.parts.rows import unit_rows
from zeroshift.methods.parts.single import inner_products
from zeroshift.methods.parts.tuning_losses import entropy_of_each, info_nce, through_unit_rows

__all__ = ["DualPrototypes"]

TEMPERATURE = 0.01
"""Of InfoNCE, between visual and text prototypes."""

EPSILON = 1e-3
"""Of AdamW, in place of the usual 1e-8: coordinates of a gradient far below it hardly move."""


@dataclass(frozen=True)
class DualPrototypes:
    """Scores are scaled cosines with the text prototypes, and `alpha` exp(-`beta` (1 - cosine)) with the visual ones.

    >>> import numpy as np
    >>> rows = np.array([[1.0, 0.0], [0.0, 1.0], [0.0, 2.0]])
    >>> dual = DualPrototypes(rows, np.array([1]), logit_scale=5.0, alpha=2.0, beta=5.0)
    >>> dual.scores(np.array([[0.8, 0.6]])).round(6)
    array([[4.      , 3.270671]])
    """

    rows: Array
    """The text prototypes of all K classes, then the visual ones of C, (K + C, d), of any length: directions count.
    Together, because what is done to them is done to both."""
    classes: Array
    """The classes of the visual prototypes, (C,), none of them twice."""
    logit_scale: float
    alpha: float
    beta: float

    @property
    def n_classes(self) -> int:
        return int(self.rows.shape[0] - self.classes.shape[0])

    @cached_property
    def unit(self) -> Array:
        """The rows at unit length."""
        return unit_rows(self.rows)

    def scores(self, features: Array) -> Array:
        """(n, K) of features (n, d), of unit length or means of such."""
        return self._fused(features)[0]

    def loss(self, feature: Array, align: float) -> tuple[Array, Array]:
        """The entropy of the prediction of a feature (d,), and `align` times the InfoNCE from visual prototypes to the
        text prototypes of their classes; and the gradient of that with respect to `rows`."""
        fused, votes = self._fused(feature[None, :])
        loss, pulled = entropy_of_each(fused)
        to_cosines = [self.logit_scale * pulled, self.beta * votes * pulled[:, self.classes]]
        to_unit = namespace(feature).concat(to_cosines, axis=1).T * feature
        if align and self.classes.shape[0] > 1:  # among one class there is nothing to tell apart
            visual, text = self.unit[self.n_classes :, :], self.unit[self.classes, :]
            apart, to_visual, to_text = info_nce(visual, text, TEMPERATURE)
            loss = loss + align * apart
            to_unit[self.n_classes :, :] += align * to_visual
            to_unit[self.classes, :] += align * to_text
        return loss[0], through_unit_rows(to_unit, self.rows)

    def moved(self, feature: Array, align: float, rate: float) -> DualPrototypes:
        """These after one step of AdamW, of size `rate`, against the loss of a feature (d,)."""
        _, gradient = self.loss(feature, align)
        # A residual begins at zero, where a weight decay has nothing to take off.
        optimiser = AdamW(rate, eps=EPSILON, weight_decay=0.0)
        return replace(self, rows=optimiser.step(self.rows, gradient))

    def _fused(self, features: Array) -> tuple[Array, Array]:
        """Scores (n, K), and what the visual prototypes add to them, (n, C)."""
        cosines = inner_products(features, self.unit)
        fused = self.logit_scale * cosines[:, : self.n_classes]
        votes = self.alpha * exponential_kernel(cosines[:, self.n_classes :], self.beta)
        fused[:, self.classes] += votes
        return fused, votes
