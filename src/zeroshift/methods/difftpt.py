"""DiffTPT: TPT with more views, some of them generated, and those unlike the image left out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from zeroshift.arrays import Array, Home, namespace
from zeroshift.methods._shared.prompt_tuned import WordSteps
from zeroshift.parameters import Number, parameter
from zeroshift.views import select_lowest_entropy

__all__ = ["DiffTPT"]


class DiffTPT(WordSteps):
    """TPT on crops and generated variations of an image alike: views whose logits point another way than the image's
    are left out first, then the unsure ones, and the words of the prompt are moved several steps.

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
    tuning is here; where views come from does not matter to it. The authors give it 128: the image, 64 random crops,
    and 63 variations from a diffusion model. 101 of them and the image pass the first sieve, and 30 of those the
    second. This follows their code: the paper compares image features and sieves generated views only, the code
    compares logits and sieves crops as well. Of so few views that a share is less than one their code keeps none; here
    the surest one is kept. Their accuracies are of about a thousand images of a data set, not of whole sets.
    """

    name = "difftpt"

    cosine_ratio: float = parameter(
        Number(0, 1),
        "Share of the views beside the image itself that are kept first, int((V - 1) * cosine_ratio): those whose logits have the largest cosine with the image's. The image itself is kept as well. 1 keeps all, which is TPT.",
        default=0.8,
    )
    view_ratio: float = parameter(
        Number(0, 1, above=True),
        "Share of what is left that is kept then, int(n * view_ratio) and at least one: those of lowest entropy.",
        default=0.3,
    )
    steps: int = parameter(
        Number(low=1, integer=True),
        "Steps of AdamW for each image. Which views are kept is decided before the first.",
        default=4,
    )

    # Half the steps for the common checks, which adapt to thousands of images.
    example_parameters: ClassVar[Mapping[str, Any]] = {"steps": 2}

    def _kept(self, scores: Array) -> Array:
        alike = most_alike(scores, self.cosine_ratio)
        return alike[select_lowest_entropy(scores[alike, :], self.view_ratio)]


def most_alike(scores: Array, ratio: float) -> Array:
    """Numbers, in their order, of row 0 and of the int((V - 1) * ratio) other rows of (V, K) whose cosine with it is
    largest; the earlier row where two are equal.

    >>> import numpy as np
    >>> most_alike(np.array([[1.0, 0.0], [0.0, 1.0], [2.0, 0.1], [-1.0, 0.0], [3.0, 3.0]]), 0.5)
    array([0, 2, 4])
    """
    xp = namespace(scores)
    lengths = xp.linalg.vector_norm(scores, axis=1)
    # Logits that are all zero point nowhere, and are like nothing.
    cosines = (scores[1:, :] @ scores[0, :]) / xp.where(lengths[1:] > 0, lengths[1:], xp.ones_like(lengths[1:]))
    n_kept = int((scores.shape[0] - 1) * ratio)
    nearest = 1 + xp.argsort(-cosines, stable=True)[:n_kept]
    return xp.concat([Home.of(scores).zeros((1,), nearest.dtype), xp.sort(nearest)])
