"""What methods that tune the words of a prompt share: the text side they are given, and its gradients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from zeroshift.arrays import Array, Home, to_numpy
from zeroshift.methods.parts.example_towers import example_text
from zeroshift.methods.parts.towers import PromptedText
from zeroshift.parameters import Model
from zeroshift.view_method import ViewMethod

__all__ = ["TEXT", "PromptTuned"]

TEXT = Model(PromptedText, "zeroshift.encode.prompted_text(encoder, class_names)")

UNLIKE = 1e-2
"""How far prototypes may be from the text side's own features: rounding in half precision, and no other prompt."""


class PromptTuned(ViewMethod):
    """A method whose classifier is a prompt: its prototypes are the text features at the words it begins with."""

    model_parameters: ClassVar[tuple[str, ...]] = ("text",)
    example_parameters: ClassVar[Mapping[str, Any]] = {"text": example_text}
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
