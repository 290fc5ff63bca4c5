"""`prompted_vision`: the image encoder of CLIP with tunable tokens, with gradients in chunks of images."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from zeroshift.arrays import Array, Backend, as_array, is_array, namespace, to_numpy
from zeroshift.encode.encoder import Encoder
from zeroshift.encode.families.base import TransformersEncoder
from zeroshift.encode.preprocessing import PixelPreprocessing
from zeroshift.encode.tuning.autograd_utils import (
    for_each_chunk,
    freeze_parameters,
    gradient_mode,
    powers_of_two,
    refuse_pickling,
)
from zeroshift.encode.tuning.norms import KeptRows, NormLayers
from zeroshift.methods._shared.towers import Patches, PromptedVision, VisionOutput
from zeroshift.parameters import Number

if TYPE_CHECKING:
    import torch

__all__ = ["CHUNK", "TokenVision", "prompted_vision"]

CHUNK = 16
"""Images per chunk of a gradient."""

FAMILIES = ("clip", "metaclip", "altclip", "chinese_clip")
"""Families with CLIP's vision transformer in the transformers library."""

LAYERS = ("embeddings", "pre_layrnorm", "encoder", "post_layernorm")
"""Its attributes in that library."""


def prompted_vision(encoder: Encoder, *, chunk_size: int = CHUNK) -> PromptedVision:
    """The image encoder of `encoder`, with tunable tokens added to those of each image.

    Without a prompt, its features are those of `encoder.encode_pixels`. The encoder itself is not changed, and can be
    used meanwhile.

    Parameters
    ----------
    encoder : one with CLIP's vision transformer: of the families clip, metaclip, altclip and chinese_clip.
    chunk_size : images per chunk of a gradient; halved when memory runs out.
    """
    if not isinstance(encoder, Encoder):
        raise TypeError(
            f"encoder must be a loaded encoder; got {type(encoder).__name__}. Fix: zeroshift.encode.load_encoder(...)."
        )
    vision = getattr(getattr(encoder, "model", None), "vision_model", None)
    supported = (
        isinstance(encoder, TransformersEncoder)
        and hasattr(encoder.model, "visual_projection")
        and all(hasattr(vision, layer) for layer in LAYERS)
        and hasattr(getattr(vision, "embeddings", None), "class_embedding")
    )
    if not supported:
        raise TypeError(
            "encoder must have CLIP's vision transformer; "
            f"got {encoder!r} of the family {encoder.family!r}. Fix: use one of the families {', '.join(FAMILIES)}, or "
            "vision=None if the method allows it."
        )
    assert isinstance(encoder, TransformersEncoder)
    return TokenVision(encoder, chunk_size=chunk_size)


class TokenVision(PromptedVision):
    """A vision transformer with additional tokens; see `prompted_vision`.

    Images are (B, 3, H, W) as the encoder's preprocessing returns them: bytes, or numbers between 0 and 255.
    """

    def __init__(self, encoder: TransformersEncoder, *, chunk_size: int = CHUNK) -> None:
        import torch

        # At least float32: tuning steps are smaller than the rounding of half precision.
        self._compute_dtype = torch.promote_types(encoder.dtype, torch.float32)
        self._encoder, self._model = encoder, encoder.model
        self.chunk_size = int(Number(1, integer=True).check("chunk_size", chunk_size))
        self.batch_size = encoder.batch_size
        self.dimension = encoder.dimension
        self.input_shape = (3, *encoder.preprocessing.size)
        weights = self._model.vision_model.embeddings.patch_embedding.weight.detach()
        self.width = int(weights.shape[0])
        values = to_numpy(weights).astype("float64")
        self.patches = Patches(int(values[0].size), float(values.mean()), float(values.std(ddof=1)))
        self._backend = Backend.of(weights)
        self._norm_layers = NormLayers([self._model.vision_model], self._compute_dtype)
        self.norms = self._norm_layers.values
        self.noise_shape = self.input_shape if isinstance(encoder.preprocessing, PixelPreprocessing) else None

    @property
    def identity(self) -> Mapping[str, Any]:
        return {"encoder": self._encoder.key()}

    def check(self, name: str, images: Any) -> None:
        if not is_array(images):
            raise TypeError(
                f"{name} must be a NumPy array or a torch tensor; got {type(images).__name__}. "
                "Fix: encoder.preprocessing(image)[0] for each image, stacked."
            )
        images = as_array(name, images)
        if not images.shape or tuple(images.shape[1:]) != self.input_shape or not images.shape[0]:
            raise ValueError(
                f"{name} must have the shape (B, {', '.join(map(str, self.input_shape))}), with at least one image; "
                f"got {tuple(images.shape)}. Fix: encoder.preprocessing(image)[0] for each, stacked."
            )
        xp = namespace(images)
        if images.dtype == xp.uint8:
            return
        if not xp.isdtype(images.dtype, "real floating"):
            raise TypeError(f"{name} must be bytes (uint8) or floating-point numbers; got {images.dtype}.")
        pixels = isinstance(self._encoder.preprocessing, PixelPreprocessing)
        for start in range(0, images.shape[0], self.batch_size):
            block = images[start : start + self.batch_size]
            # NaN fails both comparisons.
            valid = (block >= 0) & (block <= 255) if pixels else xp.isfinite(block)
            valid = to_numpy(xp.all(valid, axis=(1, 2, 3)))
            if not valid.all():
                raise ValueError(
                    f"{name}[{start + int(valid.argmin())}] contains NaN, infinity or a number outside 0 to 255. "
                    "Fix: pass pixels as encoder.preprocessing returns them, not normalised."
                )

    def encode(self, images: Array, prompt: Array | None) -> VisionOutput:
        import torch

        parts: list[VisionOutput] = []
        with gradient_mode(self._backend.device, gradients=False):
            tokens = None if prompt is None else self._tokens(prompt)

            def encode(rows: slice) -> None:
                states = self._states(self._pixels(images[rows]), tokens)
                features = self._to_compute_dtype(self._model.visual_projection(states))
                parts.append(VisionOutput(_unit_rows(features), self._to_compute_dtype(states)))

            self.batch_size = for_each_chunk(int(images.shape[0]), self.batch_size, encode)
            features, states = (torch.cat(tensors) for tensors in zip(*parts, strict=True))
        if not bool(features.isfinite().all()):
            raise ValueError(
                "the image model returned a zero or non-finite feature for this prompt. Fix: dtype='float32' if it is "
                "narrower; otherwise smaller steps."
            )
        caller = Backend.of(images if prompt is None else prompt)
        return VisionOutput(caller.asarray(features), caller.asarray(states))

    def pull_back(self, images: Array, prompt: Array, upstream: Array) -> Array:
        import torch

        modules = (self._model.vision_model,)
        with gradient_mode(self._backend.device, gradients=True), freeze_parameters(modules):
            tokens, gradient = self._tokens(prompt), self._to_compute_dtype(self._backend.asarray(upstream))
            scales, total = powers_of_two(gradient), torch.zeros_like(tokens)

            def add_gradient(rows: slice) -> None:
                # A copy of the tokens for every image, so that each gradient can be scaled separately.
                copies = tokens.expand(len(gradient[rows]), -1, -1).clone().requires_grad_()
                states = self._to_compute_dtype(self._states(self._pixels(images[rows]), copies))
                (part,) = torch.autograd.grad(states, copies, gradient[rows] * scales[rows])
                total.add_((part / scales[rows, :, None]).sum(dim=0))

            self.chunk_size = for_each_chunk(int(images.shape[0]), self.chunk_size, add_gradient)
        if not bool(total.isfinite().all()):
            raise ValueError(
                "the gradient of the prompt is not finite: it exceeds the range of the image model's precision. "
                "Fix: load the encoder with dtype='float32' or 'bfloat16'."
            )
        return Backend.of(prompt).asarray(total)

    def encode_with_norms(self, images: Array, norms: Array) -> Array:
        return Backend.of(norms).asarray(self._encode_with_norms(images, self._norm_tensor(norms)))

    def pull_back_norms(self, images: Array, norms: Array, upstream: Array) -> Array:
        return self._pull_back_norms(images, norms, upstream, None)

    def linearize_norms(self, images: Array, norms: Array) -> tuple[Array, Callable[[Array], Array]]:
        import torch

        tensor, count = self._norm_tensor(norms), min(int(images.shape[0]), self.chunk_size)
        with self._differentiable():
            kept = self._norm_layers.keep(tensor, count, lambda rows: self._raw_features(images[rows]))
        if kept is None:
            features = self._encode_with_norms(images, tensor)
        elif count < images.shape[0]:
            features = torch.cat([kept.features, self._encode_with_norms(images[count:], tensor)])
        else:
            features = kept.features
        _check_finite(features, "these layer norms")
        return Backend.of(norms).asarray(features), lambda upstream: self._pull_back_norms(
            images, norms, upstream, kept
        )

    def _encode_with_norms(self, images: Array, norms: torch.Tensor) -> torch.Tensor:
        with self._norm_layers.replaced(norms):
            return self._encode_in_batches(images, self._raw_features, "these layer norms")

    def _pull_back_norms(self, images: Array, norms: Array, upstream: Array, kept: KeptRows | None) -> Array:
        with self._differentiable():
            gradient, self.chunk_size = self._norm_layers.pull_back(
                self._norm_tensor(norms),
                self._to_compute_dtype(self._backend.asarray(upstream)),
                self.chunk_size,
                lambda rows: self._raw_features(images[rows]),
                kept,
            )
        return Backend.of(norms).asarray(gradient)

    def _norm_tensor(self, norms: Array) -> torch.Tensor:
        return self._norm_layers.to_tensor("vision", norms, self._backend, self._compute_dtype)

    def encode_with_noise(self, images: Array, noise: Array) -> Array:
        tensor = self._noise_tensor(noise)
        features = self._encode_in_batches(
            images, lambda rows: _unit_rows(self._raw_features(rows, tensor)), "this noise"
        )
        return Backend.of(noise).asarray(features)

    def pull_back_noise(self, images: Array, noise: Array, upstream: Array) -> Array:
        import torch

        with self._differentiable():
            tensor = self._noise_tensor(noise).clone().requires_grad_()
            gradient = self._to_compute_dtype(self._backend.asarray(upstream))
            scale, total = powers_of_two(gradient.reshape(1, -1)), torch.zeros_like(tensor, requires_grad=False)

            def add_gradient(rows: slice) -> None:
                features = _unit_rows(self._raw_features(images[rows], tensor))
                (part,) = torch.autograd.grad(features, tensor, gradient[rows] * scale)
                total.add_(part / scale[0])

            self.chunk_size = for_each_chunk(int(images.shape[0]), self.chunk_size, add_gradient)
        if not bool(total.isfinite().all()):
            raise ValueError(
                "the gradient of the noise is not finite: it exceeds the range of the image model's precision. "
                "Fix: load the encoder with dtype='float32' or 'bfloat16'."
            )
        return Backend.of(noise).asarray(total)

    def _encode_in_batches(self, images: Array, encode: Callable[[Array], torch.Tensor], what: str) -> torch.Tensor:
        """`encode` of all images, without gradients; an error about `what` if a feature is not finite."""
        import torch

        parts: list[torch.Tensor] = []
        with gradient_mode(self._backend.device, gradients=False):
            self.batch_size = for_each_chunk(
                int(images.shape[0]), self.batch_size, lambda rows: parts.append(encode(images[rows]))
            )
            features = torch.cat(parts)
        _check_finite(features, what)
        return features

    @contextmanager
    def _differentiable(self) -> Iterator[None]:
        """Gradients through the image side, but none for its weights."""
        modules = (self._model.vision_model, self._model.visual_projection)
        with gradient_mode(self._backend.device, gradients=True), freeze_parameters(modules):
            yield

    def _raw_features(self, images: Array, noise: torch.Tensor | None = None) -> torch.Tensor:
        """(B, d), not normalised."""
        states = self._states(self._pixels(images, noise), None)
        return self._to_compute_dtype(self._model.visual_projection(states))

    def _noise_tensor(self, noise: Array) -> torch.Tensor:
        if self.noise_shape is None:
            raise TypeError(f"{self!r} does not take pixels, so that no noise can be added to them.")
        if not is_array(noise) or tuple(noise.shape) != self.noise_shape:
            given = tuple(noise.shape) if is_array(noise) else type(noise).__name__
            raise ValueError(f"noise must have the shape {self.noise_shape}, that of an image; got {given}.")
        return self._to_compute_dtype(self._backend.asarray(noise))

    def _tokens(self, prompt: Array) -> torch.Tensor:
        if not is_array(prompt) or len(prompt.shape) != 2 or prompt.shape[1] != self.width or not prompt.shape[0]:
            given = tuple(prompt.shape) if is_array(prompt) else type(prompt).__name__
            raise ValueError(f"prompt must have the shape (n, {self.width}), one row per token; got {given}.")
        return self._to_compute_dtype(self._backend.asarray(prompt))

    def _to_compute_dtype(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(self._compute_dtype)

    def _pixels(self, images: Array, noise: torch.Tensor | None = None) -> torch.Tensor:
        """The input of the model, with `noise` added to the brightness, which stays from 0 to 1."""
        if noise is None:
            return self._encoder._to_device(to_numpy(images), first=True)
        import torch

        assert isinstance(self._encoder.preprocessing, PixelPreprocessing)
        black, white = torch.from_numpy(self._encoder.preprocessing.table).to(noise)[:, (0, 255), None, None].unbind(1)
        brightness = (torch.from_numpy(np.ascontiguousarray(to_numpy(images))).to(noise) / 255 + noise).clamp(0, 1)
        return (black + brightness * (white - black)).to(self._encoder.dtype)

    def _states(self, pixels: torch.Tensor, tokens: torch.Tensor | None) -> torch.Tensor:
        """(B, width) of `_pixels`, with additional `tokens`, (B, n, width) or (n, width) for all images."""
        import torch

        caller = threading.get_ident()

        def append_tokens(module: Any, arguments: Any, embeddings: torch.Tensor) -> torch.Tensor:
            if tokens is None or threading.get_ident() != caller:  # another thread uses the same model
                return embeddings
            # Position embeddings are already added, so the order does not matter, except that the class token is first.
            return torch.cat([embeddings, tokens.expand(len(embeddings), -1, -1).to(embeddings.dtype)], dim=1)

        handle = self._model.vision_model.embeddings.register_forward_hook(append_tokens)
        try:
            states: torch.Tensor = self._model.vision_model(pixel_values=pixels).pooler_output
        finally:
            handle.remove()
        return states

    def __reduce__(self) -> Any:
        refuse_pickling("vision")

    def __repr__(self) -> str:
        return f"<vision of {self._encoder!r}>"


def _check_finite(features: torch.Tensor, what: str) -> None:
    if not bool(features.isfinite().all()):
        raise ValueError(
            f"the image model returned a non-finite feature for {what}. Fix: dtype='float32' if it is "
            "narrower; otherwise smaller steps."
        )


def _unit_rows(features: torch.Tensor) -> torch.Tensor:
    return features / features.norm(dim=-1, keepdim=True)
