"""PromptAlign: prompts of both encoders tuned so that the tokens of an image are distributed like the source's."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar

from zeroshift.arrays import Array, Backend, namespace, to_numpy
from zeroshift.methods._shared.image_method import EpisodicImageMethod
from zeroshift.methods._shared.prompt_tuned import check_start
from zeroshift.methods._shared.source_statistics import checked_source
from zeroshift.methods._shared.towers import CoupledPrompts, LayerOutput, check_classes
from zeroshift.methods._shared.tuning import AdamW, entropy_of_mean, logits_to_text, tune
from zeroshift.parameters import Model, Number, array_parameter, model_parameter, parameter
from zeroshift.views import select_lowest_entropy
from zeroshift.zero_shot import logits


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
        check_classes("maple", self.maple, self.prototypes)
        if self.layers > self.maple.n_layers:
            raise ValueError(f"layers must be at most the {self.maple.n_layers} the image side has; got {self.layers}.")
        shape, backend = self.maple.token_shape, Backend.of(self.prototypes)
        pair = checked_source(
            self.source,
            ("means", "variances"),
            # Any number of layers that is enough; the first are taken.
            lambda given: (max([self.layers, *getattr(given, "shape", ())[:1]]), *shape),
            "source=zeroshift.encode.maple_statistics(maple, images), from images of before the shift",
        )
        self.source = tuple(map(self.as_own, pair))
        with backend.computing():
            self._initial_parameters: Array = self.as_float64(self.maple.parameters)
            self._initial_text: Array = self.as_float64(self.maple.text(self._initial_parameters))
        fix = "prototypes=maple.text(maple.parameters)"
        check_start(self._initial_text, self.prototypes, "maple's trained prompts", fix)

    @property
    def _image_side(self) -> CoupledPrompts:
        return self.maple

    def _episode(self, views: Array) -> Array:
        gradient = partial(self._gradient, self._select_views(views))
        optimizer = AdamW(self.rate, weight_decay=self.weight_decay)
        tuned, _ = tune(self._initial_parameters, gradient, optimizer, self.steps)
        return logits(self._encode(views[:1], tuned).features, self._text(tuned), self.logit_scale)[0]

    def _select_views(self, views: Array) -> Array:
        """The views used in the loss, selected with the initial parameters."""
        features = self._encode(views, self._initial_parameters).features
        numbers = select_lowest_entropy(logits(features, self._initial_text, self.logit_scale), self.view_ratio)
        return views[Backend.of(views).index(to_numpy(numbers))]

    def _gradient(self, kept: Array, parameters: Array) -> tuple[Array, Array]:
        """The loss of the kept views, and its gradient for the parameters (P,)."""
        text, output = self._text(parameters), self._encode(kept, parameters, self.layers)
        entropy, slope = entropy_of_mean(logits(output.features, text, self.logit_scale))
        gap, token_slope = alignment(output.tokens, *(part[: self.layers] for part in self.source))
        to_text = logits_to_text(slope, output.features, self.logit_scale)
        to_images = LayerOutput(self.logit_scale * (slope @ text), self.align_weight * token_slope)
        gradients = (
            self.maple.pull_back_text(parameters, to_text),
            self.maple.pull_back_images(kept, parameters, to_images),
        )
        return entropy + self.align_weight * gap, sum(map(self.as_float64, gradients))

    def _text(self, parameters: Array) -> Array:
        """Text features (K, d). Those of the initial parameters are known."""
        known = parameters is self._initial_parameters
        return self._initial_text if known else self.as_float64(self.maple.text(parameters))

    def _encode(self, images: Array, parameters: Array, layers: int = 0) -> LayerOutput:
        return LayerOutput(*map(self.as_float64, self.maple.encode_images(images, parameters, layers)))
