"""MaPLe's trained prompts, read from the checkpoint its authors' code saves; nothing in it is run."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from zeroshift.arrays import to_numpy
from zeroshift.files import FileFormatError

__all__ = ["TrainedPrompts", "read_maple"]

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
