"""GDA-CLIP: a Gaussian classifier of the labelled samples, added to the zero-shot logits."""

from __future__ import annotations

from zeroshift.arrays import Array, Backend, Labelled
from zeroshift.methods._shared.few_shot import FewShotMethod, best_weight
from zeroshift.methods._shared.gaussian_classifier import linear_discriminant
from zeroshift.methods._shared.linear_head import LinearHead
from zeroshift.parameters import Number, array_parameter, parameter

__all__ = ["GDACLIP"]

ALPHAS = (1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0, 100.0)
"""Weights of the Gaussians that are tried on the validation set."""


class GDACLIP(FewShotMethod):
    """Fits one Gaussian per class, with one covariance for all, in closed form, and adds the discriminants to the
    zero-shot logits. With a validation set, the weight of the Gaussians is chosen there.

    Examples
    --------
    >>> import numpy as np
    >>> from zeroshift.methods import GDACLIP
    >>> support = np.array([[0.8, 0.6], [1.0, 0.0], [0.6, 0.8], [0.0, 1.0]]), np.array([0, 0, 1, 1])
    >>> method = GDACLIP(np.eye(2), support=support, logit_scale=5.0)
    >>> method.means
    array([[0.9, 0.3],
           [0.3, 0.9]])
    >>> method.predict(np.array([0.8, 0.6])).round(3)
    array([0.822, 0.178])

    Notes
    -----
    Wang et al., *A Hard-to-Beat Baseline for Training-free CLIP-based Adaptation*, ICLR 2024. All classes have the same
    prior. With one sample per class there is no spread to learn from, and the prediction is zero-shot. A class without
    support samples gets the mean of the other classes' means, so the text decides about it. The authors use ten
    augmentations of each image as separate support samples, and on ImageNet they choose alpha on the test set.
    Difference: if no alpha gets a single validation sample right, the smallest is chosen, not 0.1.
    """

    name = "gda_clip"
    headline = "Gaussians from labelled samples"
    linear = True
    overconfident = True
    state_size = "K d + d^2"
    complexity = "O(K d) per sample; the fit O(N d^2 + d^3) for N support samples"

    validation: Labelled | None = array_parameter(
        "Labelled samples to choose `alpha` with, among the powers of ten from 1e-4 to 100, the smallest of equally "
        "good ones; `chosen` returns the choice.",
        default=None,
    )
    logit_scale: float = parameter(
        Number(low=0, above=True), "Scale of the zero-shot logits; 100 for CLIP.", default=100.0
    )
    alpha: float = parameter(
        Number(low=0),
        "Weight of the Gaussian discriminants if there is no validation set. The authors always use one; the default "
        "is ours.",
        default=1.0,
    )

    @property
    def chosen(self) -> dict[str, float]:
        return {"alpha": self._alpha}

    @property
    def means(self) -> Array:
        """The mean features of the classes (K, d), not normalised."""
        return Backend.of(self._means).copy(self._means)

    @property
    def precision_matrix(self) -> Array:
        """The shared precision (d, d), up to a factor that `alpha` compensates."""
        return Backend.of(self._precision).copy(self._precision)

    def _fit(self) -> None:
        gaussians = linear_discriminant(*self.support, self.n_classes)
        text = self.logit_scale * self._to_float64(self.prototypes)
        self._alpha = self.alpha
        if self.validation is not None:
            self._alpha, _ = best_weight(
                self.validation, self.n_classes, ALPHAS, lambda x: (x @ text.T, gaussians.scores(x))
            )
        self._means, self._precision = gaussians.means, gaussians.precision
        # Text and Gaussians are both linear, so one product computes the sum of their scores.
        self._head = LinearHead(text + self._alpha * gaussians.weights, self._alpha * gaussians.offsets)

    def _predict_scores(self, features: Array) -> Array:
        return self._head.scores(features)
