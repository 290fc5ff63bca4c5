"""PromptAlign: prompts of both encoders tuned so that the tokens of an image are distributed like the source's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from zeroshift.arrays import Array, Backend, as_floats, namespace, to_numpy
from zeroshift.methods._shared.image_method import EpisodicImageMethod
from zeroshift.methods._shared.prompt_tuned import MAX_PROTOTYPE_GAP
from zeroshift.methods._shared.towers import CoupledPrompts, LayerOutput
from zeroshift.methods._shared.tuning import AdamW, entropy_of_mean, logits_to_text
from zeroshift.parameters import Model, Number, array_parameter, model_parameter, parameter
from zeroshift.views import select_lowest_entropy
from zeroshift.zero_shot import logits

__all__ = ["PromptAlign", "alignment", "checked_token_source"]

FIX = "Fix: source=zeroshift.encode.maple_statistics(maple, images), from images of before the shift, without labels"


def alignment(tokens: Array, means: Array, variances: Array) -> tuple[Array, Array]:
    """Alignment loss of tokens (V, L, T, width) with the source's means and variances (L, T, width), and its gradient.

    Per layer, half the mean absolute difference of the means over the views plus half that of the variances, which
    divide by V; summed over layers.

    >>> import numpy as np
    >>> loss, gradient = alignment(np.array([1.0, 3.0]).reshape(2, 1, 1, 1), np.zeros((1, 1, 1)), np.ones((1, 1, 1)))
    >>> float(loss), gradient.reshape(-1)  # a mean of 2 instead of 0, and the right variance, 1
    (1.0, array([0.25, 0.25]))
    """
    xp = namespace(tokens)
    own = xp.mean(tokens, axis=0)
    centred = tokens - own
    mean_errors, variance_errors = own - means, xp.mean(centred**2, axis=0) - variances
    share = 0.5 / (tokens.shape[2] * tokens.shape[3])
    loss = share * (xp.sum(xp.abs(mean_errors)) + xp.sum(xp.abs(variance_errors)))
    gradient = share / tokens.shape[0] * (xp.sign(mean_errors) + 2 * xp.sign(variance_errors) * centred)
    return loss, gradient


def checked_token_source(source: Any, maple: CoupledPrompts, layers: int, backend: Backend) -> tuple[Array, Array]:
    """A user's pair (means, variances), copied to `backend` in float64; an error if it does not fit."""
    if not isinstance(source, (tuple, list)) or len(source) != 2:
        raise TypeError(f"source must be a pair (means, variances); got {type(source).__name__}. {FIX}.")
    parts = []
    for name, given in zip(("means", "variances"), source, strict=True):
        given = as_floats(f"source {name}", given)
        fits = len(given.shape) == 3 and tuple(given.shape[1:]) == maple.token_shape
        if not fits or given.shape[0] < layers:
            raise ValueError(
                f"source's {name} must be an array (L, {', '.join(map(str, maple.token_shape))}), L at least "
                f"layers = {layers}: a number for each token and channel; got shape {tuple(given.shape)}. {FIX}."
            )
        with backend.computing():
            parts.append(backend.copy(backend.asarray(given, backend.xp.float64)))
        if not bool(backend.xp.all(backend.xp.isfinite(parts[-1]))):
            raise ValueError(f"source's {name} hold NaN or infinity. {FIX}.")
    if bool((parts[1] < 0).any()):
        raise ValueError(f"source's variances hold a negative number. {FIX}.")
    return parts[0], parts[1]


CROSS_DATASET_RATE = 5e-4
"""The authors' step size for data sets outside the ImageNet family."""


class PromptAlign(EpisodicImageMethod):
    """Tunes the prompts of both encoders for each image: one step that lowers the entropy of the mean prediction over
    its most confident views, and moves mean and variance of their tokens in the first layers towards those of the
    source. The tuned prompts predict the image itself; then they are restored.

    Examples
    --------
    >>> import numpy as np
    >>> from zeroshift.methods import PromptAlign
    >>> from zeroshift.testing.examples import ExampleMaple, example_token_source
    >>> maple = ExampleMaple(np.eye(2))
    >>> method = PromptAlign(
    ...     maple.text(maple.parameters), maple=maple, source=example_token_source(np.eye(2)), logit_scale=5.0
    ... )
    >>> method.adapt_views(np.array([[0.8, 0.6], [1.0, 0.0], [0.6, 0.8]])).round(3)
    array([0.743, 0.257])

    Notes
    -----
    Abdul Samadh et al., *Align Your Prompts: Test-Time Prompting with Distribution Alignment for Zero-Shot
    Generalization*, NeurIPS 2023. Tuning starts from MaPLe's prompts trained on ImageNet, two tokens per layer in three
    layers of each encoder, and changes all of them together with the projections between the encoders. Tokens are
    compared at the input of a layer, including the prompt of that layer. The step size is 0.04 on the ImageNet family
    and, as a preset, 0.0005 on other data sets. Views are crops and flips, without AugMix. The authors' mixed precision
    skips a step when a gradient overflows, and with fewer than ten views they keep none; here no step is skipped, and
    one view is kept.

    All views are encoded once without gradients, to select among them. Gradients are computed only for those kept, a
    few at a time, and for a few classes at a time in the text encoder. The input is pixels; features are not enough.
    """

    name = "promptalign"
    headline = "Tunes prompts, aligns tokens with the source"
    needs = ("prototypes", "views", "images", "maple", "source")
    state_size = "2 K d + P + 2 L T w: two classifiers, the prompts, and the source's tokens"
    complexity = "V + 2 S n + 1 passes of an image and 2 S of K prompts, S n and S of them with gradients, n views kept"
    example_parameters: ClassVar[Mapping[str, Any]] = {"source": "token_source"}
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        dataset: {"rate": CROSS_DATASET_RATE}
        for dataset in (
            "caltech101",
            "dtd",
            "eurosat",
            "fgvc_aircraft",
            "food101",
            "oxford_flowers",
            "oxford_pets",
            "stanford_cars",
            "sun397",
            "ucf101",
        )
    }

    maple: CoupledPrompts = model_parameter(
        Model(CoupledPrompts, "zeroshift.encode.load_maple(encoder, checkpoint, class_names)"),
        "Both sides of the encoder with MaPLe's trained prompts.",
    )
    source: tuple[Array, Array] = array_parameter(
        "Means and variances (L, T, width) of each token and channel at the input of the first L layers of the image "
        "encoder before the shift. `zeroshift.encode.maple_statistics` computes them from images."
    )
    logit_scale: float = parameter(Number(low=0, above=True), "Scale of the logits; 100 for CLIP.", default=100.0)
    view_ratio: float = parameter(
        Number(0, 1, above=True),
        "Share of the views kept, those of lowest entropy with the initial prompts; at least one.",
        default=0.1,
    )
    layers: int = parameter(
        Number(low=1, integer=True),
        "Number of first layers whose tokens are aligned. The paper says 3; the released loop stops one layer earlier.",
        default=2,
    )
    align_weight: float = parameter(
        Number(low=0),
        "Weight of the alignment relative to the entropy. The released code divides 100 by 3 for any number of layers.",
        default=100 / 3,
    )
    steps: int = parameter(Number(low=1, integer=True), "Steps of AdamW per image.", default=1)
    rate: float = parameter(Number(low=0), "Step size of AdamW.", default=4e-2)
    weight_decay: float = parameter(
        Number(low=0),
        "Weight decay of AdamW: each step shrinks the prompts and projections by this share, times `rate`.",
        default=0.01,
    )

    def _validate(self) -> None:
        backend, expected = Backend.of(self.prototypes), (self.n_classes, self.dimension)
        if (self.maple.n_classes, self.maple.dimension) != expected:
            raise ValueError(
                f"maple has {self.maple.n_classes} classes in d = {self.maple.dimension}, the prototypes have "
                f"{expected[0]} in d = {expected[1]}. Fix: prototypes=maple.text(maple.parameters)."
            )
        if self.layers > self.maple.n_layers:
            raise ValueError(f"layers must be at most the {self.maple.n_layers} the image side has; got {self.layers}.")
        self.source = checked_token_source(self.source, self.maple, self.layers, backend)
        with backend.computing():
            self._initial_parameters: Array = backend.asarray(self.maple.parameters, backend.xp.float64)
            self._initial_text: Array = self._text(self._initial_parameters)
            gap = to_numpy(self._initial_text - backend.asarray(self.prototypes, backend.xp.float64))
        if float(np.abs(gap).max()) > MAX_PROTOTYPE_GAP:
            raise ValueError(
                "prototypes differ from the text features of maple's trained prompts, where this method starts. "
                "Fix: prototypes=maple.text(maple.parameters)."
            )

    @property
    def _image_side(self) -> CoupledPrompts:
        return self.maple

    def _episode(self, views: Array) -> Array:
        tuned = self._tuned_parameters(views)
        return logits(self._encode_images(views[:1], tuned).features, self._text(tuned), self.logit_scale)[0]

    def _tuned_parameters(self, views: Array) -> Array:
        """The parameters after the steps for one image."""
        parameters, kept = self._initial_parameters, self._select_views(views)
        optimizer = AdamW(self.rate, weight_decay=self.weight_decay)
        for step in range(self.steps):
            text = self._text(parameters) if step else self._initial_text
            parameters = optimizer.step(parameters, self._gradient(kept, parameters, text))
        return parameters

    def _select_views(self, views: Array) -> Array:
        """The views used in the loss, selected with the initial parameters."""
        if views.shape[0] == 1:
            return views
        features = self._encode_images(views, self._initial_parameters).features
        scores = logits(features, self._initial_text, self.logit_scale)
        numbers = to_numpy(select_lowest_entropy(scores, self.view_ratio))
        return views[Backend.of(views).index(numbers)]

    def _gradient(self, kept: Array, parameters: Array, text: Array) -> Array:
        """Gradient of the loss on the kept views with respect to the parameters."""
        backend = Backend.of(self.prototypes)
        output = self._encode_images(kept, parameters, self.layers)
        _, score_gradient = entropy_of_mean(logits(output.features, text, self.logit_scale))
        _, token_gradient = alignment(output.tokens, *(part[: self.layers] for part in self.source))
        upstream = LayerOutput(self.logit_scale * (score_gradient @ text), self.align_weight * token_gradient)
        text_gradient = logits_to_text(score_gradient, output.features, self.logit_scale)
        gradients = (
            self.maple.pull_back_text(parameters, text_gradient),
            self.maple.pull_back_images(kept, parameters, upstream),
        )
        return sum(backend.asarray(gradient, backend.xp.float64) for gradient in gradients)

    def _text(self, parameters: Array) -> Array:
        backend = Backend.of(self.prototypes)
        return backend.asarray(self.maple.text(parameters), backend.xp.float64)

    def _encode_images(self, images: Array, parameters: Array, layers: int = 0) -> LayerOutput:
        backend, output = Backend.of(self.prototypes), self.maple.encode_images(images, parameters, layers)
        return LayerOutput(*(backend.asarray(part, backend.xp.float64) for part in output))
