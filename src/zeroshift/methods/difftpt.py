"""DiffTPT: TPT with more views, some of them generated, without those that differ too much from the image."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from zeroshift.arrays import Array, namespace
from zeroshift.methods._shared.prompt_tuned import EpisodicPromptTuning
from zeroshift.parameters import Number, parameter
from zeroshift.views import select_lowest_entropy


class DiffTPT(EpisodicPromptTuning):
    """TPT on crops and generated variations of an image: views whose logits differ most in direction from the image's
    are dropped first, then those of high entropy, and the context of the prompt is tuned for several steps.

    Examples
    --------
    >>> import numpy as np
    >>> from zeroshift.methods import DiffTPT
    >>> from zeroshift.testing.examples import ExampleText
    >>> text = ExampleText(np.eye(2))
    >>> difftpt = DiffTPT(text.features(text.context), text=text, logit_scale=5.0)
    >>> difftpt.adapt_views(np.array([[0.8, 0.6], [1.0, 0.0], [0.6, 0.8]])).round(3)
    array([0.742, 0.258])

    Notes
    -----
    Feng et al., *Diverse Data Augmentation with Diffusions for Effective Test-time Prompt Tuning*, ICCV 2023. Only the
    tuning is implemented; it does not depend on how the views are made. The authors use 128 views: the image, 64 random
    crops, and 63 variations from a diffusion model. The first filter keeps 101 of them and the image, the second 30 of
    those. This follows their code: the paper compares image features and filters generated views only, the code
    compares logits and filters crops as well. When a share is less than one view their code keeps none; here the most
    confident one is kept. Their accuracies are on about a thousand images per data set, not on whole sets.
    """

    name = "difftpt"
    headline = "TPT on crops and generated variations"
    overconfident = True

    cosine_ratio: float = parameter(
        Number(0, 1),
        "Share of the other views that the first filter keeps, int((V - 1) * cosine_ratio): those whose logits have "
        "the largest cosine with the image's. The image itself is always kept. 1 keeps all, as TPT does.",
        default=0.8,
    )
    view_ratio: float = parameter(
        Number(0, 1, above=True),
        "Share of the remaining n views that the second filter keeps, int(n * view_ratio) and at least one: those of "
        "lowest entropy.",
        default=0.3,
    )
    steps: int = parameter(
        Number(low=1, integer=True),
        "Steps of AdamW per image. The views are selected once, before the first step.",
        default=4,
    )

    # Half the steps, because the common checks adapt to thousands of images.
    example_parameters: ClassVar[Mapping[str, Any]] = {"steps": 2}

    def _select_views(self, scores: Array) -> Array:
        similar = most_similar(scores, self.cosine_ratio)
        return similar[select_lowest_entropy(scores[similar, :], self.view_ratio)]


def most_similar(scores: Array, ratio: float) -> Array:
    """Sorted indices of row 0 and of the int((V - 1) * ratio) other rows of (V, K) with the largest cosine with it.

    Of rows with equal cosines the earlier one is taken.

    >>> import numpy as np
    >>> most_similar(np.array([[1.0, 0.0], [0.0, 1.0], [2.0, 0.1], [-1.0, 0.0], [3.0, 3.0]]), 0.5)
    array([0, 2, 4])
    """
    xp = namespace(scores)
    lengths = xp.linalg.vector_norm(scores, axis=1)
    # Logits that are all zero have no direction; their cosine is 0.
    cosines = (scores @ scores[0, :]) / xp.where(lengths > 0, lengths, 1.0)
    cosines[0] = float("inf")
    return xp.sort(xp.argsort(-cosines, stable=True)[: 1 + int((len(scores) - 1) * ratio)])
