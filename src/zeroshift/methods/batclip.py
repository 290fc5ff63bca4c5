"""BATCLIP: both encoders adapted through their layer norms, so that images and names of a class agree."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

from zeroshift.arrays import Array, Backend, namespace
from zeroshift.methods._shared.norm_tuned import NormDescent
from zeroshift.methods._shared.prompt_tuned import TEXT, check_text
from zeroshift.methods._shared.similarity import one_hot, unit_rows
from zeroshift.methods._shared.towers import PromptedText
from zeroshift.methods._shared.training import Adam
from zeroshift.methods._shared.tuning import AdamW, entropy_of_each, logits_to_text, through_unit_rows
from zeroshift.parameters import Choice, Number, model_parameter, parameter
from zeroshift.zero_shot import logits, pseudo_class


class BimodalLoss(NamedTuple):
    """The three terms of the loss, entropy - image_text - between, and the gradients of the loss."""

    entropy: Array
    """Mean entropy of the predictions."""
    image_text: Array
    """Mean over the predicted classes of the inner product of the mean image feature and the text feature."""
    between: Array
    """Sum over ordered pairs of predicted classes of 1 - cosine of their mean image features."""
    raw_gradient: Array
    """With respect to the image features (n, d) before they are scaled to unit length."""
    text_gradient: Array
    """With respect to the unit text features (K, d)."""


def bimodal_loss(raw: Array, text: Array, logit_scale: float) -> BimodalLoss:
    """The loss of image features (n, d), of any length, and unit text features (K, d).

    Two images of different classes, with twice the unit length:

    >>> import numpy as np
    >>> loss = bimodal_loss(np.array([[2.0, 0.0], [0.0, 2.0]]), np.eye(2), logit_scale=1.0)
    >>> [round(float(term), 4) for term in loss[:3]]
    [0.5822, 2.0, 2.0]
    """
    xp, unit = namespace(raw), unit_rows(raw)
    scores = logits(unit, text, logit_scale)
    entropies, slope = entropy_of_each(scores)
    slope = slope / len(raw)
    members = one_hot(pseudo_class(scores), len(text))
    counts = xp.sum(members, axis=0)[:, None]
    predicted = xp.clip(counts, None, 1.0)
    n_predicted = xp.sum(predicted)
    shares = members.T / xp.clip(counts, 1.0, None)
    means = shares @ raw  # rows of classes that are not predicted are zero
    directions = unit_rows(means)
    total = xp.sum(directions, axis=0)
    cosines = xp.sum(total**2) - xp.sum(directions**2)
    mean_gradient = through_unit_rows(2 * (total - directions), means) - text / n_predicted
    return BimodalLoss(
        xp.mean(entropies),
        xp.sum(means * text) / n_predicted,
        n_predicted * (n_predicted - 1) - cosines,
        through_unit_rows(logit_scale * (slope @ text), raw) + shares.T @ (predicted * mean_gradient),
        logits_to_text(slope, unit, logit_scale) - means / n_predicted,
    )


class BATCLIP(NormDescent):
    """Adapts the weights and biases of all layer norms of both encoders, with one step per batch. The step lowers the
    entropy of the predictions, moves the mean image of each predicted class towards its text, and the means of
    different classes apart. The changed layer norms stay for the next batches. A batch is predicted before its step.

    Examples
    --------
    >>> import numpy as np
    >>> from zeroshift.methods import BATCLIP
    >>> from zeroshift.testing.examples import ExampleText, ExampleVision
    >>> text, vision = ExampleText(np.eye(2)), ExampleVision(np.eye(2))
    >>> batclip = BATCLIP(text.features(text.context), text=text, vision=vision, logit_scale=5.0, rate=0.1)
    >>> images = np.array([[1.0, 0.0], [0.6, 0.8]])
    >>> batclip.adapt(images).round(3), batclip.predict(images).round(3)
    (array([[0.993, 0.007],
           [0.269, 0.731]]), array([[0.997, 0.003],
           [0.206, 0.794]]))

    Notes
    -----
    Maharana et al., *BATCLIP: Bimodal Online Test-Time Adaptation for CLIP*, ICCV 2025. No labels are used. The default
    is the authors' setting for ImageNet-C; theirs for CIFAR-10-C is a rate of 1e-3 and batches of 200, for CIFAR-100-C
    "adam" and batches of 200. No procedure for that choice is published.

    As in the authors' code, the distance between classes is a sum over ordered pairs, so it grows with the square of
    the number of predicted classes; and the term of image and text is an inner product with the mean of features before
    they are scaled to unit length, so it also rewards long features. "adam" adds the weight decay to the gradient,
    which pulls the weights of the layer norms towards 0. Their mixed precision, used on a GPU, is not reproduced.

    The classifier is one prompt per class, "a photo of a {class}."; ensembles of prompts are not supported. All K
    prompts are encoded for every batch, and by `predict` for every 4096 images. Gradients are computed for a few images
    and a few prompts at a time, so memory grows neither with the batch nor with K. `reset` restores the encoder's own
    layer norms; the authors do that before every new corruption.
    """

    name = "batclip"
    headline = "Adapts the layer norms of both encoders"
    needs = ("prototypes", "vision", "text")
    starts_from_prompt = True
    state_size = "3 P: the P weights and biases of the layer norms (65 536 in ViT-B/16) with two moments"
    complexity = "up to 2 passes of each image, and up to 2 of K prompts per batch, one of each with gradients"
    example_parameters: ClassVar[Mapping[str, Any]] = {"batch_size": 4}

    text: PromptedText = model_parameter(TEXT, "Text side of the encoder.")
    rate: float = parameter(Number(low=0), "Step size.", default=5e-4)
    optimizer: str = parameter(
        Choice(("adamw", "adam")),
        'Optimiser: "adamw", or "adam", which adds the weight decay to the gradient.',
        default="adamw",
    )
    weight_decay: float = parameter(Number(low=0), "Weight decay of the layer norms' weights and biases.", default=0.01)

    def _validate(self) -> None:
        super()._validate()
        check_text(self.text, self.prototypes)
        if self.text.norms is None:
            raise ValueError(
                f"text has no layer norms that can be tuned; got {self.text!r}. "
                "Fix: text=zeroshift.encode.prompted_text(encoder, class_names)."
            )

    def _prepare(self) -> None:
        super()._prepare()
        self._n_vision = len(self._initial_norms)
        parts = [self._initial_norms, self.as_float64(self.text.norms)]
        self._initial_norms = Backend.of(self.prototypes).xp.concat(parts)

    def _new_optimizer(self) -> AdamW:
        return (AdamW if self.optimizer == "adamw" else Adam)(self.rate, weight_decay=self.weight_decay)

    def _gradient(self, images: Array, norms: Array) -> tuple[Array, Array]:
        raw, pull_back = self._linearize(images, norms[: self._n_vision])
        text, pull_back_text = self.text.linearize_norms(norms[self._n_vision :])
        text = self.as_float64(text)
        loss = bimodal_loss(raw, text, self.logit_scale)
        parts = [pull_back(loss.raw_gradient), self.as_float64(pull_back_text(loss.text_gradient))]
        return logits(unit_rows(raw), text, self.logit_scale), Backend.of(raw).xp.concat(parts)

    def score(self, images: Array) -> Array:
        raw = self._raw_features(images, self._norms[: self._n_vision])
        text = self.as_float64(self.text.features_with_norms(self._norms[self._n_vision :]))
        return logits(unit_rows(raw), text, self.logit_scale)
