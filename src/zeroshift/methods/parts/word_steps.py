"""What TPT and those that follow it share: for each image, steps of AdamW on the words, which are then put back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from zeroshift.arrays import Array, namespace
from zeroshift.low_entropy import select_lowest_entropy
from zeroshift.methods.parts.adamw import AdamW
from zeroshift.methods.parts.prompt_tuned import TEXT, PromptTuned
from zeroshift.methods.parts.tuning_losses import entropy_of_mean, logits_to_text
from zeroshift.parameters import Constraint, Number
from zeroshift.view_method import EpisodicMethod
from zeroshift.zero_shot import logits

__all__ = ["WordSteps"]


class WordSteps(PromptTuned, EpisodicMethod):
    """Tunes the words on some of an image's views, then answers the image itself. `_kept` says on which views, and
    `_to_text` against which loss: by default the surest, and the entropy of their mean prediction.
    """

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
