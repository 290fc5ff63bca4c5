"""PromptAlign: the prompts of both sides tuned until an image's tokens are distributed as the source's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from zeroshift.arrays import Array, Home, is_array, namespace, to_numpy
from zeroshift.methods._shared.image_method import ImageEpisodes
from zeroshift.methods._shared.prompt_tuned import UNLIKE
from zeroshift.methods._shared.towers import CoupledPrompts, Look
from zeroshift.methods._shared.tuning import AdamW, entropy_of_mean, logits_to_text
from zeroshift.parameters import Model, Number, array_parameter, model_parameter, parameter
from zeroshift.views import select_lowest_entropy
from zeroshift.zero_shot import logits

__all__ = ["PromptAlign", "alignment", "checked_token_source"]


# How far the tokens of a few views are from those of the source, position by position: PromptAlign's second loss.


FIX = "Fix: source=zeroshift.encode.maple_statistics(maple, images), from images of before the shift, without labels"


def alignment(tokens: Array, means: Array, variances: Array) -> tuple[Array, Array]:
    """The loss of tokens (V, L, T, width) against the source's means and variances (L, T, width), and its gradient.

    In each layer, half the mean absolute difference of the means over the views, and half that of the variances, which
    divide by V; then the sum over layers.

    >>> import numpy as np
    >>> loss, gradient = alignment(np.array([1.0, 3.0]).reshape(2, 1, 1, 1), np.zeros((1, 1, 1)), np.ones((1, 1, 1)))
    >>> float(loss), gradient.reshape(-1)  # a mean of 2 instead of 0, a variance of 1 as it should be
    (1.0, array([0.25, 0.25]))
    """
    xp = namespace(tokens)
    own = xp.mean(tokens, axis=0)
    around = tokens - own
    off_means, off_variances = own - means, xp.mean(around**2, axis=0) - variances
    share = 0.5 / (tokens.shape[2] * tokens.shape[3])
    loss = share * (xp.sum(xp.abs(off_means)) + xp.sum(xp.abs(off_variances)))
    gradient = share / tokens.shape[0] * (xp.sign(off_means) + 2 * xp.sign(off_variances) * around)
    return loss, gradient


def checked_token_source(source: Any, maple: CoupledPrompts, layers: int, home: Home) -> tuple[Array, Array]:
    """A pair (means, variances) as it was given, copied to `home` in float64; refused where it does not fit."""
    if not isinstance(source, (tuple, list)) or len(source) != 2:
        raise TypeError(f"source must be a pair (means, variances); got {type(source).__name__}. {FIX}.")
    parts = []
    for name, given in zip(("means", "variances"), source, strict=True):
        fits = is_array(given) and len(given.shape) == 3 and tuple(given.shape[1:]) == maple.token_shape
        if not fits or given.shape[0] < layers:
            found = f"shape {tuple(given.shape)}" if is_array(given) else type(given).__name__
            raise ValueError(
                f"source's {name} must be an array (L, {', '.join(map(str, maple.token_shape))}), L at least "
                f"layers = {layers}: a number for each token and channel; got {found}. {FIX}."
            )
        with home.computing():
            parts.append(home.copy(home.bring(given, home.xp.float64)))
        if not bool(home.xp.all(home.xp.isfinite(parts[-1]))):
            raise ValueError(f"source's {name} hold NaN or infinity. {FIX}.")
    if bool((parts[1] < 0).any()):
        raise ValueError(f"source's variances hold a negative number, which no variance is. {FIX}.")
    return parts[0], parts[1]


CROSS_DATASET_RATE = 5e-4
"""The authors' step size away from the ImageNet family."""


class PromptAlign(ImageEpisodes):
    """For each image, moves the prompts of both sides one step towards a surer mean prediction over its surest views,
    and their tokens in the first layers towards the mean and variance that tokens of the source have there. Then it
    answers the image itself with the moved prompts, and puts them back.

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
    Generalization*, NeurIPS 2023. It begins with MaPLe's prompts trained on ImageNet, two tokens a layer in three
    layers of each side, and tunes all of them together with the projections between the sides. Tokens are compared as a
    layer is given them, with that layer's prompt in its place. The step size is 0.04 on the ImageNet family and, as a
    preset, 0.0005 on other data sets. Views are crops and flips, without AugMix. The authors' mixed precision skips a
    step where a gradient overflows, and fewer than ten views leave them none; here no step is skipped, and one view is
    kept.

    The views are looked at once without gradients, to choose among them; only those kept are followed by a gradient, a
    few at a time, and so are the classes on the text side. It is given pixels and cannot work on features.
    """

    name = "promptalign"
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
        "Both sides of the encoder with MaPLe's trained prompts, as `zeroshift.encode.load_maple` makes them.",
    )
    source: tuple[Array, Array] = array_parameter(
        "Of each token and channel, as the first L layers of the image side are given them before the shift: `zeroshift.encode.maple_statistics` computes them from images."
    )
    logit_scale: float = parameter(Number(low=0, above=True), "Scale of the logits; 100 for CLIP.", default=100.0)
    view_ratio: float = parameter(
        Number(0, 1, above=True),
        "Share of the views kept, those of lowest entropy at the prompts as they were; at least one.",
        default=0.1,
    )
    layers: int = parameter(
        Number(low=1, integer=True),
        "How many layers, from the first on, are aligned. The paper says 3; the released loop stops one short.",
        default=2,
    )
    align_weight: float = parameter(
        Number(low=0),
        "Of the alignment beside the entropy. The released code divides its 100 by 3, whatever its loop does.",
        default=100 / 3,
    )
    steps: int = parameter(Number(low=1, integer=True), "Steps of AdamW for each image.", default=1)
    rate: float = parameter(
        Number(low=0),
        "Of AdamW: the step size, and the share of the prompts and projections taken off at a step, times `rate`.",
        default=4e-2,
    )
    weight_decay: float = parameter(
        Number(low=0),
        "Of AdamW: the step size, and the share of the prompts and projections taken off at a step, times `rate`.",
        default=0.01,
    )

    def _validate(self) -> None:
        home, expected = Home.of(self.prototypes), (self.n_classes, self.dimension)
        if (self.maple.n_classes, self.maple.dimension) != expected:
            raise ValueError(
                f"maple has {self.maple.n_classes} classes in d = {self.maple.dimension}, the prototypes have "
                f"{expected[0]} in d = {expected[1]}. Fix: prototypes=maple.text(maple.parameters)."
            )
        if self.layers > self.maple.n_layers:
            raise ValueError(f"layers must be at most the {self.maple.n_layers} the image side has; got {self.layers}.")
        self.source = checked_token_source(self.source, self.maple, self.layers, home)
        with home.computing():
            self._trained = home.bring(self.maple.parameters, home.xp.float64)
            self._initial = self._text(self._trained)
            gap = to_numpy(self._initial - home.bring(self.prototypes, home.xp.float64))
        if float(np.abs(gap).max()) > UNLIKE:
            raise ValueError(
                "prototypes are not what maple makes of its trained prompts, which is where this method begins. "
                "Fix: prototypes=maple.text(maple.parameters)."
            )

    def _episode(self, views: Array) -> Array:
        tuned = self._tuned(views)
        return logits(self._look(views[:1], tuned, 0).features, self._text(tuned), self.logit_scale)[0]

    def _tuned(self, views: Array) -> Array:
        """The parameters after the image's steps."""
        parameters, kept = self._trained, self._kept(views)
        optimiser = AdamW(self.rate, weight_decay=self.weight_decay)
        for step in range(self.steps):
            text = self._text(parameters) if step else self._initial
            parameters = optimiser.step(parameters, self._gradient(kept, parameters, text))
        return parameters

    def _kept(self, views: Array) -> Array:
        """The views the loss is made of, chosen at the parameters as they were."""
        if views.shape[0] == 1:
            return views
        scores = logits(self._look(views, self._trained, 0).features, self._initial, self.logit_scale)
        numbers = to_numpy(select_lowest_entropy(scores, self.view_ratio))
        return views[Home.of(views).index(numbers)]

    def _gradient(self, kept: Array, parameters: Array, text: Array) -> Array:
        """Of the loss on the kept views, with respect to the parameters."""
        home = Home.of(self.prototypes)
        seen = self._look(kept, parameters, self.layers)
        _, to_logits = entropy_of_mean(logits(seen.features, text, self.logit_scale))
        _, to_tokens = alignment(seen.tokens, *(part[: self.layers] for part in self.source))
        above = Look(self.logit_scale * (to_logits @ text), self.align_weight * to_tokens)
        to_text = logits_to_text(to_logits, seen.features, self.logit_scale)
        parts = (
            self.maple.pull_back_text(parameters, to_text),
            self.maple.pull_back_images(kept, parameters, above),
        )
        return sum(home.bring(part, home.xp.float64) for part in parts)

    def _text(self, parameters: Array) -> Array:
        home = Home.of(self.prototypes)
        return home.bring(self.maple.text(parameters), home.xp.float64)

    def _look(self, images: Array, parameters: Array, layers: int) -> Look:
        home = Home.of(self.prototypes)
        return Look(*(home.bring(part, home.xp.float64) for part in self.maple.look(images, parameters, layers)))
