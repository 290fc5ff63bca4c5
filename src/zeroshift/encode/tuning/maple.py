"""MaPLe."""

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

from zeroshift.arrays import Array, Home, is_array, to_numpy
from zeroshift.encode.encoder import Encoder, warn_cut
from zeroshift.encode.families.base import TransformersEncoder
from zeroshift.encode.prompts.templates import SLOT, check_template, fill
from zeroshift.encode.prompts.user_text import clean
from zeroshift.encode.tuning.autograd_utils import each_chunk, frozen, powers_of_two, tracing
from zeroshift.encode.tuning.text import CHUNK, check_class_names
from zeroshift.encode.tuning.text_models import text_side
from zeroshift.encode.tuning.vision import CHUNK as IMAGE_CHUNK
from zeroshift.encode.tuning.vision import TokenVision, prompted_vision
from zeroshift.files import FileFormatError
from zeroshift.methods._shared.towers import CoupledPrompts, Look
from zeroshift.parameters import Flag, Number

if TYPE_CHECKING:
    import torch

    from zeroshift.encode.families.base import TransformersEncoder

__all__ = [
    "MapleClip",
    "TokenStatistics",
    "TrainedPrompts",
    "hooked",
    "joined",
    "load_maple",
    "maple_statistics",
    "read_maple",
]


# MaPLe's trained prompts, read from the checkpoint its authors' code saves; nothing in it is run.


PREFIX = "prompt_learner."
MADE_BY = (
    "a checkpoint of MaPLe, trained by github.com/muzairkhattak/multimodal-prompt-learning "
    "(MultiModalPromptLearner/model.pth.tar-N), or a .safetensors file with the same keys"
)


class TrainedPrompts(NamedTuple):
    """Layer by layer, the first being the shared context: D layers of n tokens."""

    prompts: np.ndarray
    """(D, n, text width), float32."""
    weights: np.ndarray
    """(D, image width, text width): the projections that make the image side's prompts of them."""
    biases: np.ndarray
    """(D, image width)."""


def read_maple(path: str | os.PathLike[str]) -> TrainedPrompts:
    """The prompts in a torch file with the entry "state_dict", or in a .safetensors file; other keys are ignored."""
    if not isinstance(path, (str, os.PathLike)):
        raise TypeError(f"checkpoint must be a path; got {type(path).__name__}. Fix: the path of {MADE_BY}.")
    if not Path(path).is_file():
        raise FileNotFoundError(f"no file at {path}. Fix: checkpoint must be the path of {MADE_BY}.")
    found = _of_safetensors(path) if Path(path).suffix == ".safetensors" else _of_torch(path)
    named = {str(name).removeprefix("module.").removeprefix(PREFIX): value for name, value in found.items()}
    keys = [("ctx", "proj.weight", "proj.bias")]
    for n in range(max((int(number) for number in map(_deeper, named) if number), default=-1) + 1):
        projection = f"compound_prompt_projections.{n}"
        keys.append((f"compound_prompts_text.{n}", f"{projection}.weight", f"{projection}.bias"))
    if missing := [PREFIX + key for layer in keys for key in layer if key not in named]:
        raise FileFormatError(f"{path} lacks {', '.join(missing)}. Fix: it must be {MADE_BY}.")
    rows = [
        [_numbers(path, key, named[key], named[first]) for key, first in zip(layer, keys[0], strict=True)]
        for layer in keys
    ]
    prompts, weights, biases = (np.stack(arrays) for arrays in zip(*rows, strict=True))
    if prompts.ndim != 3 or weights.shape[1:] != (*biases.shape[1:], prompts.shape[2]):
        raise FileFormatError(
            f"{path} holds prompts {prompts.shape[1:]}, projections {weights.shape[1:]} and biases {biases.shape[1:]}, "
            f"which do not go together: (n, text width), (image width, text width), (image width,). Fix: {MADE_BY}."
        )
    return TrainedPrompts(prompts, weights, biases)


def _deeper(name: str) -> str | None:
    """The number of the deeper layer a key belongs to."""
    found = re.match(r"compound_prompt(?:s_text|_projections)\.(\d+)", name)
    return found and found[1]


def _numbers(path: str | os.PathLike[str], key: str, value: Any, like: Any) -> np.ndarray:
    """In float32, of the shape of `like`, which stands in its place in the first layer."""
    given, expected = (tuple(getattr(array, "shape", ())) for array in (value, like))
    if not given or given != expected or 0 in given:
        raise FileFormatError(
            f"{path} holds {PREFIX}{key} of shape {given}, where {expected} is expected, as in the first layer. "
            f"Fix: {MADE_BY}."
        )
    array = to_numpy(value).astype(np.float32)
    if not np.isfinite(array).all():
        raise FileFormatError(
            f"{path} holds NaN or infinity in {PREFIX}{key}. Fix: train again, or copy the file again."
        )
    return array


def _of_safetensors(path: str | os.PathLike[str]) -> Mapping[str, Any]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return dict(load_file(path))
    except SafetensorError as error:
        raise FileFormatError(f"{path} is no whole safetensors file ({error}). Fix: copy it again.") from error


def _of_torch(path: str | os.PathLike[str]) -> Mapping[str, Any]:
    import torch

    others: list[Any] = [(_Ignored, name) for name in _others(path)]
    try:
        with torch.serialization.safe_globals(others) if others else nullcontext():
            found = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch and pickle raise nearly anything for a damaged file
        raise FileFormatError(
            f"{path} cannot be read as a torch file of tensors ({str(error).splitlines()[0]}). Fix: copy it again, or "
            "save its tensors alone, safetensors.torch.save_file(checkpoint['state_dict'], 'maple.safetensors')."
        ) from error
    found = found.get("state_dict", found) if isinstance(found, dict) else None
    if not isinstance(found, dict):
        raise FileFormatError(f"{path} holds no dictionary with the entry 'state_dict'. Fix: it must be {MADE_BY}.")
    return found


def _others(path: str | os.PathLike[str]) -> list[str]:
    """What the file names beside tensors: the authors save the schedule of training, an object, along with them."""
    import torch

    try:
        return list(torch.serialization.get_unsafe_globals_in_checkpoint(path))
    except (AttributeError, ValueError, RuntimeError):  # an older torch, or no file of that kind: `load` says so
        return []


class _Ignored(dict[Any, Any]):
    """Stands for every object that is no tensor: it is made of nothing, whatever it is given, and does nothing."""

    def __new__(cls, *arguments: Any) -> _Ignored:
        return super().__new__(cls)

    def __init__(self, *arguments: Any) -> None:
        super().__init__()

    def __setstate__(self, state: Any) -> None:
        pass


# Prompts put among the tokens of a transformer, at its beginning and in deeper layers, from outside.


def joined(before: torch.Tensor, prompt: torch.Tensor, behind: torch.Tensor) -> torch.Tensor:
    """Tokens (B, ...) with the same prompt (n, width) between them in every row."""
    import torch

    return torch.cat([before, prompt.expand(len(before), -1, -1).to(before.dtype), behind], dim=1)


@contextmanager
def hooked(
    embeddings: torch.nn.Module,
    layers: Any,
    put: Callable[[torch.Tensor, int], torch.Tensor],
    on_the_way: list[torch.Tensor] | None = None,
) -> Iterator[None]:
    """While it lasts, `put` changes what comes out of the embeddings (0) and what layers after the first are given (1,
    2, ...); what each layer is given is written down. Of this thread alone: others may use the model, too."""
    caller = threading.get_ident()

    def embedded(module: Any, arguments: Any, found: torch.Tensor) -> torch.Tensor:
        return found if threading.get_ident() != caller else put(found, 0)

    def given(layer: int) -> Callable[..., Any]:
        def hook(module: Any, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
            if threading.get_ident() != caller:
                return arguments
            hidden = put(arguments[0], layer) if layer else arguments[0]
            if on_the_way is not None:
                on_the_way.append(hidden)
            return (hidden, *arguments[1:])

        return hook

    with ExitStack() as stack:
        stack.callback(embeddings.register_forward_hook(embedded).remove)
        for number, layer in enumerate(layers):
            stack.callback(layer.register_forward_pre_hook(given(number)).remove)
        yield


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


TEMPLATE = "a photo of a {}."
"""MaPLe's own: its two tokens take the places of "a photo"."""

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
    """Both sides of `encoder` with the prompts of a MaPLe checkpoint, for `PromptAlign`.

    The encoder itself stays as it is, and can go on being used.

    Parameters
    ----------
    encoder : of the family clip or metaclip, and the model the prompts were trained in: ViT-B/16 for the authors'.
    checkpoint : as the authors' code saves it, a torch file whose "state_dict" has the keys `prompt_learner.ctx`,
        `prompt_learner.proj.weight` and so on, or a .safetensors file with the same keys. Nothing in it is run.
    class_names : in the order of the classes: others than those of the training, if need be.
    template : a prompt; the tokens before the name are replaced, from the first on, by those of the checkpoint. Where
        training began with random prompts, there is an "X" for each: "X X {}.".
    chunk_size, image_chunk_size : prompts and images whose activations are held at once for a gradient; halved where
        memory does not suffice.
    repeated_names : allow a name twice, as in ImageNet's list.
    """
    import torch

    model = _checked_model(encoder)
    assert isinstance(encoder, TransformersEncoder)
    chunk_size = int(_COUNT.check("chunk_size", chunk_size))
    image_chunk_size = int(_COUNT.check("image_chunk_size", image_chunk_size))
    names = check_class_names(class_names, repeated=bool(Flag().check("repeated_names", repeated_names)))
    wording = check_template(template)
    trained = read_maple(checkpoint)
    _check_fit(model, trained, checkpoint)
    side = text_side(encoder, wording)
    words, room = trained.prompts.shape[1], len(side.ids(wording.split(SLOT)[0].rstrip()))
    if room < words:
        raise ValueError(
            f"template must have at least {words} tokens before {SLOT}, in whose places the checkpoint's stand; "
            f"{wording!r} has {room}. Fix: {' '.join('X' * words)!r} before {SLOT}, if training began at random."
        )
    prompts = [fill(wording, clean(name)) for name in names]
    if long := encoder.count_too_long(prompts):
        warn_cut(long, len(prompts), encoder.text_length)
    with torch.inference_mode(False):
        tokens = side.tokens(prompts)
        return MapleClip(encoder, tokens, trained, chunk_size=chunk_size, image_chunk_size=image_chunk_size)


def _checked_model(encoder: Encoder) -> Any:
    prompted_vision(encoder)  # refuses what is no encoder, or has another image side than CLIP's
    model: Any = encoder.model  # type: ignore[attr-defined]
    text = model.text_model
    if not hasattr(text, "final_layer_norm") or not hasattr(text.embeddings, "token_embedding"):
        raise TypeError(
            f"encoder must have CLIP's own text transformer, in whose layers MaPLe's prompts stand; got {encoder!r} of "
            f"the family {encoder.family!r}. Fix: one of the families clip, metaclip."
        )
    return model


def _check_fit(model: Any, trained: TrainedPrompts, checkpoint: str | os.PathLike[str]) -> None:
    depth, _, text_width = trained.prompts.shape
    text, vision = model.text_model, model.vision_model
    widths = (int(text.final_layer_norm.weight.shape[0]), int(vision.post_layernorm.weight.shape[0]))
    if (text_width, trained.weights.shape[1]) != widths:
        raise ValueError(
            f"{checkpoint} holds prompts of width {text_width} for texts and {trained.weights.shape[1]} for images, "
            f"the encoder's are {widths[0]} and {widths[1]}. Fix: the encoder they were trained in."
        )
    layers = min(len(text.encoder.layers), len(vision.encoder.layers))
    if depth > layers:
        raise ValueError(
            f"{checkpoint} holds prompts for {depth} layers, the encoder has {layers}. "
            "Fix: the encoder they were trained in."
        )


# `maple_statistics`: what tokens are like before the shift, from images as they go by.


LAYERS = 3
"""As many as PromptAlign's paper aligns."""

BATCH = 32


class TokenStatistics(NamedTuple):
    """PromptAlign's `source`: of each token and channel, in the first L layers of the image side."""

    means: np.ndarray
    """(L, T, width)."""
    variances: np.ndarray
    """(L, T, width), divided by the number of images."""


def maple_statistics(
    maple: CoupledPrompts, images: Array | Iterable[Array], *, layers: int = LAYERS, batch_size: int = BATCH
) -> TokenStatistics:
    """Means and variances of tokens under the trained prompts, over images of before the shift; no labels are needed.

    Parameters
    ----------
    maple : as `load_maple` makes it. Its classes do not matter.
    images : (N, 3, H, W) as the encoder's preprocessing makes them, or batches of such, one after the other: the
        authors take ImageNet's whole training set.
    layers : L, how many layers from the first on.
    batch_size : images looked at together.
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
            tokens = maple.look(batch[start : start + batch_size], maple.parameters, layers).tokens
            wide = to_numpy(tokens).astype(np.float64)
            # Merged as means and sums of squares around them: differences of large sums would lose what is small.
            more, own = len(wide), wide.mean(axis=0)
            apart = own - means
            squares += ((wide - own) ** 2).sum(axis=0) + apart**2 * (count * more / (count + more))
            means += apart * (more / (count + more))
            count += more
    if count < 2:
        raise ValueError(f"images must be at least two, or nothing varies; got {count}. Fix: hundreds, of all classes.")
    return TokenStatistics(means, squares / count)
