"""An encoder's two sides as functions of a prompt that can be tuned: what prompt-tuning methods are given.

The mathematics of a method ends at the features; what lies behind them, a transformer on some device, is asked for
features under a prompt, and to carry a gradient from the features back to the prompt. `zeroshift.encode.tuning` makes
both sides from a loaded encoder; anyone may write their own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeVar

import numpy as np

from zeroshift.arrays import Array

__all__ = ["CoupledPrompts", "Glance", "Look", "Patches", "PromptedText", "PromptedVision", "Tower"]

T = TypeVar("T", bound="Tower")


class Tower(ABC):
    """One side of a frozen encoder. Copies of a method share it: it never changes."""

    dimension: int
    """d, of its features."""

    @property
    @abstractmethod
    def identity(self) -> Mapping[str, Any]:
        """Which it is, as JSON can hold it: written into saved states, and compared when one is loaded."""

    def __copy__(self: T) -> T:
        return self

    def __deepcopy__(self: T, memo: dict[int, Any]) -> T:
        return self


class PromptedText(Tower):
    """The text side for K classes: prompts that begin with the same tunable words, such as "a photo of a"."""

    context: np.ndarray
    """(n, width) embeddings of the words as they stand, float32 or float64: where tuning begins."""
    n_classes: int

    @abstractmethod
    def features(self, context: Array) -> Array:
        """(K, d) unit text features with the words' embeddings replaced by `context` (n, width).

        They come in the context's library and on its device, in float32 at least.
        """

    @abstractmethod
    def pull_back(self, context: Array, upstream: Array) -> Array:
        """(n, width): the gradient of sum(upstream * features(context)) with respect to the context.

        `upstream` (K, d) is the gradient of a loss with respect to the features. The answer comes as the context does.
        """


class Glance(NamedTuple):
    """What the image side makes of a batch of B images."""

    features: Array
    """(B, d), of unit length: comparable with text features."""
    states: Array
    """(B, width): the class token after the last layer norm, before its projection."""


class Patches(NamedTuple):
    """The linear layer that makes tokens of an image's patches: new tokens are drawn at random on its scale."""

    inputs: int
    """Numbers of a patch, 3 x 16 x 16 for one of 16 pixels a side."""
    mean: float
    """Of the layer's weights."""
    std: float
    """Of the layer's weights."""


class PromptedVision(Tower):
    """The image side, with tunable tokens put among those of each image.

    Images are arrays (B, *`input_shape`), as the encoder's preprocessing makes them.
    """

    input_shape: tuple[int, ...]
    width: int
    """Of a token."""
    patches: Patches

    @abstractmethod
    def check(self, name: str, images: Any) -> None:
        """Refuse what are no images (B, *`input_shape`), with an error that names `name` and the fix."""

    @abstractmethod
    def see(self, images: Array, prompt: Array | None) -> Glance:
        """Features and states of images with the tokens `prompt` (n, width) among theirs; None adds none.

        They come in the library and on the device of `prompt`, or of the images where that is None.
        """

    @abstractmethod
    def pull_back(self, images: Array, prompt: Array, upstream: Array) -> Array:
        """(n, width): the gradient of sum(upstream * states) with respect to the prompt, for upstream (B, width)."""


# An encoder whose two sides share their prompts, as MaPLe trains them: what PromptAlign tunes.


class Look(NamedTuple):
    """What the image side makes of B images, at its end and on the way."""

    features: Array
    """(B, d), of unit length."""
    tokens: Array
    """(B, L, T, width): the tokens as the first L layers are given them, those of the prompt behind the image's own."""


class CoupledPrompts(Tower):
    """Both sides for K classes, with prompts in the first layers of each: those of the image side are made of the text
    side's by projections, which are tuned, too.

    Images are arrays (B, *`input_shape`), as the encoder's preprocessing makes them. Answers come in the library and on
    the device of the parameters.
    """

    parameters: np.ndarray
    """(P,): all prompts and projections as they were trained, one behind the other: where tuning begins."""
    n_classes: int
    input_shape: tuple[int, ...]
    n_layers: int
    """Layers of the image side, whose tokens can be looked at."""
    token_shape: tuple[int, int]
    """(T, width) of an image's tokens in a layer, with those of the prompt."""

    @abstractmethod
    def check(self, name: str, images: Any) -> None:
        """Refuse what are no images (B, *`input_shape`), with an error that names `name` and the fix."""

    @abstractmethod
    def text(self, parameters: Array) -> Array:
        """(K, d) unit text features."""

    @abstractmethod
    def look(self, images: Array, parameters: Array, layers: int = 0) -> Look:
        """Unit image features, and the tokens in the first `layers` layers; (B, 0, T, width) where that is 0."""

    @abstractmethod
    def pull_back_text(self, parameters: Array, upstream: Array) -> Array:
        """(P,): the gradient of sum(upstream * text(parameters)), for upstream (K, d)."""

    @abstractmethod
    def pull_back_images(self, images: Array, parameters: Array, upstream: Look) -> Array:
        """(P,): the gradient of sum(upstream * look(images, parameters, L)), features and tokens, for as many layers L
        as the upstream tokens have."""
