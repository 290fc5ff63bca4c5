"""What a method asks of the encoder: prompts encoded, gradients carried back to them and steps taken, counted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, dataclass
from typing import Any

from zeroshift.arrays import Array
from zeroshift.methods._shared.towers import Glance, PromptedText, PromptedVision, Tower

__all__ = ["COSTS", "CountingText", "CountingVision", "EncoderCounts", "costs_per_image", "count_calls"]

COSTS = {"image_passes": 1.0, "prompt_passes": 0.0, "prompt_gradients": 0.0, "gradient_steps": 0.0}
"""What every record says of an image, and what it is for a method that is given one feature an image."""


@dataclass
class EncoderCounts:
    """What was asked of an encoder since a moment."""

    prompts: int = 0
    """Encoded forwards."""
    gradients: int = 0
    """Prompts a gradient was carried back through; a tower encodes them once more for it."""
    images: int = 0
    """Encoded forwards, or with a gradient, under a prompt."""
    steps: int = 0
    """Gradients taken of a whole prompt."""

    def since(self, before: EncoderCounts) -> EncoderCounts:
        """
        >>> EncoderCounts(prompts=30, steps=2).since(EncoderCounts(prompts=10))
        Counts(prompts=20, gradients=0, images=0, steps=2)
        """
        return EncoderCounts(*(now - then for now, then in zip(astuple(self), astuple(before), strict=True)))


class CountingText(PromptedText):
    """A text side that counts what is asked of it; in every other way the one it stands for."""

    def __init__(self, text: PromptedText, counts: EncoderCounts) -> None:
        self._text, self._counts = text, counts
        self.context, self.n_classes, self.dimension = text.context, text.n_classes, text.dimension

    @property
    def identity(self) -> Mapping[str, Any]:
        return self._text.identity

    def features(self, context: Array) -> Array:
        self._counts.prompts += self.n_classes
        return self._text.features(context)

    def pull_back(self, context: Array, upstream: Array) -> Array:
        self._counts.gradients += self.n_classes
        self._counts.steps += 1
        return self._text.pull_back(context, upstream)

    def __getattr__(self, name: str) -> Any:
        return _forwarded(vars(self).get("_text"), name)

    def __repr__(self) -> str:
        return repr(self._text)


class CountingVision(PromptedVision):
    """The same of an image side."""

    def __init__(self, vision: PromptedVision, counts: EncoderCounts) -> None:
        self._vision, self._counts = vision, counts
        self.input_shape, self.width, self.dimension = vision.input_shape, vision.width, vision.dimension

    @property
    def identity(self) -> Mapping[str, Any]:
        return self._vision.identity

    def check(self, name: str, images: Any) -> None:
        self._vision.check(name, images)

    def see(self, images: Array, prompt: Array | None) -> Glance:
        self._counts.images += int(images.shape[0])
        return self._vision.see(images, prompt)

    def pull_back(self, images: Array, prompt: Array, upstream: Array) -> Array:
        self._counts.images += int(images.shape[0])
        self._counts.steps += 1
        return self._vision.pull_back(images, prompt, upstream)

    def __getattr__(self, name: str) -> Any:
        return _forwarded(vars(self).get("_vision"), name)

    def __repr__(self) -> str:
        return repr(self._vision)


def _forwarded(tower: Tower | None, name: str) -> Any:
    """What a tower has beyond its kind; nothing before it is there, which is when copies and pickles ask."""
    if tower is None:
        raise AttributeError(name)
    return getattr(tower, name)


def count_calls(tower: Tower, counts: EncoderCounts) -> Tower:
    """`tower`, adding to `counts` whatever it is asked; a kind there is no counter for stays as it is.

    >>> import numpy as np
    >>> from zeroshift.methods._shared.examples import ExampleText
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
    """The costs of an image, from what `images` of them took: `views` of each were encoded beforehand, and the method
    itself took `steps` gradient steps for each beside those that were counted.

    >>> costs_per_image(EncoderCounts(prompts=30, gradients=20, steps=2), images=2, views=64, steps=0)
    {'image_passes': 64.0, 'prompt_passes': 15.0, 'prompt_gradients': 10.0, 'gradient_steps': 1.0}
    """
    return {
        "image_passes": views + counts.images / images,
        "prompt_passes": counts.prompts / images,
        "prompt_gradients": counts.gradients / images,
        "gradient_steps": steps + counts.steps / images,
    }
