"""GDA-CLIP: a Gaussian classifier of the labelled samples, added to the zero-shot logits."""

from __future__ import annotations

from collections.abc import Callable

from zeroshift.adapt.statistics import discriminant
from zeroshift.arrays import Array, Backend, Labelled
from zeroshift.methods._shared.few_shot import FewShotMethod, most_accurate
from zeroshift.methods._shared.gaussian_classifier import fit_gaussians
from zeroshift.parameters import Number, array_parameter, parameter
from zeroshift.zero_shot import logits

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
    def means(self) -> Array:
        """The mean features of the classes (K, d), not normalised."""
        return Backend.of(self.prototypes).copy(self._gaussians.means)

    @property
    def precision_matrix(self) -> Array:
        """The shared precision (d, d), up to a factor that `alpha` compensates."""
        return Backend.of(self.prototypes).copy(self._gaussians.precision)

    def _fit(self) -> None:
        self._gaussians = fit_gaussians(self._support64, self.support[1], self.n_classes)
        self._chosen = {"alpha": self.alpha}
        if self.validation is not None:
            self._chosen = most_accurate(self.validation, self.dimension, {"alpha": ALPHAS}, self._scores_by)

    def _scores_by(self, x: Array) -> Callable[..., Array]:
        zero_shot = logits(x, self.prototypes64, self.logit_scale)
        gaussian = discriminant(x, self._gaussians.directions, self._gaussians.offsets)
        return lambda alpha: zero_shot + alpha * gaussian

    def _predict_scores(self, features: Array) -> Array:
        return self._scores_by(features)(**self._chosen)
