"""TPT: prompt tuning on the most confident views of each image."""

from __future__ import annotations

from zeroshift.methods._shared.prompt_tuned import EpisodicPromptTuning


class TPT(EpisodicPromptTuning):
    """Tunes the context of the prompt for each image: one step that lowers the entropy of the mean prediction over the
    image's most confident views. The tuned prompt predicts the image itself; then the context is restored.

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
    is torch's default of 0.01, which the paper does not mention. Their mixed precision skips a step when a gradient
    overflows; here everything outside the text model is computed in float64, and no step is skipped. With fewer than
    ten views their code keeps none; here the most confident one is kept.

    The gradient passes through the text model a few classes at a time, so memory does not grow with K. The features of
    the initial context are computed once for all images. Each step of an image needs one pass of the K prompts with
    gradients, and one without.
    """

    name = "tpt"
    headline = "Tunes the prompt for each image"
