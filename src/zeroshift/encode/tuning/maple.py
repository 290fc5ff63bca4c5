"""`load_maple`: a CLIP encoder with MaPLe's trained prompts in the first layers of both encoders, for PromptAlign."""

from __future__ import annotations

import hashlib
import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from zeroshift.arrays import Array, Backend, is_array, to_numpy
from zeroshift.encode.encoder import Encoder, warn_truncated
from zeroshift.encode.families.base import TransformersEncoder
from zeroshift.encode.prompts.templates import SLOT, check_template, fill_template
from zeroshift.encode.prompts.user_text import clean_name
from zeroshift.encode.tuning.autograd_utils import for_each_chunk, freeze_parameters, gradient_mode, powers_of_two
from zeroshift.encode.tuning.text import CHUNK, check_class_names
from zeroshift.encode.tuning.text_models import text_model_parts
from zeroshift.encode.tuning.vision import CHUNK as IMAGE_CHUNK
from zeroshift.encode.tuning.vision import TokenVision, prompted_vision
from zeroshift.files import FileFormatError
from zeroshift.methods._shared.towers import CoupledPrompts, LayerOutput
from zeroshift.parameters import Flag, Number

if TYPE_CHECKING:
    import torch

    from zeroshift.encode.families.base import TransformersEncoder

__all__ = [
    "MapleClip",
    "TokenStatistics",
    "TrainedPrompts",
    "insert_prompts",
    "insert_tokens",
    "load_maple",
    "maple_statistics",
    "read_maple",
]


TEMPLATE = "a photo of a {}."
"""MaPLe's template; its two prompt tokens replace "a photo"."""

_COUNT = Number(1, integer=True)


def load_maple(
    encoder: Encoder,
    checkpoint: str | os.PathLike[str],
    class_names: Sequence[str],
    *,
    template: str = TEMPLATE,
    chunk_size: int = CHUNK,
    image_chunk_size: int = IMAGE_CHUNK,
    repeated_names: bool = False,
) -> CoupledPrompts:
    """Both encoders of `encoder` with the prompts of a MaPLe checkpoint, for `PromptAlign`.

    The encoder itself is not changed, and can be used meanwhile.

    Parameters
    ----------
    encoder : of the family clip or metaclip; the model the prompts were trained with (ViT-B/16 for the authors').
    checkpoint : a file of the authors' code, a torch file whose "state_dict" has the keys `prompt_learner.ctx`,
        `prompt_learner.proj.weight` and so on, or a .safetensors file with the same keys. No code in it is executed.
    class_names : in label order; they may differ from those of the training.
    template : the prompt; its first tokens are replaced by those of the checkpoint. For prompts with a random
        initialisation, it has an "X" for each token: "X X {}.".
    chunk_size, image_chunk_size : prompts and images per chunk of a gradient; halved when memory runs out.
    repeated_names : allow repeated names, as in ImageNet's list.
    """
    import torch

    model = _validate_encoder(encoder)
    assert isinstance(encoder, TransformersEncoder)
    chunk_size = int(_COUNT.check("chunk_size", chunk_size))
    image_chunk_size = int(_COUNT.check("image_chunk_size", image_chunk_size))
    names = check_class_names(class_names, repeated=bool(Flag().check("repeated_names", repeated_names)))
    template = check_template(template)
    trained = read_maple(checkpoint)
    _check_fit(model, trained, checkpoint)
    text = text_model_parts(encoder, template)
    n_tokens, available = trained.prompts.shape[1], len(text.ids(template.split(SLOT)[0].rstrip()))
    if available < n_tokens:
        raise ValueError(
            f"template must have at least {n_tokens} tokens before {SLOT}, which the checkpoint's replace; "
            f"{template!r} has {available}. Fix: {' '.join('X' * n_tokens)!r} before {SLOT}, if they were random."
        )
    prompts = [fill_template(template, clean_name(name)) for name in names]
    if n_long := encoder.count_too_long(prompts):
        warn_truncated(n_long, len(prompts), encoder.text_length)
    with torch.inference_mode(False):
        tokens = text.tokens(prompts)
        return MapleClip(encoder, tokens, trained, chunk_size=chunk_size, image_chunk_size=image_chunk_size)


def _validate_encoder(encoder: Encoder) -> Any:
    prompted_vision(encoder)  # raises for other objects and other image encoders
    model: Any = encoder.model  # type: ignore[attr-defined]
    text = model.text_model
    if not hasattr(text, "final_layer_norm") or not hasattr(text.embeddings, "token_embedding"):
        raise TypeError(
            f"encoder must have CLIP's text transformer; got {encoder!r} of the family {encoder.family!r}. "
            "Fix: use one of the families clip, metaclip."
        )
    return model


def _check_fit(model: Any, trained: TrainedPrompts, checkpoint: str | os.PathLike[str]) -> None:
    depth, _, text_width = trained.prompts.shape
    text, vision = model.text_model, model.vision_model
    widths = (int(text.final_layer_norm.weight.shape[0]), int(vision.post_layernorm.weight.shape[0]))
    if (text_width, trained.weights.shape[1]) != widths:
        raise ValueError(
            f"{checkpoint} has prompts of width {text_width} for text and {trained.weights.shape[1]} for images, "
            f"the encoder's widths are {widths[0]} and {widths[1]}. Fix: use the encoder they were trained with."
        )
    layers = min(len(text.encoder.layers), len(vision.encoder.layers))
    if depth > layers:
        raise ValueError(
            f"{checkpoint} has prompts for {depth} layers, the encoder has {layers}. "
            "Fix: use the encoder they were trained with."
        )


LAYERS = 3
"""Number of layers that PromptAlign aligns."""

BATCH = 32


class TokenStatistics(NamedTuple):
    """PromptAlign's `source`: statistics of each token and channel in the first L layers of the image encoder."""

    means: np.ndarray
    """(L, T, width)."""
    variances: np.ndarray
    """(L, T, width), divided by the number of images."""


def maple_statistics(
    maple: CoupledPrompts, images: Array | Iterable[Array], *, layers: int = LAYERS, batch_size: int = BATCH
) -> TokenStatistics:
    """Means and variances of tokens with the trained prompts, over images of the source domain; labels are not needed.

    Parameters
    ----------
    maple : the result of `load_maple`. Its classes do not matter.
    images : (N, 3, H, W) as the encoder's preprocessing returns them, or an iterable of such batches. The authors use
        ImageNet's training set.
    layers : L, the number of layers.
    batch_size : images per batch.
    """
    if not isinstance(maple, CoupledPrompts):
        raise TypeError(f"maple must be CoupledPrompts; got {type(maple).__name__}. Fix: zeroshift.encode.load_maple.")
    layers = int(Number(1, maple.n_layers, integer=True).check("layers", layers))
    batch_size = int(Number(1, integer=True).check("batch_size", batch_size))
    count, shape = 0, (layers, *maple.token_shape)
    means, squares = np.zeros(shape), np.zeros(shape)
    for number, batch in enumerate([images] if is_array(images) else images):
        maple.check("images" if is_array(images) else f"images, batch {number}: it", batch)
        for start in range(0, batch.shape[0], batch_size):
            tokens = maple.encode_images(batch[start : start + batch_size], maple.parameters, layers).tokens
            values = to_numpy(tokens).astype(np.float64)
            # Means and centred sums of squares are merged, which is numerically stable.
            added, batch_mean = len(values), values.mean(axis=0)
            shift = batch_mean - means
            squares += ((values - batch_mean) ** 2).sum(axis=0) + shift**2 * (count * added / (count + added))
            means += shift * (added / (count + added))
            count += added
    if count < 2:
        raise ValueError(f"images must be at least two; got {count}. Fix: use hundreds, of all classes.")
    return TokenStatistics(means, squares / count)


PREFIX = "prompt_learner."
EXPECTED_FILE = (
    "a checkpoint of MaPLe, trained by github.com/muzairkhattak/multimodal-prompt-learning "
    "(MultiModalPromptLearner/model.pth.tar-N), or a .safetensors file with the same keys"
)


class TrainedPrompts(NamedTuple):
    """MaPLe's trained prompts: D layers of n tokens; the first layer is the shared context."""

    prompts: np.ndarray
    """(D, n, text width), float32."""
    weights: np.ndarray
    """(D, image width, text width): the projections to the prompts of the image encoder."""
    biases: np.ndarray
    """(D, image width)."""


def read_maple(path: str | os.PathLike[str]) -> TrainedPrompts:
    """Read the prompts from a torch file with the key "state_dict" or a .safetensors file; other keys are ignored."""
    if not isinstance(path, (str, os.PathLike)):
        raise TypeError(f"checkpoint must be a path; got {type(path).__name__}. Fix: pass the path of {EXPECTED_FILE}.")
    if not Path(path).is_file():
        raise FileNotFoundError(f"no file at {path}. Fix: pass the path of {EXPECTED_FILE}.")
    state = _read_safetensors(path) if Path(path).suffix == ".safetensors" else _read_torch(path)
    named = {str(name).removeprefix("module.").removeprefix(PREFIX): value for name, value in state.items()}
    keys = [("ctx", "proj.weight", "proj.bias")]
    for n in range(max((int(number) for number in map(_layer_number, named) if number), default=-1) + 1):
        projection = f"compound_prompt_projections.{n}"
        keys.append((f"compound_prompts_text.{n}", f"{projection}.weight", f"{projection}.bias"))
    if missing := [PREFIX + key for layer in keys for key in layer if key not in named]:
        raise FileFormatError(f"{path} lacks {', '.join(missing)}. Fix: pass {EXPECTED_FILE}.")
    rows = [
        [_validate_array(path, key, named[key], named[first]) for key, first in zip(layer, keys[0], strict=True)]
        for layer in keys
    ]
    prompts, weights, biases = (np.stack(arrays) for arrays in zip(*rows, strict=True))
    if prompts.ndim != 3 or weights.shape[1:] != (*biases.shape[1:], prompts.shape[2]):
        raise FileFormatError(
            f"{path} has prompts {prompts.shape[1:]}, projections {weights.shape[1:]} and biases {biases.shape[1:]}; "
            "their shapes must be (n, text width), (image width, text width) and (image width,). "
            f"Fix: pass {EXPECTED_FILE}."
        )
    return TrainedPrompts(prompts, weights, biases)


def _layer_number(name: str) -> str | None:
    """The number of the deeper layer of a key; None for other keys."""
    match = re.match(r"compound_prompt(?:s_text|_projections)\.(\d+)", name)
    return match and match[1]


def _validate_array(path: str | os.PathLike[str], key: str, value: Any, like: Any) -> np.ndarray:
    """The array in float32; it must have the shape of `like`, its counterpart in the first layer."""
    shape, expected = (tuple(getattr(array, "shape", ())) for array in (value, like))
    if not shape or shape != expected or 0 in shape:
        raise FileFormatError(
            f"{path} has {PREFIX}{key} of shape {shape}; {expected} is expected, as in the first layer. "
            f"Fix: pass {EXPECTED_FILE}."
        )
    array = to_numpy(value).astype(np.float32)
    if not np.isfinite(array).all():
        raise FileFormatError(f"{path} has NaN or infinity in {PREFIX}{key}. Fix: train again, or copy the file again.")
    return array


def _read_safetensors(path: str | os.PathLike[str]) -> Mapping[str, Any]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return dict(load_file(path))
    except SafetensorError as error:
        raise FileFormatError(f"{path} is not a readable safetensors file ({error}). Fix: copy it again.") from error


def _read_torch(path: str | os.PathLike[str]) -> Mapping[str, Any]:
    import torch

    others: list[Any] = [(_Ignored, name) for name in _other_globals(path)]
    try:
        with torch.serialization.safe_globals(others) if others else nullcontext():
            content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch and pickle raise many kinds of errors for a damaged file
        raise FileFormatError(
            f"{path} cannot be read as a torch file of tensors ({str(error).splitlines()[0]}). Fix: copy it again, or "
            "save only its tensors: safetensors.torch.save_file(checkpoint['state_dict'], 'maple.safetensors')."
        ) from error
    state = content.get("state_dict", content) if isinstance(content, dict) else None
    if not isinstance(state, dict):
        raise FileFormatError(f"{path} has no dictionary with the key 'state_dict'. Fix: pass {EXPECTED_FILE}.")
    return state


def _other_globals(path: str | os.PathLike[str]) -> list[str]:
    """Classes in the file besides tensors: the authors also save the training schedule, an object."""
    import torch

    try:
        return list(torch.serialization.get_unsafe_globals_in_checkpoint(path))
    except (
        AttributeError,
        ValueError,
        RuntimeError,
    ):  # an older torch, or another kind of file, for which `load` raises
        return []


class _Ignored(dict[Any, Any]):
    """Replaces every object that is not a tensor; it ignores all arguments."""

    def __new__(cls, *arguments: Any) -> _Ignored:
        return super().__new__(cls)

    def __init__(self, *arguments: Any) -> None:
        super().__init__()

    def __setstate__(self, state: Any) -> None:
        pass


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


class MapleClip(CoupledPrompts):
    """Both encoders of CLIP with MaPLe's prompts; see `load_maple`, which checks the arguments.

    Gradients are computed in chunks of prompts or images, each of which is encoded again, so that memory does not grow.

    Parameters
    ----------
    encoder : with CLIP's image and text encoders. It is not changed, and can be used meanwhile.
    tokens : the K tokenized prompts, whose tokens from the second on are replaced.
    trained : the initial prompts.
    chunk_size, image_chunk_size : prompts and images per chunk of a gradient; halved when memory runs out.
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
        self._vision, self._backend = TokenVision(encoder), Backend.of(tokens["input_ids"])
        self.chunk_size, self.image_chunk_size = chunk_size, image_chunk_size
        self.batch_size, self.text_batch_size = encoder.batch_size, encoder.text_batch_size
        self.depth, self.words, self._text_width = (int(size) for size in trained.prompts.shape)
        self.parameters = np.concatenate([part.reshape(self.depth, -1) for part in trained], axis=1).reshape(-1)
        self.parameters.flags.writeable = False
        self.n_classes, self.dimension = len(self._tokens["input_ids"]), encoder.dimension
        self.input_shape, self.n_layers = self._vision.input_shape, len(self._model.vision_model.encoder.layers)
        n_image_tokens = int(self._model.vision_model.embeddings.position_embedding.weight.shape[0])
        self.token_shape = (n_image_tokens + self.words, self._vision.width)
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

    def _prompts(self, flat: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The prompts of the text encoder (D, words, text width), and their projections for the image encoder."""
        import torch

        rows, width = flat.reshape(self.depth, -1), self.token_shape[1]
        sizes = [self.words * self._text_width, width * self._text_width, width]
        prompts, weights, biases = torch.split(rows, sizes, dim=1)
        prompts = prompts.reshape(self.depth, self.words, -1)
        return prompts, prompts @ weights.reshape(self.depth, width, -1).mT + biases[:, None, :]

    def _to_device(self, parameters: Array) -> torch.Tensor:
        if not is_array(parameters) or tuple(parameters.shape) != self.parameters.shape:
            given = tuple(parameters.shape) if is_array(parameters) else type(parameters).__name__
            raise ValueError(
                f"parameters must have the shape {self.parameters.shape}; got {given}. Fix: maple.parameters."
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

    def __repr__(self) -> str:
        return f"<MaPLe in {self._encoder!r}: {self.n_classes} classes, {self.words} tokens in {self.depth} layers>"
