"""Base classes of methods that tune the context words of a prompt with gradients of the text encoder."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import ClassVar

import numpy as np

from zeroshift.arrays import Array, Backend, namespace, to_numpy
from zeroshift.method import EpisodicMethod, Method, OnlineViewMethod
from zeroshift.methods._shared.towers import PromptedText, check_classes
from zeroshift.methods._shared.tuning import AdamW, entropy_of_mean, logits_to_text, tune
from zeroshift.parameters import Model, Number, model_parameter, parameter
from zeroshift.views import select_lowest_entropy
from zeroshift.zero_shot import logits

TEXT = Model(PromptedText, "zeroshift.encode.prompted_text(encoder, class_names)")

MAX_PROTOTYPE_GAP = 1e-2
"""Largest difference allowed between the prototypes and the features of the initial prompt.

It covers rounding in half precision, but not another prompt.
"""


def check_start(features: Array, prototypes: Array, made_by: str, fix: str) -> None:
    """ValueError if the prototypes are other than the features (K, d) where a method starts, made by what is said."""
    backend = Backend.of(prototypes)
    with backend.computing():
        gap = to_numpy(features - backend.asarray(prototypes, backend.xp.float64))
    if float(np.abs(gap).max()) > MAX_PROTOTYPE_GAP:
        raise ValueError(f"prototypes differ from the features of {made_by}, where this method starts. Fix: {fix}.")


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
    check_classes("text", text, prototypes)
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
    start = "text.features(text.context)" if text.n_prompts == 1 else "the method's prototypes_of(text)"
    check_start(own, prototypes, "text's own context", f"prototypes={start}, or zeroshift.encode.make_method")
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
        # (n, width) and (V K, d) in float64. Both are shared between copies and never written to.
        self._initial_text: Array = check_text(self.text, self.prototypes, self.name_positions, self._classifier)
        with Backend.of(self.prototypes).computing():
            self._initial_context: Array = self.as_float64(self.text.context)

    @staticmethod
    def _classifier(text: Array, n_classes: int) -> Array:
        """The classifier (K, d) that the text features of all prompts make: with one prompt per class themselves."""
        return text

    @classmethod
    def prototypes_of(cls, text: PromptedText) -> Array:
        """The prototypes (K, d) that this method starts from, with the initial words of `text`."""
        return cls._classifier(text.features(text.context), text.n_classes)

    def _new_optimizer(self) -> AdamW:
        return AdamW(self.rate, weight_decay=self.weight_decay)

    def _text_features(self, context: Array) -> Array:
        """Text features (V K, d) in float64. Those of the initial context are known."""
        return self._initial_text if context is self._initial_context else self.as_float64(self.text.features(context))

    def _pull_back(self, context: Array, text_gradient: Array) -> Array:
        """Gradient with respect to the context, from that with respect to its text features (V K, d)."""
        return self.as_float64(self.text.pull_back(context, text_gradient))

    def _linearize(self, context: Array) -> tuple[Array, Callable[[Array], Array]]:
        """Text features (V K, d), and `_pull_back` at this context."""
        if context is self._initial_context:
            return self._initial_text, partial(self._pull_back, context)
        text, pull_back = self.text.linearize(context)
        return self.as_float64(text), lambda gradient: self.as_float64(pull_back(gradient))


class EpisodicPromptTuning(PromptTuned, EpisodicMethod):
    """TPT and its variants: for each image, some steps of AdamW on the context, which is then restored.

    The context is tuned on some of the image's views, then the image itself is predicted. A subclass may say otherwise
    which views (`_select_views`), and which loss (`_loss`).
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
        return namespace(views).stack([self._episode(image) for image in views])

    def _episode(self, views: Array) -> Array:
        """Scores (K,) of one image, view 0 of `views` (V, d)."""
        kept = views[self._select_views(logits(views, self._initial_text, self.logit_scale)), :]

        def gradient(context: Array) -> tuple[Array, Array]:
            text, pull_back = self._linearize(context)
            loss, slope = self._loss(kept, text)
            return loss, pull_back(slope)

        context, _ = tune(self._initial_context, gradient, self._new_optimizer(), self.steps)
        return logits(views[:1, :], self._text_features(context), self.logit_scale)[0]

    def _select_views(self, scores: Array) -> Array:
        """Indices of the views used in the loss, from the logits (V, K) of all views under the initial prompt."""
        return select_lowest_entropy(scores, self.view_ratio)

    def _loss(self, kept: Array, text: Array) -> tuple[Array, Array]:
        """The entropy of the mean prediction of the kept views (n, d), and its gradient for the text features."""
        loss, gradient = entropy_of_mean(logits(kept, text, self.logit_scale))
        return loss, logits_to_text(gradient, kept, self.logit_scale)


class OnlinePromptTuning(PromptTuned, OnlineViewMethod):
    """An online method that tunes prompts on the views of each image: `plan` gets the views (V, d) of one image.

    A single feature is an image with one view.
    """

    needs = ("prototypes", "views", "text")
    takes = ()

    def observe(self, features: Array) -> Array:
        return features[:, None, :]

    def observe_views(self, views: Array) -> Array:
        return views[None, ...]
