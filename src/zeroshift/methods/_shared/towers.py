"""The two sides of an encoder as functions of a tunable prompt: interfaces that prompt-tuning methods compute with.

A method works on features. The model that makes them, a transformer on some device, computes features under a given
prompt, and the gradient with respect to the prompt from that with respect to the features. `zeroshift.encode.tuning`
creates both sides from a loaded encoder; users may also write their own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple, Self

import numpy as np

from zeroshift.arrays import Array

__all__ = [
    "CoupledPrompts",
    "DeepPrompts",
    "IndependentPrompts",
    "LayerOutput",
    "Patches",
    "PromptedText",
    "PromptedVision",
    "Tower",
    "VisionOutput",
]


class Tower(ABC):
    """One side of a frozen encoder. It never changes, so copies of a method share it."""

    dimension: int
    """Dimension d of the features."""

    @property
    @abstractmethod
    def identity(self) -> Mapping[str, Any]:
        """Which model this is, as JSON values: written into saved states, and compared when a state is loaded."""

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self


def check_classes(name: str, model: PromptedText | DeepPrompts, prototypes: Array) -> None:
    """ValueError unless the model has the classes and the dimension of the prototypes."""
    k, d = prototypes.shape
    if (model.n_classes, model.dimension) != (k, d):
        raise ValueError(
            f"{name} has {model.n_classes} classes in d = {model.dimension}, the prototypes have {k} in d = {d}. "
            "Fix: make both from the same encoder and class names."
        )


class PromptedText(Tower):
    """The text side for K classes: prompts that contain the same tunable context, such as "a photo of a"."""

    context: np.ndarray
    """Embeddings (n, width) of the initial context words, float32 or float64."""
    n_classes: int
    n_prompts: int = 1
    """Prompts V per class, which differ in the place of the context. Features are (V K, d), the first prompt of every
    class first."""

    norms: np.ndarray | None = None
    """Weights and biases of all layer norms in one vector (P,), float32 or float64; None if they cannot be tuned."""

    @abstractmethod
    def features(self, context: Array) -> Array:
        """Unit text features (K, d) when the embeddings of the context words are `context`: (n, width), or (K, n,
        width) with different ones for each class.

        They have the library and device of `context`, and at least float32 precision.
        """

    @abstractmethod
    def pull_back(self, context: Array, upstream: Array) -> Array:
        """Gradient of sum(upstream * features(context)) with respect to the context, in the shape of the context.

        `upstream` (K, d) is the gradient of a loss with respect to the features. The result has the library and device
        of `context`.
        """

    def linearize(self, context: Array) -> tuple[Array, Callable[[Array], Array]]:
        """`features(context)`, and `pull_back` at this context as a function of the upstream gradient.

        Where all prompts fit into one chunk, a model may keep what the gradient needs, instead of encoding them again.
        """
        return self.features(context), partial(self.pull_back, context)

    def features_with_norms(self, norms: Array) -> Array:
        """Unit text features (K, d) of the initial context, when the layer norms have the weights and biases `norms`.

        They have the library and device of `norms`.
        """
        raise TypeError(f"{self!r} has no layer norms that can be tuned. Fix: zeroshift.encode.prompted_text(...).")

    def pull_back_norms(self, norms: Array, upstream: Array) -> Array:
        """Gradient (P,) of sum(upstream * features_with_norms(norms)), for upstream (K, d)."""
        raise TypeError(f"{self!r} has no layer norms that can be tuned. Fix: zeroshift.encode.prompted_text(...).")

    def linearize_norms(self, norms: Array) -> tuple[Array, Callable[[Array], Array]]:
        """`features_with_norms(norms)`, and a function from `upstream` to `pull_back_norms(norms, upstream)`.

        A model may keep what it computed for the features until that function is called, and is then faster.
        """
        return self.features_with_norms(norms), partial(self.pull_back_norms, norms)


class VisionOutput(NamedTuple):
    """Output of the image side for a batch of B images."""

    features: Array
    """Unit features (B, d), comparable with text features."""
    states: Array
    """States (B, width): the class token after the last layer norm, before its projection."""


class Patches(NamedTuple):
    """The linear layer that turns image patches into tokens. New tokens are drawn at random on its scale."""

    inputs: int
    """Numbers per patch; 3 x 16 x 16 for patches of 16 x 16 pixels."""
    mean: float
    """Mean of the layer's weights."""
    std: float
    """Standard deviation of the layer's weights."""


class PromptedVision(Tower):
    """The image side, with tunable tokens added to those of each image.

    Images are arrays (B, *`input_shape`), in the form the encoder's preprocessing returns.
    """

    input_shape: tuple[int, ...]
    width: int
    """Numbers per token."""
    patches: Patches

    @abstractmethod
    def check(self, name: str, images: Any) -> None:
        """Raise an error that names `name` and the fix unless `images` are valid images (B, *`input_shape`)."""

    @abstractmethod
    def encode(self, images: Array, prompt: Array | None) -> VisionOutput:
        """Features and states of images when the tokens `prompt` (n, width) are added to theirs; None adds none.

        They have the library and device of `prompt`, or of the images if the prompt is None.
        """

    @abstractmethod
    def pull_back(self, images: Array, prompt: Array, upstream: Array) -> Array:
        """Gradient (n, width) of sum(upstream * states) with respect to the prompt, for upstream (B, width)."""

    norms: np.ndarray | None = None
    """Weights and biases of all layer norms in one vector (P,), float32 or float64; None if they cannot be tuned."""

    def encode_with_norms(self, images: Array, norms: Array) -> Array:
        """Features (B, d), not normalised, when the layer norms have the weights and biases `norms` (P,).

        They have the library and device of `norms`.
        """
        raise TypeError(f"{self!r} has no layer norms that can be tuned. Fix: zeroshift.encode.prompted_vision(...).")

    def pull_back_norms(self, images: Array, norms: Array, upstream: Array) -> Array:
        """Gradient (P,) of sum(upstream * encode_with_norms(images, norms)), for upstream (B, d)."""
        raise TypeError(f"{self!r} has no layer norms that can be tuned. Fix: zeroshift.encode.prompted_vision(...).")

    def linearize_norms(self, images: Array, norms: Array) -> tuple[Array, Callable[[Array], Array]]:
        """`encode_with_norms(images, norms)`, and a function from `upstream` to `pull_back_norms` of both with it.

        A model may keep what it computed for some images until that function is called, and is then faster.
        """
        return self.encode_with_norms(images, norms), lambda upstream: self.pull_back_norms(images, norms, upstream)

    noise_shape: tuple[int, ...] | None = None
    """Shape of a noise map, which is the same for all images; None if noise cannot be added to them."""

    def encode_with_noise(self, images: Array, noise: Array) -> Array:
        """Unit features (B, d) of images with `noise` added to their pixels, whose brightness is from 0 to 1.

        Brightness below 0 and above 1 is cut off. The features have the library and device of `noise`.
        """
        raise TypeError(f"{self!r} cannot add noise to images. Fix: zeroshift.encode.prompted_vision(...).")

    def pull_back_noise(self, images: Array, noise: Array, upstream: Array) -> Array:
        """Gradient of sum(upstream * encode_with_noise(images, noise)), of the shape of noise, for upstream (B, d)."""
        raise TypeError(f"{self!r} cannot add noise to images. Fix: zeroshift.encode.prompted_vision(...).")


class LayerOutput(NamedTuple):
    """Output of the image side for B images, with the tokens of its first layers."""

    features: Array
    """Unit features (B, d)."""
    tokens: Array
    """Input tokens (B, L, T, width) of the first L layers; those of the prompt follow the image's own."""


class DeepPrompts(Tower):
    """An encoder with prompts in the first layers of both sides, for K classes.

    Images are arrays (B, *`input_shape`), in the form the encoder's preprocessing returns. Results have the library and
    device of the parameters.
    """

    parameters: np.ndarray
    """All that is tuned in one vector (P,), where tuning starts."""
    n_classes: int
    input_shape: tuple[int, ...]
    n_layers: int
    """Layers of the image side whose tokens are available."""
    token_shape: tuple[int, int]
    """Shape (T, width) of an image's tokens in a layer, including those of the prompt."""

    @abstractmethod
    def check(self, name: str, images: Any) -> None:
        """Raise an error that names `name` and the fix unless `images` are valid images (B, *`input_shape`)."""

    @abstractmethod
    def text(self, parameters: Array) -> Array:
        """Unit text features (K, d)."""

    @abstractmethod
    def encode_images(self, images: Array, parameters: Array, layers: int = 0) -> LayerOutput:
        """Unit image features, and the tokens in the first `layers` layers; (B, 0, T, width) if that is 0."""

    @abstractmethod
    def pull_back_text(self, parameters: Array, upstream: Array) -> Array:
        """Gradient (P,) of sum(upstream * text(parameters)), for upstream (K, d)."""

    @abstractmethod
    def pull_back_images(self, images: Array, parameters: Array, upstream: LayerOutput) -> Array:
        """Gradient (P,) of sum(upstream * encode_images(images, parameters, L)), over features and tokens.

        L is the number of layers of the upstream tokens.
        """

    def linearize(self, images: Array, parameters: Array) -> tuple[Array, Array, Callable[[Array, Array], Array]]:
        """Text features (K, d), image features (B, d), and the function from upstream gradients of both to that of the
        parameters (P,).

        Where all prompts and images fit into one chunk, a model may keep what the gradient needs, instead of encoding
        them again.
        """
        text, (features, tokens) = self.text(parameters), self.encode_images(images, parameters)

        def pull_back(to_text: Array, to_features: Array) -> Array:
            upstream = LayerOutput(to_features, tokens)  # of no layers
            return self.pull_back_text(parameters, to_text) + self.pull_back_images(images, parameters, upstream)

        return text, features, pull_back


class CoupledPrompts(DeepPrompts):
    """Both sides share their prompts, as MaPLe trains them: those of the image side are projections of those of the
    text side, and the projections are tuned, too."""


class IndependentPrompts(DeepPrompts):
    """Each side has prompts of its own, as PromptSRC trains them."""

    @abstractmethod
    def encode_without_prompts(self, images: Array) -> Array:
        """Unit image features (B, d) of the encoder itself, in the library and on the device of the images."""
