"""Base classes of methods that tune the context words of a prompt with gradients of the text encoder."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import numpy as np

from zeroshift.arrays import Array, Backend, namespace, to_numpy
from zeroshift.method import EpisodicMethod, Method
from zeroshift.methods._shared.towers import PromptedText
from zeroshift.methods._shared.tuning import AdamW, entropy_of_mean, logits_to_text
from zeroshift.parameters import Model, Number, model_parameter, parameter
from zeroshift.views import select_lowest_entropy
from zeroshift.zero_shot import logits

__all__ = ["MAX_PROTOTYPE_GAP", "TEXT", "EpisodicPromptTuning", "PromptTuned", "check_text"]

TEXT = Model(PromptedText, "zeroshift.encode.prompted_text(encoder, class_names)")

MAX_PROTOTYPE_GAP = 1e-2
"""Largest difference allowed between the prototypes and the features of the initial prompt.

It covers rounding in half precision, but not another prompt.
"""


def check_text(
    text: PromptedText,
    prototypes: Array,
    positions: tuple[str, ...] = ("end",),
    classifier: Callable[[Array, int], Array] | None = None,
) -> Array:
    """The features (V K, d) of the text side's own context, in float64 and in the library of the prototypes.

    `positions` are those of the name in the V prompts of a class. `classifier` makes (K, d) of the features and K; None
    stands for the features themselves. ValueError if the prototypes are others: the method starts there.
    """
    expected = tuple(prototypes.shape)
    if (text.n_classes, text.dimension) != expected:
        raise ValueError(
            f"text has {text.n_classes} classes in d = {text.dimension}, the prototypes have "
            f"{expected[0]} in d = {expected[1]}. Fix: make both from the same encoder and class names."
        )
    if text.n_prompts != len(positions):
        wanted = positions[0] if len(positions) == 1 else positions
        raise ValueError(
            f"text must have {len(positions)} prompts per class; it has {text.n_prompts}. "
            f"Fix: zeroshift.encode.prompted_text(encoder, class_names, position={wanted!r})."
        )
    backend = Backend.of(prototypes)
    with backend.computing():
        context = backend.asarray(text.context, backend.xp.float64)
        features = backend.asarray(text.features(context), backend.xp.float64)
        own = features if classifier is None else classifier(features, text.n_classes)
        gap = to_numpy(own - backend.asarray(prototypes, backend.xp.float64))
    if float(np.abs(gap).max()) > MAX_PROTOTYPE_GAP:
        start = "text.features(text.context)" if text.n_prompts == 1 else "the method's prototypes_of(text)"
        raise ValueError(
            "prototypes differ from the features of text's own context, where this method starts. "
            f"Fix: prototypes={start}, or zeroshift.encode.make_method."
        )
    return features


class PromptTuned(Method):
    """A method whose classifier is a prompt. Its prototypes are the text features of the initial context."""

    starts_from_prompt = True
    context_words: ClassVar[str] = "a photo of a"
    """The words whose embeddings are tuned when `zeroshift.encode` creates the method."""
    name_positions: ClassVar[tuple[str, ...]] = ("end",)
    """Where the class name is in the prompt, or in each prompt of a class: see `zeroshift.encode.prompted_text`."""

    text: PromptedText = model_parameter(TEXT, "Text side of the encoder.")
    logit_scale: float = parameter(Number(low=0, above=True), "Scale of the logits; 100 for CLIP.", default=100.0)
    rate: float = parameter(Number(low=0), "Step size of AdamW.", default=5e-3)
    weight_decay: float = parameter(
        Number(low=0),
        "Weight decay of AdamW: each step shrinks the tuned embeddings by this share, times `rate`.",
        default=0.01,
    )

    def _validate(self) -> None:
        backend = Backend.of(self.prototypes)
        # (n, width) and (K, d) in float64. Both are shared between copies and never written to.
        self._initial_text: Array = check_text(self.text, self.prototypes, self.name_positions, self._classifier)
        with backend.computing():
            self._initial_context: Array = backend.asarray(self.text.context, backend.xp.float64)

    @staticmethod
    def _classifier(text: Array, n_classes: int) -> Array:
        """The classifier (K, d) that the text features of all prompts make: with one prompt per class themselves."""
        return text

    @classmethod
    def prototypes_of(cls, text: PromptedText) -> Array:
        """The prototypes (K, d) that this method starts from, with the initial words of `text`."""
        return cls._classifier(text.features(text.context), text.n_classes)

    def _text_features(self, context: Array) -> Array:
        """Text features (K, d) in float64."""
        backend = Backend.of(self.prototypes)
        return backend.asarray(self.text.features(context), backend.xp.float64)

    def _context_gradient(self, context: Array, text_gradient: Array) -> Array:
        """Gradient (n, width) with respect to the context, from that with respect to the text features (K, d)."""
        backend = Backend.of(self.prototypes)
        return backend.asarray(self.text.pull_back(context, text_gradient), backend.xp.float64)

    def _text_and_pull_back(self, context: Array) -> tuple[Array, Callable[[Array], Array]]:
        """Text features (K, d), and the function from a gradient with respect to them to that of the context."""
        backend = Backend.of(self.prototypes)
        text, pull_back = self.text.linearize(context)
        return backend.asarray(text, backend.xp.float64), lambda gradient: backend.asarray(
            pull_back(gradient), backend.xp.float64
        )


class EpisodicPromptTuning(PromptTuned, EpisodicMethod):
    """TPT and its variants: for each image, some steps of AdamW on the context, which is then restored.

    The context is tuned on some of the image's views, then the image itself is predicted. By default the loss is the
    entropy of the mean prediction of the most confident views. A subclass may override `_select_views` (which views)
    and `_text_gradient` (the gradient of the loss).
    """

    needs = ("prototypes", "views", "text")
    state_size = "2 K d, the prototypes and the text features of the initial context"
    complexity = "2 S passes of K prompts, S of them with gradients, S = steps, per image"

    view_ratio: float = parameter(
        Number(0, 1, above=True),
        "Share of the views kept, those of lowest entropy under the initial prompt; at least one.",
        default=0.1,
    )
    steps: int = parameter(Number(low=1, integer=True), "Steps of AdamW per image.", default=1)

    def _episodes(self, views: Array) -> Array:
        xp = namespace(views)
        return xp.stack([self._episode(image) for image in views])

    def _episode(self, views: Array) -> Array:
        """Scores (K,) of one image, view 0 of `views` (V, d)."""
        return logits(views[:1, :], self._text_features(self._tuned_context(views)), self.logit_scale)[0]

    def _tuned_context(self, views: Array) -> Array:
        """The context (n, width) after the steps for one image."""
        context, text = self._initial_context, self._initial_text
        kept = views[self._select_views(logits(views, text, self.logit_scale)), :]
        optimizer = AdamW(self.rate, weight_decay=self.weight_decay)
        for step in range(self.steps):
            text = self._text_features(context) if step else text
            gradient = self._context_gradient(context, self._text_gradient(kept, text))
            context = optimizer.step(context, gradient)
        return context

    def _select_views(self, scores: Array) -> Array:
        """Indices of the views used in the loss, from the logits (V, K) of all views under the initial prompt."""
        return select_lowest_entropy(scores, self.view_ratio)

    def _text_gradient(self, kept: Array, text: Array) -> Array:
        """Gradient (K, d) of the loss on the kept views (n, d) with respect to the text features (K, d)."""
        _, gradient = entropy_of_mean(logits(kept, text, self.logit_scale))
        return logits_to_text(gradient, kept, self.logit_scale)
