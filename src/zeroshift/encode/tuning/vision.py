"""The image side of a CLIP encoder with tokens that can be tuned: gradients in chunks of images."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from zeroshift.arrays import Array, Home, is_array, namespace, to_numpy
from zeroshift.encode.encoder import Encoder
from zeroshift.encode.families.base import TransformersEncoder
from zeroshift.encode.preprocessing import PixelPreprocessing
from zeroshift.encode.tuning.autograd_utils import each_chunk, frozen, powers_of_two, tracing, unpicklable
from zeroshift.methods._shared.towers import Patches, PromptedVision, VisionOutput
from zeroshift.parameters import Number

if TYPE_CHECKING:
    import torch

__all__ = ["CHUNK", "TokenVision", "prompted_vision"]

CHUNK = 16
"""Images whose activations are held at once for a gradient."""

FAMILIES = ("clip", "metaclip", "altclip", "chinese_clip")
"""Whose vision transformers are CLIP's, in the transformers library."""

LAYERS = ("embeddings", "pre_layrnorm", "encoder", "post_layernorm")
"""What such a one is made of, in that library's spelling."""


def prompted_vision(encoder: Encoder, *, chunk_size: int = CHUNK) -> PromptedVision:
    """The image side of `encoder`, with tokens to be tuned among those of each image.

    Without a prompt its features are those of `encoder.encode_pixels`. The encoder itself stays as it is, and can go on
    being used.

    Parameters
    ----------
    encoder : with a vision transformer of CLIP's form: of the families clip, metaclip, altclip and chinese_clip.
    chunk_size : images whose activations are held at once for a gradient; halved where memory does not suffice.
    """
    if not isinstance(encoder, Encoder):
        raise TypeError(
            f"encoder must be a loaded encoder; got {type(encoder).__name__}. Fix: zeroshift.encode.load_encoder(...)."
        )
    vision = getattr(getattr(encoder, "model", None), "vision_model", None)
    whole = (
        isinstance(encoder, TransformersEncoder)
        and hasattr(encoder.model, "visual_projection")
        and all(hasattr(vision, layer) for layer in LAYERS)
        and hasattr(getattr(vision, "embeddings", None), "class_embedding")
    )
    if not whole:
        raise TypeError(
            "encoder must have a vision transformer of CLIP's form, whose class token attends to tokens put beside it; "
            f"got {encoder!r} of the family {encoder.family!r}. Fix: one of the families {', '.join(FAMILIES)}; or "
            "vision=None, for a method that can do without."
        )
    assert isinstance(encoder, TransformersEncoder)
    return TokenVision(encoder, chunk_size=chunk_size)


class TokenVision(PromptedVision):
    """A vision transformer that is given more tokens than an image's own; see `prompted_vision`.

    Images are (B, 3, H, W) as the encoder's preprocessing makes them: bytes, or numbers between 0 and 255.
    """

    def __init__(self, encoder: TransformersEncoder, *, chunk_size: int = CHUNK) -> None:
        self._encoder, self._model = encoder, encoder.model
        self.chunk_size = int(Number(1, integer=True).check("chunk_size", chunk_size))
        self.batch_size = encoder.batch_size
        self.dimension = encoder.dimension
        self.input_shape = (3, *encoder.preprocessing.size)
        weights = self._model.vision_model.embeddings.patch_embedding.weight.detach()
        self.width = int(weights.shape[0])
        wide = to_numpy(weights).astype("float64")
        self.patches = Patches(int(wide[0].size), float(wide.mean()), float(wide.std(ddof=1)))
        self._home = Home.of(weights)

    @property
    def identity(self) -> Mapping[str, Any]:
        return {"encoder": self._encoder.key()}

    def check(self, name: str, images: Any) -> None:
        if not is_array(images):
            raise TypeError(
                f"{name} must be a NumPy array or a torch tensor; got {type(images).__name__}. "
                "Fix: encoder.preprocessing(image)[0] for each image, stacked."
            )
        if not images.shape or tuple(images.shape[1:]) != self.input_shape or not images.shape[0]:
            raise ValueError(
                f"{name} must have the shape (B, {', '.join(map(str, self.input_shape))}), at least one image, as the "
                f"model takes them; got {tuple(images.shape)}. Fix: encoder.preprocessing(image)[0] for each, stacked."
            )
        xp = namespace(images)
        if images.dtype == xp.uint8:
            return
        if not xp.isdtype(images.dtype, "real floating"):
            raise TypeError(f"{name} must hold bytes (uint8) or floating-point numbers; got {images.dtype}.")
        pixels = isinstance(self._encoder.preprocessing, PixelPreprocessing)
        for start in range(0, images.shape[0], self.batch_size):
            block = images[start : start + self.batch_size]
            # NaN is neither above nor below anything.
            fine = (block >= 0) & (block <= 255) if pixels else xp.isfinite(block)
            fine = to_numpy(xp.all(fine, axis=(1, 2, 3)))
            if not fine.all():
                raise ValueError(
                    f"{name}[{start + int(fine.argmin())}] holds NaN, infinity or a number outside 0 to 255. "
                    "Fix: pixels as encoder.preprocessing makes them, not yet scaled to the model's mean and spread."
                )

    def encode(self, images: Array, prompt: Array | None) -> VisionOutput:
        import torch

        parts: list[VisionOutput] = []
        with tracing(self._home.device, gradients=False):
            tokens = None if prompt is None else self._tokens(prompt)

            def look(rows: slice) -> None:
                states = self._states(images[rows], tokens)
                found = self._wide(self._model.visual_projection(states))
                parts.append(VisionOutput(found / found.norm(dim=-1, keepdim=True), self._wide(states)))

            self.batch_size = each_chunk(int(images.shape[0]), self.batch_size, look)
            features, states = (torch.cat(tensors) for tensors in zip(*parts, strict=True))
        if not bool(features.isfinite().all()):
            raise ValueError(
                "the image model gave a zero or non-finite feature under this prompt. Fix: dtype='float32' if a "
                "narrower one was asked for; else smaller steps."
            )
        caller = Home.of(images if prompt is None else prompt)
        return VisionOutput(caller.bring(features), caller.bring(states))

    def pull_back(self, images: Array, prompt: Array, upstream: Array) -> Array:
        import torch

        modules = (self._model.vision_model,)
        with tracing(self._home.device, gradients=True), frozen(modules):
            tokens, above = self._tokens(prompt), self._wide(self._home.bring(upstream))
            scales, total = powers_of_two(above), torch.zeros_like(tokens)

            def carry(rows: slice) -> None:
                # Every image has tokens of its own here, so that each one's gradient can be scaled by itself.
                own = tokens.expand(len(above[rows]), -1, -1).clone().requires_grad_()
                states = self._wide(self._states(images[rows], own))
                (part,) = torch.autograd.grad(states, own, above[rows] * scales[rows])
                total.add_((part / scales[rows, :, None]).sum(dim=0))

            self.chunk_size = each_chunk(int(images.shape[0]), self.chunk_size, carry)
        if not bool(total.isfinite().all()):
            raise ValueError(
                "the gradient of the prompt is not finite: it left the range of the image model's precision. "
                "Fix: load the encoder with dtype='float32' or 'bfloat16'."
            )
        return Home.of(prompt).bring(total)

    def _tokens(self, prompt: Array) -> torch.Tensor:
        if not is_array(prompt) or len(prompt.shape) != 2 or prompt.shape[1] != self.width or not prompt.shape[0]:
            given = tuple(prompt.shape) if is_array(prompt) else type(prompt).__name__
            raise ValueError(f"prompt must have the shape (n, {self.width}), a row for each token; got {given}.")
        return self._wide(self._home.bring(prompt))

    def _wide(self, tensor: torch.Tensor) -> torch.Tensor:
        """In float32, or as the model where that is wider: a step of tuning is smaller than half precision's grain."""
        import torch

        return tensor.to(torch.promote_types(self._encoder.dtype, torch.float32))

    def _states(self, images: Array, tokens: torch.Tensor | None) -> torch.Tensor:
        """(B, width), with `tokens` (B, n, width) or the same for all, without the B."""
        import torch

        caller = threading.get_ident()

        def joined(module: Any, arguments: Any, found: torch.Tensor) -> torch.Tensor:
            if tokens is None or threading.get_ident() != caller:  # someone else's images, through the same model
                return found
            # Positions are already added and attention knows no order: tokens behind the image's own are as well placed
            # as between the class token and the patches. The class token must stay the first.
            return torch.cat([found, tokens.expand(len(found), -1, -1).to(found.dtype)], dim=1)

        pixels = self._encoder._to_device(to_numpy(images), first=True)
        handle = self._model.vision_model.embeddings.register_forward_hook(joined)
        try:
            states: torch.Tensor = self._model.vision_model(pixel_values=pixels).pooler_output
        finally:
            handle.remove()
        return states

    def __reduce__(self) -> Any:
        unpicklable("vision")

    def __repr__(self) -> str:
        return f"<vision of {self._encoder!r}>"
