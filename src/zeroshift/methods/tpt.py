"""TPT: the words of the prompt tuned on each image's surest views."""

from __future__ import annotations

from zeroshift.arrays import Array
from zeroshift.methods._shared.prompt_tuned import WordSteps
from zeroshift.methods._shared.towers import PromptedText

__all__ = ["TPT"]


class TPT(WordSteps):
    """For each image, moves the words of the prompt one step towards a surer mean prediction over the image's surest
    views, then answers the image itself with the moved prompt, and puts the words back.

    Parameters
    ----------
    prototypes : (K, d) array or tensor
        The text features at the words tuning begins with: `text.features(text.context)`.
    text : PromptedText
        The text side of the encoder, as `zeroshift.encode.prompted_text` makes it.
    logit_scale : float
        Scale of the logits; 100 for CLIP.
    view_ratio : float
        Share of the views kept, those of lowest entropy at the words as they were; at least one.
    steps : int
        Steps of AdamW for each image.
    rate, weight_decay : float
        Of AdamW: the step size, and the share of the words' embeddings taken off at a step, times `rate`.

    Examples
    --------
    >>> import numpy as np
    >>> from zeroshift.methods import TPT
    >>> from zeroshift.methods._shared.examples import ExampleText
    >>> text = ExampleText(np.eye(2))
    >>> tpt = TPT(text.features(text.context), text=text, logit_scale=5.0)
    >>> tpt.adapt_views(np.array([[0.8, 0.6], [1.0, 0.0], [0.6, 0.8]])).round(3)
    array([0.734, 0.266])

    Notes
    -----
    Shu et al., *Test-Time Prompt Tuning for Zero-Shot Generalization in Vision-Language Models*, NeurIPS 2022. The
    authors tune four words, "a photo of a", on 64 views, with AugMix on fine-grained data sets only. Their weight decay
    is torch's default of 0.01, which the paper does not mention. Their mixed precision skips a step where a gradient
    overflows; here everything before and behind the text model is computed in float64, and no step is skipped. Of fewer
    than ten views their code keeps none; here the surest one is kept.

    A gradient is carried through the text model a few classes at a time, so memory does not grow with K. The features
    at the words as they were are computed once for all images: an image takes one pass of the K prompts with their
    gradient, and one without, for each step.
    """

    name = "tpt"

    def __init__(
        self,
        prototypes: Array,
        *,
        text: PromptedText,
        logit_scale: float = 100.0,
        view_ratio: float = 0.1,
        steps: int = 1,
        rate: float = 5e-3,
        weight_decay: float = 0.01,
    ) -> None:
        super().__init__(
            prototypes,
            text=text,
            logit_scale=logit_scale,
            view_ratio=view_ratio,
            steps=steps,
            rate=rate,
            weight_decay=weight_decay,
        )
