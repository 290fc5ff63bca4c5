"""TPT: the words of the prompt tuned on each image's surest views."""

from __future__ import annotations

from zeroshift.methods._shared.prompt_tuned import WordSteps

__all__ = ["TPT"]


class TPT(WordSteps):
    """For each image, moves the words of the prompt one step towards a surer mean prediction over the image's surest
    views, then answers the image itself with the moved prompt, and puts the words back.

    Examples
    --------
    >>> import numpy as np
    >>> from zeroshift.methods import TPT
    >>> from zeroshift.testing.examples import ExampleText
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
