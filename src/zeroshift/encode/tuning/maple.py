"""`load_maple`: a CLIP encoder with MaPLe's trained prompts in the first layers of both encoders, for PromptAlign."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from zeroshift.arrays import Array, is_array, to_numpy
from zeroshift.encode.encoder import Encoder
from zeroshift.encode.prompts.templates import SLOT
from zeroshift.encode.tuning.deep_prompts import DeepClip, check_clip, check_names, tokenize_prompts
from zeroshift.encode.tuning.text import CHUNK
from zeroshift.encode.tuning.vision import CHUNK as IMAGE_CHUNK
from zeroshift.files import FileFormatError
from zeroshift.methods._shared.towers import CoupledPrompts
from zeroshift.parameters import Number

if TYPE_CHECKING:
    import torch

__all__ = [
    "MapleClip",
    "TokenStatistics",
    "TrainedPrompts",
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

    model = check_clip(encoder)
    chunk_size = int(_COUNT.check("chunk_size", chunk_size))
    image_chunk_size = int(_COUNT.check("image_chunk_size", image_chunk_size))
    names = check_names(class_names, repeated_names)
    trained = read_maple(checkpoint)
    _check_fit(model, trained, checkpoint)
    n_tokens = trained.prompts.shape[1]
    fix = f"{' '.join('X' * n_tokens)!r} before {SLOT}, if they were random"
    with torch.inference_mode(False):
        tokens = tokenize_prompts(encoder, names, template, n_tokens, "which the checkpoint's replace", fix)
        return MapleClip(encoder, tokens, trained, chunk_size=chunk_size, image_chunk_size=image_chunk_size)


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


class MapleClip(DeepClip, CoupledPrompts):
    """Both encoders of CLIP with MaPLe's prompts; see `load_maple`, which checks the arguments."""

    argument = "maple"

    def __init__(
        self, encoder: Encoder, tokens: Mapping[str, torch.Tensor], trained: TrainedPrompts, **chunk_sizes: int
    ) -> None:
        depth, words, _ = (int(size) for size in trained.prompts.shape)
        parameters = np.concatenate([part.reshape(depth, -1) for part in trained], axis=1).reshape(-1)
        super().__init__(encoder, tokens, parameters, depth=depth, words=words, **chunk_sizes)

    def _prompts(self, flat: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The prompts of the text encoder (D, words, text width), and their projections for the image encoder."""
        import torch

        rows, width = flat.reshape(self.depth, -1), self.token_shape[1]
        sizes = [self.words * self._text_width, width * self._text_width, width]
        prompts, weights, biases = torch.split(rows, sizes, dim=1)
        prompts = prompts.reshape(self.depth, self.words, -1)
        return prompts, prompts @ weights.reshape(self.depth, width, -1).mT + biases[:, None, :]

    def __repr__(self) -> str:
        return f"<MaPLe in {self._encoder!r}: {self.n_classes} classes, {self.words} tokens in {self.depth} layers>"
