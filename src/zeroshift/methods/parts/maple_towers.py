"""An encoder whose two sides share their prompts, as MaPLe trains them: what PromptAlign tunes."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, NamedTuple

import numpy as np

from zeroshift.arrays import Array
from zeroshift.methods.parts.towers import Tower

__all__ = ["CoupledPrompts", "Look"]


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
