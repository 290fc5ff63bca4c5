"""PromptSRC: prompts in both encoders, learned from labelled images and held near the encoder without prompts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from zeroshift.arrays import Array, Backend, as_array, check_labels, namespace
from zeroshift.methods._shared.image_method import ImageInput
from zeroshift.methods._shared.towers import IndependentPrompts, check_classes
from zeroshift.methods._shared.trained_prompts import Trained, TrainedPrompts
from zeroshift.methods._shared.training import label_loss
from zeroshift.methods._shared.tuning import logits_to_text
from zeroshift.parameters import Model, Number, Optional, Pair, array_parameter, model_parameter, parameter, state
from zeroshift.serialization import restoring
from zeroshift.zero_shot import log_softmax, logits


def epoch_weights(epochs: int, mean: float, spread: float) -> np.ndarray:
    """Weights (E,) of the prompts after each epoch 1, 2, ..., E: a Gaussian, with the sum 1.

    >>> epoch_weights(3, 2.0, 1.0).round(4)
    array([0.2741, 0.4519, 0.2741])
    """
    logarithms = -(((np.arange(1, epochs + 1) - mean) / spread) ** 2) / 2
    weights = np.exp(logarithms - logarithms.max(initial=-np.inf))
    return weights / weights.sum()


def near_frozen(features: Array, frozen: Array) -> tuple[Array, Array]:
    """The mean absolute difference of features (n, d) and frozen ones, over all entries, and its gradient."""
    xp = namespace(features)
    difference = features - frozen
    return xp.mean(xp.abs(difference)), xp.sign(difference) / (features.shape[0] * features.shape[1])


def divergence(scores: Array, frozen: Array) -> tuple[Array, Array]:
    """Kullback-Leibler divergence of the softmax of scores (n, K) from that of frozen ones, over n K; its gradient."""
    xp = namespace(scores)
    log_y, log_target = log_softmax(scores), log_softmax(frozen)
    target = xp.exp(log_target)
    gradient = (xp.exp(log_y) - target) / (scores.shape[0] * scores.shape[1])
    return xp.mean(target * (log_target - log_y)), gradient


class PromptSRC(TrainedPrompts, ImageInput):
    """Learns prompts in the first layers of both encoders from labelled images. Text and image features, and their
    logits, are held near those without prompts, and the prompts after all epochs are averaged.

    Examples
    --------
    >>> import numpy as np
    >>> from zeroshift.methods import PromptSRC
    >>> from zeroshift.testing.examples import ExampleTowers, example_support
    >>> towers, support = ExampleTowers(np.eye(2)), example_support(np.eye(2))
    >>> method = PromptSRC(np.eye(2), towers=towers, support=support, logit_scale=5.0)
    >>> int(method.predict(np.array([0.8, 0.6])).argmax())
    0

    Notes
    -----
    Khattak et al., *Self-regulating Prompts: Foundational Model Adaptation without Forgetting*, ICCV 2023; written from
    the authors' code, which was not run. Labels of the target classes are used. The defaults are the authors' for new
    classes of the same data set: 20 epochs, averaged around the 15th. Across data sets they have prompts in three
    layers (`deep_prompts(..., depth=3)`) and the average (6, 10). For few-shot accuracy they train 50 epochs and choose
    the average for each data set, (30, 30) or (45, 5), with no procedure.

    The prototypes are the text features that prompts stay near: those of many templates, made without prompts. The
    authors average 60 templates before they scale to unit length. They crop and flip images randomly; here the images
    are given, and encoded once without prompts. They compute in half precision and average all weights;
    here everything outside the encoder is float64, and only the prompts are averaged.

    Gradients are computed for a few images and a few classes at a time, so memory does not grow with K.
    """

    name = "promptsrc"
    headline = "Learns prompts of both encoders from labels"
    needs = ("prototypes", "images", "towers", "support")
    state_size = "P + K d: the prompts (46 080 numbers in ViT-B/16) and the classifier; and the support images"
    complexity = "a pass per image; the fit a pass of K prompts and of B images with gradients per step"
    # A single batch, so that the order of the samples does not matter; and a start at which no feature is frozen's.
    example_parameters: ClassVar[Mapping[str, Any]] = {
        "epochs": 3,
        "batch_size": 64,
        "initial": "prompt_parameters",
    }
    check_exceptions: ClassVar[Mapping[str, str]] = {
        "axes_do_not_matter": "the distance to frozen features is a sum of absolute values of coordinates"
    }

    towers: IndependentPrompts = model_parameter(
        Model(IndependentPrompts, "zeroshift.encode.deep_prompts(encoder, class_names)"),
        "Both sides of the encoder, with prompts in their first layers.",
    )
    support: tuple[Array, np.ndarray] = array_parameter(
        "Labelled images: (n, ...), as the encoder's preprocessing returns them, and class indices (n,)."
    )
    logit_scale: float = parameter(Number(low=0, above=True), "Scale of the logits; 100 for CLIP.", default=100.0)
    epochs: int = parameter(Number(low=0, integer=True), "Passes over the support images.", default=20)
    batch_size: int = parameter(
        Number(low=1, integer=True),
        "Support images per step. An incomplete last batch is left out, unless it is the only one.",
        default=4,
    )
    rate: float = parameter(
        Number(low=0),
        "Step size of SGD, with a momentum of 0.9, in the second epoch. In the first it is 1e-5; later ones follow a "
        "cosine.",
        default=2.5e-3,
    )
    text_weight: float = parameter(
        Number(low=0), "Weight of the distance between text features and prototypes.", default=25.0
    )
    image_weight: float = parameter(
        Number(low=0), "Weight of the distance between image features with and without prompts.", default=10.0
    )
    logit_weight: float = parameter(
        Number(low=0), "Weight of the divergence between the predictions with and without prompts.", default=1.0
    )
    average: tuple[float, float] | None = parameter(
        Optional(Pair(Number(), Number(low=0, above=True), ("mean", "spread"))),
        "Mean and standard deviation of the Gaussian that weighs the prompts after each epoch, counted from 1. None "
        "takes those after the last.",
        default=(15.0, 1.0),
    )
    initial: Array | None = array_parameter(
        "Where training starts, (P,); by default `towers.parameters`.", default=None
    )

    _text: Array = state(
        lambda self: self.prototypes64 if restoring() else self.as_float64(self.towers.text(self._trained.values)),
        merge=lambda mine, theirs: mine,
    )

    def _validate(self) -> None:
        check_classes("towers", self.towers, self.prototypes)
        super()._validate()

    def _check_support(self) -> None:
        if not isinstance(self.support, (tuple, list)) or len(self.support) != 2:
            raise TypeError(
                f"support must be a pair (images, labels); got {type(self.support).__name__}. "
                "Fix: support=(encoder.preprocessing(image)[0] for each image, stacked, labels)."
            )
        images = as_array("support images", self.support[0])
        self.towers.check("support images", images)
        labels = check_labels("support labels", self.support[1], rows=images.shape[0], classes=self.n_classes)
        self.support = (Backend.of(images).copy(images), labels)

    @property
    def _image_side(self) -> IndependentPrompts:
        return self.towers

    @property
    def prompts(self) -> Array:
        """The learned prompts (P,) of both sides, in the form of `towers.parameters`."""
        return self.as_own(self._trained.values)

    def _default_start(self) -> np.ndarray:
        return self.towers.parameters

    def _train(self, weights: np.ndarray | None = None) -> Trained:
        if not restoring():
            self._plain_features = self.as_float64(self.towers.encode_without_prompts(self.support[0]))
        return super()._train(epoch_weights(self.epochs, *self.average) if self.average and self.epochs else None)

    def _gradient(self, rows: np.ndarray, prompts: Array) -> tuple[Array, Array]:
        images, scale = self.support[0], self.logit_scale
        index = Backend.of(self.prototypes).index
        frozen, labels = self._plain_features[index(rows)], index(self._labels[rows])
        text, features, pull_back = self.towers.linearize(images[Backend.of(images).index(rows)], prompts)
        text, features = self.as_float64(text), self.as_float64(features)
        scores = logits(features, text, scale)
        loss, below = label_loss(scores, labels)
        agreement, agreement_below = divergence(scores, logits(frozen, self.prototypes64, scale))
        text_distance, text_below = near_frozen(text, self.prototypes64)
        image_distance, image_below = near_frozen(features, frozen)
        below = below + self.logit_weight * agreement_below
        to_text = logits_to_text(below, features, scale) + self.text_weight * text_below
        to_features = scale * (below @ text) + self.image_weight * image_below
        loss = loss + self.text_weight * text_distance + self.image_weight * image_distance
        return loss + self.logit_weight * agreement, self.as_float64(pull_back(to_text, to_features))

    def _predict_scores(self, features: Array) -> Array:
        images = self.as_float64(self.towers.encode_images(features, self._trained.values).features)
        return logits(images, self._text, self.logit_scale)
