"""TPT: the words of the prompt tuned on each image's surest views."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from zeroshift.arrays import Array, namespace
from zeroshift.low_entropy import select_lowest_entropy
from zeroshift.methods.parts.adamw import AdamW
from zeroshift.methods.parts.prompt_tuned import TEXT, PromptTuned
from zeroshift.methods.parts.towers import PromptedText
from zeroshift.methods.parts.tuning_losses import entropy_of_mean, logits_to_text
from zeroshift.parameters import Constraint, Number
from zeroshift.view_method import EpisodicMethod
from zeroshift.zero_shot import logits

__all__ = ["TPT"]


class TPT(PromptTuned, EpisodicMethod):
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
    >>> from zeroshift.methods.parts.example_towers import ExampleText
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
    needs = ("prototypes", "views", "text")
    state_size = "2 K d, the prototypes and the text features at the first words"
    complexity = "2 S passes of K prompts, S of them with gradients, S = steps, for an image"
    constraints: ClassVar[Mapping[str, Constraint]] = {
        "text": TEXT,
        "logit_scale": Number(low=0, above=True),
        "view_ratio": Number(0, 1, above=True),
        "steps": Number(low=1, integer=True),
        "rate": Number(low=0),
        "weight_decay": Number(low=0),
    }

    view_ratio: float
    steps: int
    rate: float
    weight_decay: float

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

    def _episodes(self, views: Array) -> Array:
        xp = namespace(views)
        return xp.stack([self._episode(image) for image in views])

    def _episode(self, views: Array) -> Array:
        """Scores (K,) of one image, view 0 of `views` (V, d)."""
        return logits(views[:1, :], self._text_features(self._tuned(views)), self.logit_scale)[0]

    def _tuned(self, views: Array) -> Array:
        """The words after the image's steps."""
        words, text = self._words, self._initial
        kept = views[self._kept(logits(views, text, self.logit_scale)), :]
        optimiser = AdamW(self.rate, weight_decay=self.weight_decay)
        for step in range(self.steps):
            text = self._text_features(words) if step else text
            words = optimiser.step(words, self._to_context(words, self._to_text(kept, text)))
        return words

    def _kept(self, scores: Array) -> Array:
        """Numbers of the views the loss is made of, from the logits (V, K) of all at the words as they were."""
        return select_lowest_entropy(scores, self.view_ratio)

    def _to_text(self, kept: Array, text: Array) -> Array:
        """The gradient of the loss with respect to the text features (K, d)."""
        _, gradient = entropy_of_mean(logits(kept, text, self.logit_scale))
        return logits_to_text(gradient, kept, self.logit_scale)
