"""Counting what a method uses of the encoder: encoded prompts and images, gradients, and gradient steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, dataclass
from typing import Any

from zeroshift.arrays import Array
from zeroshift.methods._shared.towers import PromptedText, PromptedVision, Tower, VisionOutput

__all__ = ["COSTS", "CountingText", "CountingVision", "EncoderCounts", "costs_per_image", "count_calls"]

COSTS = {"image_passes": 1.0, "prompt_passes": 0.0, "prompt_gradients": 0.0, "gradient_steps": 0.0}
"""Costs per image in every record, and their values for a method that gets one feature per image."""


@dataclass
class EncoderCounts:
    """Calls of an encoder."""

    prompts: int = 0
    """Prompts encoded in a forward pass."""
    gradients: int = 0
    """Prompts with a backward pass; the tower encodes them again for it."""
    images: int = 0
    """Images encoded, with or without a backward pass."""
    steps: int = 0
    """Gradients of a whole prompt."""

    def since(self, before: EncoderCounts) -> EncoderCounts:
        """
        >>> EncoderCounts(prompts=30, steps=2).since(EncoderCounts(prompts=10))
        EncoderCounts(prompts=20, gradients=0, images=0, steps=2)
        """
        return EncoderCounts(*(now - then for now, then in zip(astuple(self), astuple(before), strict=True)))


class CountingText(PromptedText):
    """A text tower that counts its calls."""

    def __init__(self, text: PromptedText, counts: EncoderCounts) -> None:
        self._text, self._counts = text, counts
        self.context, self.n_classes, self.dimension = text.context, text.n_classes, text.dimension
        self.n_prompts = text.n_prompts
        self.norms = text.norms

    @property
    def identity(self) -> Mapping[str, Any]:
        return self._text.identity

    def features(self, context: Array) -> Array:
        self._counts.prompts += self.n_classes * self.n_prompts
        return self._text.features(context)

    def pull_back(self, context: Array, upstream: Array) -> Array:
        self._counts.gradients += self.n_classes * self.n_prompts
        self._counts.steps += 1
        return self._text.pull_back(context, upstream)

    def features_with_norms(self, norms: Array) -> Array:
        self._counts.prompts += self.n_classes * self.n_prompts
        return self._text.features_with_norms(norms)

    def pull_back_norms(self, norms: Array, upstream: Array) -> Array:
        self._counts.gradients += self.n_classes * self.n_prompts
        self._counts.steps += 1
        return self._text.pull_back_norms(norms, upstream)

    def __getattr__(self, name: str) -> Any:
        return _forwarded(vars(self).get("_text"), name)

    def __repr__(self) -> str:
        return repr(self._text)


class CountingVision(PromptedVision):
    """An image tower that counts its calls."""

    def __init__(self, vision: PromptedVision, counts: EncoderCounts) -> None:
        self._vision, self._counts = vision, counts
        self.input_shape, self.width, self.dimension = vision.input_shape, vision.width, vision.dimension
        self.norms, self.noise_shape = vision.norms, vision.noise_shape

    @property
    def identity(self) -> Mapping[str, Any]:
        return self._vision.identity

    def check(self, name: str, images: Any) -> None:
        self._vision.check(name, images)

    def encode(self, images: Array, prompt: Array | None) -> VisionOutput:
        self._counts.images += int(images.shape[0])
        return self._vision.encode(images, prompt)

    def encode_with_norms(self, images: Array, norms: Array) -> Array:
        self._counts.images += int(images.shape[0])
        return self._vision.encode_with_norms(images, norms)

    def encode_with_noise(self, images: Array, noise: Array) -> Array:
        self._counts.images += int(images.shape[0])
        return self._vision.encode_with_noise(images, noise)

    def pull_back(self, images: Array, prompt: Array, upstream: Array) -> Array:
        self._count_step(images)
        return self._vision.pull_back(images, prompt, upstream)

    def pull_back_norms(self, images: Array, norms: Array, upstream: Array) -> Array:
        self._count_step(images)
        return self._vision.pull_back_norms(images, norms, upstream)

    def pull_back_noise(self, images: Array, noise: Array, upstream: Array) -> Array:
        self._count_step(images)
        return self._vision.pull_back_noise(images, noise, upstream)

    def _count_step(self, images: Array) -> None:
        self._counts.images += int(images.shape[0])
        self._counts.steps += 1

    def __getattr__(self, name: str) -> Any:
        return _forwarded(vars(self).get("_vision"), name)

    def __repr__(self) -> str:
        return repr(self._vision)


def _forwarded(tower: Tower | None, name: str) -> Any:
    """Other attributes of the tower; copying and unpickling ask for them before the tower is set."""
    if tower is None:
        raise AttributeError(name)
    return getattr(tower, name)


def count_calls(tower: Tower, counts: EncoderCounts) -> Tower:
    """Wrap `tower` so that its calls add to `counts`; other kinds of towers are returned unchanged.

    >>> import numpy as np
    >>> from zeroshift.testing.examples import ExampleText
    >>> counts = EncoderCounts()
    >>> text = count_calls(ExampleText(np.eye(5)), counts)
    >>> text.features(text.context).shape, counts.prompts
    ((5, 5), 5)
    """
    if isinstance(tower, PromptedText):
        return CountingText(tower, counts)
    if isinstance(tower, PromptedVision):
        return CountingVision(tower, counts)
    return tower


def costs_per_image(counts: EncoderCounts, *, images: int, views: int, steps: int) -> dict[str, float]:
    """Costs per image, from the counts of `images` images. `views` views of each image were encoded before the run, and
    the method made `steps` gradient steps per image in addition to those counted.

    >>> costs_per_image(EncoderCounts(prompts=30, gradients=20, steps=2), images=2, views=64, steps=0)
    {'image_passes': 64.0, 'prompt_passes': 15.0, 'prompt_gradients': 10.0, 'gradient_steps': 1.0}
    """
    return {
        "image_passes": views + counts.images / images,
        "prompt_passes": counts.prompts / images,
        "prompt_gradients": counts.gradients / images,
        "gradient_steps": steps + counts.steps / images,
    }
