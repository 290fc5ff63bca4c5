"""C-TPT: TPT that also spreads the text features of the classes, for better calibrated probabilities."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from zeroshift.arrays import Array, namespace
from zeroshift.methods._shared.prompt_tuned import EpisodicPromptTuning
from zeroshift.parameters import Number, parameter

MIN_DISTANCE = 1e-12
"""A class no farther than this from the mean counts as equal to it: the difference is rounding, without a direction."""


def dispersion(text: Array) -> tuple[Array, Array]:
    """The mean distance of the rows (K, d) from their mean, and its gradient (K, d).

    A row equal to the mean has no direction away from it and adds nothing to the gradient.

    >>> import numpy as np
    >>> value, gradient = dispersion(np.array([[0.0, 1.0], [0.0, -1.0], [0.0, 0.0]]))
    >>> round(float(value), 4), gradient.round(4)
    (0.6667, array([[ 0.    ,  0.3333],
           [ 0.    , -0.3333],
           [ 0.    ,  0.    ]]))
    """
    xp = namespace(text)
    away = text - text.mean(axis=0)
    distances = xp.linalg.vector_norm(away, axis=1, keepdims=True)
    directions = away / xp.where(distances > MIN_DISTANCE, distances, float("inf"))
    # Moving a row moves the mean as well, and with it the distances of all rows.
    return distances.mean(), (directions - directions.mean(axis=0)) / len(text)


class CTPT(EpisodicPromptTuning):
    """TPT with a second term in the loss: besides a low entropy of the mean prediction, the prompt is tuned for text
    features that are far from their mean, which keeps the probabilities calibrated.

    Examples
    --------
    >>> import numpy as np
    >>> from zeroshift.methods import CTPT
    >>> from zeroshift.testing.examples import ExampleText
    >>> text = ExampleText(np.eye(2))
    >>> ctpt = CTPT(text.features(text.context), text=text, logit_scale=5.0)
    >>> ctpt.adapt_views(np.array([[0.8, 0.6], [1.0, 0.0], [0.6, 0.8]])).round(3)
    array([0.734, 0.266])

    Notes
    -----
    Yoon et al., *C-TPT: Calibrated Test-Time Prompt Tuning for Vision-Language Models via Text Feature Dispersion*,
    ICLR 2024. The loss is TPT's entropy minus `dispersion_weight` times the dispersion. The authors' weight is 50 on
    fine-grained data sets and on ImageNet, the default, and 20 on ImageNet-A, -V2, -R and -Sketch:
    `CTPT.preset("imagenet_a")`. On those four their script also uses AugMix for the views, which TPT's does not.

    The first step of AdamW moves every coordinate by nearly `rate`, however large the gradient is, so the weight only
    decides which of the two terms determines the sign of each coordinate. A class whose text feature equals the mean
    adds nothing to the gradient. The calibration error is in `zeroshift.evaluate.metrics.functions`.
    """

    name = "ctpt"
    headline = "TPT with a term that keeps it calibrated"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        dataset: {"dispersion_weight": 20.0}
        for dataset in ("imagenet_a", "imagenetv2", "imagenet_r", "imagenet_sketch")
    }

    dispersion_weight: float = parameter(
        Number(low=0),
        "Weight of the mean distance between the text features and their mean; 0 gives TPT.",
        default=50.0,
    )

    def _loss(self, kept: Array, text: Array) -> tuple[Array, Array]:
        loss, gradient = super()._loss(kept, text)
        spread, spread_gradient = dispersion(text)
        return loss - self.dispersion_weight * spread, gradient - self.dispersion_weight * spread_gradient
