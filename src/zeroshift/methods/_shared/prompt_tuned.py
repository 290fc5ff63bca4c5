"""What methods that tune the words of a prompt share: the text side they are given, and its gradients."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from zeroshift.arrays import Array, Home, namespace, to_numpy
from zeroshift.method import EpisodicMethod, ViewMethod
from zeroshift.methods._shared.towers import PromptedText
from zeroshift.methods._shared.tuning import AdamW, entropy_of_mean, logits_to_text
from zeroshift.parameters import Model, Number, model_parameter, parameter
from zeroshift.views import select_lowest_entropy
from zeroshift.zero_shot import logits

__all__ = ["TEXT", "PromptTuned", "WordSteps"]

TEXT = Model(PromptedText, "zeroshift.encode.prompted_text(encoder, class_names)")

UNLIKE = 1e-2
"""How far prototypes may be from the text side's own features: rounding in half precision, and no other prompt."""


class PromptTuned(ViewMethod):
    """A method whose classifier is a prompt: its prototypes are the text features at the words it begins with."""

    model_parameters: ClassVar[tuple[str, ...]] = ("text",)
    words: ClassVar[str] = "a photo of a"
    """The words to tune, where `zeroshift.encode` makes the method."""

    text: PromptedText
    logit_scale: float
    _words: Array
    """(n, width): what it begins with, at home, in float64; never written to."""
    _initial: Array
    """(K, d): the text features there."""

    def _validate(self) -> None:
        expected = (self.n_classes, self.dimension)
        if (self.text.n_classes, self.text.dimension) != expected:
            raise ValueError(
                f"text has {self.text.n_classes} classes in d = {self.text.dimension}, the prototypes have "
                f"{expected[0]} in d = {expected[1]}. Fix: make both from the same encoder and class names."
            )
        home = Home.of(self.prototypes)
        with home.computing():
            self._words = self._context()
            self._initial = self._text_features(self._words)
            gap = to_numpy(self._initial - home.bring(self.prototypes, home.xp.float64))
        if float(np.abs(gap).max()) > UNLIKE:
            raise ValueError(
                "prototypes are not what text makes of its own words, which is where this method begins. "
                "Fix: prototypes=text.features(text.context), or zeroshift.encode.make_method."
            )

    def _context(self) -> Array:
        """The words it begins with, at home."""
        home = Home.of(self.prototypes)
        return home.bring(self.text.context, home.xp.float64)

    def _text_features(self, context: Array) -> Array:
        """(K, d) in float64."""
        home = Home.of(self.prototypes)
        return home.bring(self.text.features(context), home.xp.float64)

    def _to_context(self, context: Array, upstream: Array) -> Array:
        """A gradient with respect to the text features (K, d), carried to the words; in float64."""
        home = Home.of(self.prototypes)
        return home.bring(self.text.pull_back(context, upstream), home.xp.float64)


# What TPT and those that follow it share: for each image, steps of AdamW on the words, which are then put back.


class WordSteps(PromptTuned, EpisodicMethod):
    """Tunes the words on some of an image's views, then answers the image itself. `_kept` says on which views, and
    `_to_text` against which loss: by default the surest, and the entropy of their mean prediction.
    """

    needs = ("prototypes", "views", "text")
    state_size = "2 K d, the prototypes and the text features at the first words"
    complexity = "2 S passes of K prompts, S of them with gradients, S = steps, for an image"

    text: PromptedText = model_parameter(
        TEXT, "The text side of the encoder, as `zeroshift.encode.prompted_text` makes it."
    )
    logit_scale: float = parameter(Number(low=0, above=True), "Scale of the logits; 100 for CLIP.", default=100.0)
    view_ratio: float = parameter(
        Number(0, 1, above=True),
        "Share of the views kept, those of lowest entropy at the words as they were; at least one.",
        default=0.1,
    )
    steps: int = parameter(Number(low=1, integer=True), "Steps of AdamW for each image.", default=1)
    rate: float = parameter(
        Number(low=0),
        "Of AdamW: the step size, and the share of the words' embeddings taken off at a step, times `rate`.",
        default=5e-3,
    )
    weight_decay: float = parameter(
        Number(low=0),
        "Of AdamW: the step size, and the share of the words' embeddings taken off at a step, times `rate`.",
        default=0.01,
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
