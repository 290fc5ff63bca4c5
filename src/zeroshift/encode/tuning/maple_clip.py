"""CLIP with MaPLe's prompts in the first layers of both sides, and the gradients of all of them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from zeroshift.arrays import Array, Home, is_array, to_numpy
from zeroshift.encode.tuning.maple_file import TrainedPrompts
from zeroshift.encode.tuning.maple_hooks import hooked, joined
from zeroshift.encode.tuning.passes import each_chunk, frozen, powers_of_two, tracing
from zeroshift.encode.tuning.vision import TokenVision
from zeroshift.methods.parts.maple_towers import CoupledPrompts, Look

if TYPE_CHECKING:
    import torch

    from zeroshift.encode.families.base import TransformersEncoder

__all__ = ["MapleClip"]

FIRST = 1
"""Where the prompt stands in a text: behind the sign that opens it."""


class MapleClip(CoupledPrompts):
    """Both sides of a CLIP encoder under MaPLe's prompts; see `load_maple`, which checks what is given here.

    A gradient is carried back a few prompts or images at a time, each chunk encoded anew: memory grows with neither.

    Parameters
    ----------
    encoder : of CLIP's form on both sides. It stays as it is, and can go on being used.
    tokens : the K tokenised prompts, whose tokens from the second on are replaced.
    trained : the prompts tuning begins with.
    chunk_size, image_chunk_size : prompts and images whose activations are held at once; halved where memory does not
        suffice.
    """

    def __init__(
        self,
        encoder: TransformersEncoder,
        tokens: Mapping[str, torch.Tensor],
        trained: TrainedPrompts,
        *,
        chunk_size: int,
        image_chunk_size: int,
    ) -> None:
        self._encoder, self._model, self._tokens = encoder, encoder.model, dict(tokens)
        self._vision, self._home = TokenVision(encoder), Home.of(tokens["input_ids"])
        self.chunk_size, self.image_chunk_size = chunk_size, image_chunk_size
        self.batch_size, self.text_batch_size = encoder.batch_size, encoder.text_batch_size
        self.depth, self.words, self._text_width = (int(size) for size in trained.prompts.shape)
        self.parameters = np.concatenate([part.reshape(self.depth, -1) for part in trained], axis=1).reshape(-1)
        self.parameters.flags.writeable = False
        self.n_classes, self.dimension = len(self._tokens["input_ids"]), encoder.dimension
        self.input_shape, self.n_layers = self._vision.input_shape, len(self._model.vision_model.encoder.layers)
        own = int(self._model.vision_model.embeddings.position_embedding.weight.shape[0])
        self.token_shape = (own + self.words, self._vision.width)
        ids = to_numpy(self._tokens["input_ids"]).astype(np.int64)
        self._identity = {
            "encoder": encoder.key(),
            "prompts": hashlib.sha256(ids.tobytes()).hexdigest()[:16],
            "maple": hashlib.sha256(self.parameters.tobytes()).hexdigest()[:16],
            "shape": [self.depth, self.words],
        }

    @property
    def identity(self) -> Mapping[str, Any]:
        return self._identity

    def check(self, name: str, images: Any) -> None:
        self._vision.check(name, images)

    def text(self, parameters: Array) -> Array:
        import torch

        parts: list[torch.Tensor] = []
        with tracing(self._home.device, gradients=False):
            prompts, _ = self._prompts(self._brought(parameters))
            self.text_batch_size = each_chunk(
                self.n_classes, self.text_batch_size, lambda rows: parts.append(self._read(prompts, rows))
            )
            return self._answer(torch.cat(parts), parameters, "the text model gave a zero or non-finite feature")

    def look(self, images: Array, parameters: Array, layers: int = 0) -> Look:
        import torch

        parts: list[Look] = []
        with tracing(self._home.device, gradients=False):
            _, prompts = self._prompts(self._brought(parameters))
            self.batch_size = each_chunk(
                int(images.shape[0]),
                self.batch_size,
                lambda rows: parts.append(self._seen(images[rows], prompts, layers)),
            )
            features, tokens = (torch.cat(tensors) for tensors in zip(*parts, strict=True))
            features = self._answer(features, parameters, "the image model gave a zero or non-finite feature")
            return Look(features, Home.of(parameters).bring(tokens))

    def pull_back_text(self, parameters: Array, upstream: Array) -> Array:
        above = self._home.bring(upstream, self._wide)

        def carried(prompts: tuple[torch.Tensor, torch.Tensor], rows: slice) -> list[tuple[torch.Tensor, torch.Tensor]]:
            return [(self._read(prompts[0], rows), above[rows])]

        total, self.chunk_size = self._pulled(parameters, self.n_classes, self.chunk_size, carried)
        return total

    def pull_back_images(self, images: Array, parameters: Array, upstream: Look) -> Array:
        to_features, to_tokens = (self._home.bring(part, self._wide) for part in upstream)
        layers = int(to_tokens.shape[1])

        def carried(prompts: tuple[torch.Tensor, torch.Tensor], rows: slice) -> list[tuple[torch.Tensor, torch.Tensor]]:
            seen = self._seen(images[rows], prompts[1], layers)
            pairs = [(seen.features, to_features[rows]), (seen.tokens, to_tokens[rows])]
            return pairs if layers else pairs[:1]

        total, self.image_chunk_size = self._pulled(parameters, int(images.shape[0]), self.image_chunk_size, carried)
        return total

    def _pulled(
        self, parameters: Array, count: int, size: int, carried: Callable[..., list[tuple[torch.Tensor, torch.Tensor]]]
    ) -> tuple[Array, int]:
        """The gradient of what `carried` gives with what comes from above, summed over chunks; and their size."""
        import torch

        with tracing(self._home.device, gradients=True), frozen([self._model]):
            flat = self._brought(parameters).clone().requires_grad_()
            total = torch.zeros_like(flat)

            def carry(rows: slice) -> None:
                found, above = zip(*carried(self._prompts(flat), rows), strict=True)
                # As one power of two brings them into the range of half precision; in float32 no bit changes.
                scale = powers_of_two(torch.cat([part.reshape(1, -1) for part in above], dim=1))[0, 0]
                (part,) = torch.autograd.grad(found, flat, [one * scale for one in above])
                total.add_(part / scale)

            size = each_chunk(count, size, carry)
            return self._answer(total, parameters, "the gradient of the prompts is not finite"), size

    def _read(self, prompts: torch.Tensor, rows: slice) -> torch.Tensor:
        """(n, d) unit features of the texts `rows`, under prompts (D, words, text width)."""

        def put(found: torch.Tensor, layer: int) -> torch.Tensor:
            return joined(found[:, :FIRST], prompts[layer], found[:, FIRST + self.words :])

        text = self._model.text_model
        with hooked(text.embeddings.token_embedding, text.encoder.layers[: self.depth], put):
            output = self._model.get_text_features(**{name: tensor[rows] for name, tensor in self._tokens.items()})
        return self._unit(output.pooler_output)

    def _seen(self, images: Array, prompts: torch.Tensor, layers: int) -> Look:
        """Unit features and tokens, under prompts (D, words, image width)."""
        import torch

        on_the_way: list[torch.Tensor] = []

        def put(found: torch.Tensor, layer: int) -> torch.Tensor:
            if layer == 0:
                return joined(found, prompts[0], found[:, :0])
            return joined(found[:, : -self.words], prompts[layer], found[:, :0]) if layer < self.depth else found

        vision, pixels = self._model.vision_model, self._encoder._to_device(to_numpy(images), first=True)
        watched = vision.encoder.layers[: max(self.depth, layers)]
        with hooked(vision.embeddings, watched, put, on_the_way):
            output = self._model.get_image_features(pixel_values=pixels)
        empty = self._home.zeros((len(pixels), 0, *self.token_shape), self._wide)
        tokens = torch.stack(on_the_way[:layers], dim=1).to(self._wide) if layers else empty
        return Look(self._unit(output.pooler_output), tokens)

    def _prompts(self, flat: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Those of the text side (D, words, text width), and those the projections make of them for the images'."""
        import torch

        rows, width = flat.reshape(self.depth, -1), self.token_shape[1]
        sizes = [self.words * self._text_width, width * self._text_width, width]
        prompts, weights, biases = torch.split(rows, sizes, dim=1)
        prompts = prompts.reshape(self.depth, self.words, -1)
        return prompts, prompts @ weights.reshape(self.depth, width, -1).mT + biases[:, None, :]

    def _brought(self, parameters: Array) -> torch.Tensor:
        if not is_array(parameters) or tuple(parameters.shape) != self.parameters.shape:
            given = tuple(parameters.shape) if is_array(parameters) else type(parameters).__name__
            raise ValueError(
                f"parameters must have the shape {self.parameters.shape}; got {given}. Fix: maple.parameters."
            )
        tensor: torch.Tensor = self._home.bring(parameters, self._wide)
        return tensor

    def _answer(self, found: torch.Tensor, like: Array, fault: str) -> Array:
        if not bool(found.isfinite().all()):
            raise ValueError(f"{fault}. Fix: dtype='float32' if the encoder has a narrower one; else smaller steps.")
        return Home.of(like).bring(found)

    @property
    def _wide(self) -> torch.dtype:
        """float32, or as the model where that is wider: a step of tuning is smaller than half precision's grain."""
        import torch

        return torch.promote_types(self._encoder.dtype, torch.float32)

    def _unit(self, found: torch.Tensor) -> torch.Tensor:
        found = found.to(self._wide)
        return found / found.norm(dim=-1, keepdim=True)

    def __repr__(self) -> str:
        return f"<MaPLe in {self._encoder!r}: {self.n_classes} classes, {self.words} tokens in {self.depth} layers>"
