"""Prompts in the first layers of both encoders of CLIP: for MaPLe, whose prompts are coupled, and PromptSRC."""

from __future__ import annotations

import hashlib
import threading
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from zeroshift.arrays import Array, Backend, is_array, to_numpy
from zeroshift.encode.encoder import Encoder, warn_truncated
from zeroshift.encode.prompts.templates import SLOT, check_template, fill_template
from zeroshift.encode.prompts.user_text import clean_name
from zeroshift.encode.tuning.autograd_utils import (
    expect_out_of_memory,
    for_each_chunk,
    freeze_parameters,
    gradient_mode,
    powers_of_two,
)
from zeroshift.encode.tuning.text import CHUNK, check_class_names
from zeroshift.encode.tuning.text_models import text_model_parts
from zeroshift.encode.tuning.vision import CHUNK as IMAGE_CHUNK
from zeroshift.encode.tuning.vision import TokenVision, prompted_vision
from zeroshift.methods._shared.towers import DeepPrompts, IndependentPrompts, LayerOutput
from zeroshift.parameters import Flag, Number

if TYPE_CHECKING:
    import torch

    from zeroshift.encode.families.base import TransformersEncoder

__all__ = [
    "DeepClip",
    "check_clip",
    "check_names",
    "deep_prompts",
    "insert_prompts",
    "insert_tokens",
    "tokenize_prompts",
]

TEMPLATE = "a photo of a {}."
"""The template of MaPLe and PromptSRC, whose first tokens are tuned."""

DEPTH = 9
"""PromptSRC's number of layers with prompts; its authors use 3 to train on one data set for others."""

WORDS = 4

SPREAD = 0.02
"""Standard deviation of the initial prompts, except the words."""

_COUNT = Number(1, integer=True)


def deep_prompts(
    encoder: Encoder,
    class_names: Sequence[str],
    *,
    template: str = TEMPLATE,
    words: int = WORDS,
    depth: int = DEPTH,
    seed: int = 0,
    chunk_size: int = CHUNK,
    image_chunk_size: int = IMAGE_CHUNK,
    repeated_names: bool = False,
) -> IndependentPrompts:
    """Both encoders of `encoder` with prompts in their first layers, for `PromptSRC`.

    The prompt of the first layer of the text encoder is the beginning of the template; all others are random. The
    encoder itself is not changed, and can be used meanwhile.

    Parameters
    ----------
    encoder : of the family clip or metaclip.
    class_names : in label order.
    template : the prompt, with {} for the name; its first tokens are tuned.
    words : tokens per layer and side.
    depth : layers with prompts in each encoder, the input of the first included.
    seed : of the random prompts.
    chunk_size, image_chunk_size : prompts and images per chunk of a gradient; halved when memory runs out.
    repeated_names : allow repeated names, as in ImageNet's list.
    """
    import torch

    model = check_clip(encoder)
    sizes = {"words": words, "depth": depth, "chunk_size": chunk_size, "image_chunk_size": image_chunk_size}
    words, depth, chunk_size, image_chunk_size = (int(_COUNT.check(name, size)) for name, size in sizes.items())
    seed = int(Number(0, integer=True).check("seed", seed))
    names = check_names(class_names, repeated_names)
    layers = min(len(model.text_model.encoder.layers), len(model.vision_model.encoder.layers))
    if depth > layers:
        raise ValueError(f"depth must be at most the {layers} layers of the encoder; got {depth}. Fix: depth={layers}.")
    with torch.inference_mode(False):
        tokens = tokenize_prompts(encoder, names, template, words, "which are tuned", "fewer words")
        first = to_numpy(
            model.text_model.embeddings.token_embedding(tokens["input_ids"][:1, PROMPT_START : PROMPT_START + words])
            .detach()
            .float()
        )[0]
        draw = np.random.default_rng(seed)
        text = draw.normal(scale=SPREAD, size=(depth, words, first.shape[1]))
        text[0] = first
        image_width = int(model.vision_model.post_layernorm.weight.shape[0])
        image = draw.normal(scale=SPREAD, size=(depth, words, image_width))
        parameters = np.concatenate([text.reshape(-1), image.reshape(-1)]).astype(np.float32)
        return _IndependentClip(
            encoder, tokens, parameters, depth=depth, words=words, chunk_size=chunk_size,
            image_chunk_size=image_chunk_size,
        )  # fmt: skip


def check_clip(encoder: Encoder) -> Any:
    """The model of an encoder with CLIP's two transformers; an error for others."""
    prompted_vision(encoder)  # raises for other objects and other image encoders
    model: Any = encoder.model  # type: ignore[attr-defined]
    text = model.text_model
    if not hasattr(text, "final_layer_norm") or not hasattr(text.embeddings, "token_embedding"):
        raise TypeError(
            f"encoder must have CLIP's text transformer; got {encoder!r} of the family {encoder.family!r}. "
            "Fix: use one of the families clip, metaclip."
        )
    return model


def check_names(class_names: Sequence[str], repeated_names: bool) -> tuple[str, ...]:
    return check_class_names(class_names, repeated=bool(Flag().check("repeated_names", repeated_names)))


def tokenize_prompts(
    encoder: Encoder, names: Sequence[str], template: str, n_tokens: int, purpose: str, fix: str
) -> Mapping[str, torch.Tensor]:
    """The tokens of each class's prompt. An error if the template has fewer than `n_tokens` before the name."""
    template = check_template(template)
    text = text_model_parts(encoder, template)
    available = len(text.ids(template.split(SLOT)[0].rstrip()))
    if available < n_tokens:
        raise ValueError(
            f"template must have at least {n_tokens} tokens before {SLOT}, {purpose}; {template!r} has {available}. "
            f"Fix: {fix}."
        )
    prompts = [fill_template(template, clean_name(name)) for name in names]
    if n_long := encoder.count_too_long(prompts):
        warn_truncated(n_long, len(prompts), encoder.text_length)
    return text.tokens(prompts)


def insert_tokens(before: torch.Tensor, prompt: torch.Tensor, after: torch.Tensor) -> torch.Tensor:
    """Concatenate tokens (B, ...) with the same prompt (n, width) between them in every row."""
    import torch

    return torch.cat([before, prompt.expand(len(before), -1, -1).to(before.dtype), after], dim=1)


@contextmanager
def insert_prompts(
    embeddings: torch.nn.Module,
    layers: Any,
    insert: Callable[[torch.Tensor, int], torch.Tensor],
    layer_inputs: list[torch.Tensor] | None = None,
) -> Iterator[None]:
    """In this block, `insert` changes the output of the embeddings (layer 0) and the input of the later layers (1, 2,
    ...). The input of each layer is appended to `layer_inputs`. Other threads that use the model are not affected."""
    caller = threading.get_ident()

    def change_embeddings(module: Any, arguments: Any, embeddings: torch.Tensor) -> torch.Tensor:
        return embeddings if threading.get_ident() != caller else insert(embeddings, 0)

    def change_input(layer: int) -> Callable[..., Any]:
        def hook(module: Any, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
            if threading.get_ident() != caller:
                return arguments
            hidden = insert(arguments[0], layer) if layer else arguments[0]
            if layer_inputs is not None:
                layer_inputs.append(hidden)
            return (hidden, *arguments[1:])

        return hook

    with ExitStack() as stack:
        stack.callback(embeddings.register_forward_hook(change_embeddings).remove)
        for number, layer in enumerate(layers):
            stack.callback(layer.register_forward_pre_hook(change_input(number)).remove)
        yield


PROMPT_START = 1
"""Position of the prompt in a text: after the start token."""


class DeepClip(DeepPrompts):
    """Both encoders of CLIP with prompts in their first layers. A subclass defines `_prompts`.

    Gradients are computed in chunks of prompts or images, each of which is encoded again, so that memory does not grow.

    Parameters
    ----------
    encoder : with CLIP's image and text encoders. It is not changed, and can be used meanwhile.
    tokens : the K tokenized prompts, whose tokens from the second on are replaced.
    parameters : what is tuned, (P,).
    depth, words : layers with prompts, and tokens in each of them.
    chunk_size, image_chunk_size : prompts and images per chunk of a gradient; halved when memory runs out.
    """

    argument: str
    """Name of the parameter of a method that takes it."""

    def __init__(
        self,
        encoder: Any,
        tokens: Mapping[str, torch.Tensor],
        parameters: np.ndarray,
        *,
        depth: int,
        words: int,
        chunk_size: int,
        image_chunk_size: int,
    ) -> None:
        self._encoder: TransformersEncoder = encoder
        self._model, self._tokens = encoder.model, dict(tokens)
        self._vision, self._backend = TokenVision(encoder), Backend.of(tokens["input_ids"])
        self.chunk_size, self.image_chunk_size = chunk_size, image_chunk_size
        self.batch_size, self.text_batch_size = encoder.batch_size, encoder.text_batch_size
        self.depth, self.words, self.parameters = depth, words, parameters
        self.parameters.flags.writeable = False
        self._text_width = int(self._model.text_model.final_layer_norm.weight.shape[0])
        self.n_classes, self.dimension = len(self._tokens["input_ids"]), encoder.dimension
        self.input_shape, self.n_layers = self._vision.input_shape, len(self._model.vision_model.encoder.layers)
        n_image_tokens = int(self._model.vision_model.embeddings.position_embedding.weight.shape[0])
        self.token_shape = (n_image_tokens + self.words, self._vision.width)
        ids = to_numpy(self._tokens["input_ids"]).astype(np.int64)
        self._identity = {
            "encoder": encoder.key(),
            "prompts": hashlib.sha256(ids.tobytes()).hexdigest()[:16],
            self.argument: hashlib.sha256(self.parameters.tobytes()).hexdigest()[:16],
            "shape": [self.depth, self.words],
        }

    @abstractmethod
    def _prompts(self, flat: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The prompts of the text encoder (D, words, text width), and of the image encoder (D, words, image width)."""

    @property
    def identity(self) -> Mapping[str, Any]:
        return self._identity

    def check(self, name: str, images: Any) -> None:
        self._vision.check(name, images)

    def text(self, parameters: Array) -> Array:
        import torch

        parts: list[torch.Tensor] = []
        with gradient_mode(self._backend.device, gradients=False):
            prompts, _ = self._prompts(self._to_device(parameters))
            self.text_batch_size = for_each_chunk(
                self.n_classes, self.text_batch_size, lambda rows: parts.append(self._encode_text(prompts, rows))
            )
            return self._check_finite(
                torch.cat(parts), parameters, "the text model returned a zero or non-finite feature"
            )

    def encode_images(self, images: Array, parameters: Array, layers: int = 0) -> LayerOutput:
        import torch

        parts: list[LayerOutput] = []
        with gradient_mode(self._backend.device, gradients=False):
            _, prompts = self._prompts(self._to_device(parameters))
            self.batch_size = for_each_chunk(
                int(images.shape[0]),
                self.batch_size,
                lambda rows: parts.append(self._encode_images(images[rows], prompts, layers)),
            )
            features, tokens = (torch.cat(tensors) for tensors in zip(*parts, strict=True))
            features = self._check_finite(features, parameters, "the image model returned a zero or non-finite feature")
            return LayerOutput(features, Backend.of(parameters).asarray(tokens))

    def pull_back_text(self, parameters: Array, upstream: Array) -> Array:
        gradient = self._backend.asarray(upstream, self._compute_dtype)

        def outputs(prompts: tuple[torch.Tensor, torch.Tensor], rows: slice) -> list[tuple[torch.Tensor, torch.Tensor]]:
            return [(self._encode_text(prompts[0], rows), gradient[rows])]

        total, self.chunk_size = self._gradient(parameters, self.n_classes, self.chunk_size, outputs)
        return total

    def pull_back_images(self, images: Array, parameters: Array, upstream: LayerOutput) -> Array:
        feature_gradient, token_gradient = (self._backend.asarray(part, self._compute_dtype) for part in upstream)
        layers = int(token_gradient.shape[1])

        def outputs(prompts: tuple[torch.Tensor, torch.Tensor], rows: slice) -> list[tuple[torch.Tensor, torch.Tensor]]:
            output = self._encode_images(images[rows], prompts[1], layers)
            pairs = [(output.features, feature_gradient[rows]), (output.tokens, token_gradient[rows])]
            return pairs if layers else pairs[:1]

        total, self.image_chunk_size = self._gradient(parameters, int(images.shape[0]), self.image_chunk_size, outputs)
        return total

    def linearize(self, images: Array, parameters: Array) -> tuple[Array, Array, Callable[[Array, Array], Array]]:
        import torch

        if self.n_classes > self.chunk_size or int(images.shape[0]) > self.image_chunk_size:
            return super().linearize(images, parameters)
        graph: list[torch.Tensor] = []
        with (
            gradient_mode(self._backend.device, gradients=True),
            freeze_parameters([self._model]),
            expect_out_of_memory(),
        ):
            flat = self._to_device(parameters).clone().requires_grad_()
            text_prompts, image_prompts = self._prompts(flat)
            graph += [
                self._encode_text(text_prompts, slice(None)),
                self._encode_images(images, image_prompts, 0).features,
                flat,
            ]
        if not graph:
            return super().linearize(images, parameters)

        def pull_back(to_text: Array, to_features: Array) -> Array:
            gradients = [self._backend.asarray(part, self._compute_dtype) for part in (to_text, to_features)]
            if graph:
                with expect_out_of_memory():
                    # One power of two scales them to the range of half precision; in float32 no bit changes.
                    scale = powers_of_two(torch.cat([part.reshape(1, -1) for part in gradients], dim=1))[0, 0]
                    scaled = [gradient * scale for gradient in gradients]
                    (total,) = torch.autograd.grad(graph[:2], graph[2], scaled, retain_graph=True)
                    return self._check_finite(total / scale, parameters, "the gradient of the prompts is not finite")
                graph.clear()  # no room for its gradient
            no_tokens = LayerOutput(to_features, gradients[1].new_zeros((len(gradients[1]), 0, *self.token_shape)))
            return self.pull_back_text(parameters, to_text) + self.pull_back_images(images, parameters, no_tokens)

        text, features = (
            self._check_finite(part.detach(), parameters, f"the {name} model returned a zero or non-finite feature")
            for part, name in zip(graph[:2], ("text", "image"), strict=True)
        )
        return text, features, pull_back

    def _gradient(
        self, parameters: Array, count: int, size: int, outputs: Callable[..., list[tuple[torch.Tensor, torch.Tensor]]]
    ) -> tuple[Array, int]:
        """The gradient of the pairs (output, upstream gradient) of `outputs`, summed over chunks; the chunk size."""
        import torch

        with gradient_mode(self._backend.device, gradients=True), freeze_parameters([self._model]):
            flat = self._to_device(parameters).clone().requires_grad_()
            total = torch.zeros_like(flat)

            def add_gradient(rows: slice) -> None:
                values, gradients = zip(*outputs(self._prompts(flat), rows), strict=True)
                # One power of two scales them to the range of half precision; in float32 no bit changes.
                scale = powers_of_two(torch.cat([part.reshape(1, -1) for part in gradients], dim=1))[0, 0]
                (part,) = torch.autograd.grad(values, flat, [gradient * scale for gradient in gradients])
                total.add_(part / scale)

            size = for_each_chunk(count, size, add_gradient)
            return self._check_finite(total, parameters, "the gradient of the prompts is not finite"), size

    def _encode_text(self, prompts: torch.Tensor, rows: slice) -> torch.Tensor:
        """(n, d) unit features of the texts `rows` with prompts (D, words, text width)."""

        def insert(hidden: torch.Tensor, layer: int) -> torch.Tensor:
            return insert_tokens(hidden[:, :PROMPT_START], prompts[layer], hidden[:, PROMPT_START + self.words :])

        text = self._model.text_model
        with insert_prompts(text.embeddings.token_embedding, text.encoder.layers[: self.depth], insert):
            output = self._model.get_text_features(**{name: tensor[rows] for name, tensor in self._tokens.items()})
        return self._unit(output.pooler_output)

    def _encode_images(self, images: Array, prompts: torch.Tensor, layers: int) -> LayerOutput:
        """Unit features and tokens with prompts (D, words, image width)."""
        import torch

        layer_inputs: list[torch.Tensor] = []

        def insert(hidden: torch.Tensor, layer: int) -> torch.Tensor:
            if layer == 0:
                return insert_tokens(hidden, prompts[0], hidden[:, :0])
            return (
                insert_tokens(hidden[:, : -self.words], prompts[layer], hidden[:, :0]) if layer < self.depth else hidden
            )

        vision, pixels = self._model.vision_model, self._encoder._to_device(to_numpy(images), first=True)
        hooked_layers = vision.encoder.layers[: max(self.depth, layers)]
        with insert_prompts(vision.embeddings, hooked_layers, insert, layer_inputs):
            output = self._model.get_image_features(pixel_values=pixels)
        empty = self._backend.zeros((len(pixels), 0, *self.token_shape), self._compute_dtype)
        tokens = torch.stack(layer_inputs[:layers], dim=1).to(self._compute_dtype) if layers else empty
        return LayerOutput(self._unit(output.pooler_output), tokens)

    def _to_device(self, parameters: Array) -> torch.Tensor:
        if not is_array(parameters) or tuple(parameters.shape) != self.parameters.shape:
            given = tuple(parameters.shape) if is_array(parameters) else type(parameters).__name__
            raise ValueError(
                f"parameters must have the shape {self.parameters.shape}; got {given}. Fix: {self.argument}.parameters."
            )
        tensor: torch.Tensor = self._backend.asarray(parameters, self._compute_dtype)
        return tensor

    def _check_finite(self, values: torch.Tensor, like: Array, problem: str) -> Array:
        if not bool(values.isfinite().all()):
            raise ValueError(f"{problem}. Fix: dtype='float32' if the encoder's is narrower; otherwise smaller steps.")
        return Backend.of(like).asarray(values)

    @property
    def _compute_dtype(self) -> torch.dtype:
        """At least float32: tuning steps are smaller than the rounding of half precision."""
        import torch

        return torch.promote_types(self._encoder.dtype, torch.float32)

    def _unit(self, features: torch.Tensor) -> torch.Tensor:
        features = features.to(self._compute_dtype)
        return features / features.norm(dim=-1, keepdim=True)


class _IndependentClip(DeepClip, IndependentPrompts):
    """The prompts of both sides, one after the other."""

    argument = "towers"

    def encode_without_prompts(self, images: Array) -> Array:
        return self._vision.encode(images, None).features

    def _prompts(self, flat: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        cut = self.depth * self.words * self._text_width
        text, image = flat[:cut], flat[cut:]
        return text.reshape(self.depth, self.words, -1), image.reshape(self.depth, self.words, -1)

    def __repr__(self) -> str:
        prompts = f"{self.words} tokens in {self.depth} layers of each side"
        return f"<deep prompts in {self._encoder!r}: {self.n_classes} classes, {prompts}>"
