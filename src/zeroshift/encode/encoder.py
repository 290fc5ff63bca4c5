"""`ImageEncoder` and `Encoder`, the base classes of encoders of images, and of images and text; choice of device and
precision; batches that fit into memory."""

from __future__ import annotations

import gc
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from zeroshift.arrays import normalize
from zeroshift.encode.preprocessing import PixelPreprocessing, Pixels, Preprocessing

if TYPE_CHECKING:
    import torch
    from PIL.Image import Image

__all__ = [
    "DTYPES",
    "UNKNOWN_REVISION",
    "Encoder",
    "ImageEncoder",
    "choose_device",
    "choose_dtype",
    "gpu_batch_size",
    "is_out_of_memory",
    "run_in_batches",
]


UNKNOWN_REVISION = "unknown"
"""The revision of a model whose revision cannot be determined."""


class ImageEncoder(ABC):
    """An encoder of images: all that a second encoder needs.

    A subclass sets the attributes below and implements `_image_features`. This class handles batches, memory, unit
    length and types.

    Attributes
    ----------
    family : name of the family in the registry.
    source : where the model comes from: a hub id, a folder.
    revision : identifies the weights: the hub's commit, or a hash of the files.
    dimension : d, the size of features.
    preprocessing : applied to images, in worker processes.
    device, dtype : of the weights.
    batch_size : images per batch. Halved when memory runs out.
    """

    family: ClassVar[str]

    source: str
    revision: str
    dimension: int
    preprocessing: Preprocessing
    device: torch.device
    dtype: torch.dtype
    batch_size: int = 32  # larger batches are not faster on a CPU; `load` uses more on a GPU

    @property
    def is_loaded(self) -> bool:
        """Whether the model is in memory: see `load_when_needed`."""
        return True

    @abstractmethod
    def _image_features(self, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
        """(B, d) features, not normalised, from stacked `Pixels` on the device."""

    def key(self) -> dict[str, Any]:
        """What determines the features, for cache keys; a known revision makes the name of the model irrelevant."""
        description = self.describe()
        if self.revision != UNKNOWN_REVISION:
            del description["source"]
        return description

    def describe(self) -> dict[str, Any]:
        """Identification of the encoder, JSON-serialisable, for provenance."""
        return {
            "family": self.family,
            "source": self.source,
            "revision": self.revision,
            "dtype": str(self.dtype).removeprefix("torch."),
        }

    def describe_preprocessing(self) -> dict[str, Any]:
        """The settings of the preprocessing, for cache keys and provenance."""
        return self.preprocessing.describe()

    def encode_pixels(self, batch: Pixels) -> np.ndarray:
        """(B, d) unit float32 features from stacked `Pixels`."""
        import torch

        self._check_pixels(batch)

        def encode(rows: slice) -> np.ndarray:
            with torch.inference_mode():
                tensors = tuple(self._to_device(array[rows], first=i == 0) for i, array in enumerate(batch))
                return _unit_rows(self._image_features(tensors), "an image")

        rows, self.batch_size = run_in_batches(len(batch[0]), self.batch_size, encode)
        return rows

    def _check_pixels(self, batch: Pixels) -> None:
        if not isinstance(batch, tuple) or not batch or not len(batch[0]):
            raise ValueError(
                f"batch must be a tuple of arrays with one row per image, and at least one image; got "
                f"{'none' if isinstance(batch, tuple) else type(batch).__name__}. Fix: (pixels,), pixels (B, 3, H, W)."
            )
        expected = (3, *self.preprocessing.size)
        if isinstance(self.preprocessing, PixelPreprocessing) and batch[0].shape[1:] != expected:
            raise ValueError(
                f"pixels must have the shape (B, {', '.join(map(str, expected))}), as the model takes them; got "
                f"{batch[0].shape}. Fix: encoder.preprocessing(image) for each image, stacked."
            )

    def encode_images(self, images: Iterable[Image | np.ndarray | str | Path]) -> np.ndarray:
        """(N, d) unit float32 features of Pillow images, (H, W, 3) uint8 arrays, or paths.

        Images are decoded in this process. For more than a few hundred images, `extract` is faster and can be resumed.
        """
        from zeroshift.encode.preprocessing import to_rgb_image

        if isinstance(images, (str, Path)) or not isinstance(images, Iterable):
            raise TypeError(f"images must be a list; got {type(images).__name__}. Fix: [image].")
        parts, batch = [], []
        for image in images:
            batch.append(self.preprocessing(to_rgb_image(image)))
            if len(batch) >= self.batch_size:
                parts.append(self.encode_pixels(stack_pixels(batch)))
                batch = []
        if batch:
            parts.append(self.encode_pixels(stack_pixels(batch)))
        return np.concatenate([np.zeros((0, self.dimension), np.float32), *parts])

    def _to_device(self, array: np.ndarray, *, first: bool) -> torch.Tensor:
        """Move an array to the device; the first contains pixels, which are normalised there if possible."""
        import torch

        tensor = torch.from_numpy(np.require(array, requirements=("C", "W"))).to(self.device)
        if first and isinstance(self.preprocessing, PixelPreprocessing):
            tensor = _apply_table(self.preprocessing.table, tensor)
        return tensor.to(self.dtype) if tensor.is_floating_point() else tensor

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.source!r}, d={self.dimension})"


class Encoder(ImageEncoder):
    """A dual encoder, of images and text. Each family (CLIP, SigLIP, ...) is a subclass.

    A subclass sets the attributes of `ImageEncoder` and those below, and implements `_image_features`, `_text_features`
    and `count_tokens`.

    Attributes
    ----------
    dimension : d, the size of features and prototypes.
    logit_scale : s in softmax(s t.x).
    logit_bias : added to s t.x if the model was trained with one (SigLIP). It does not change a softmax, but sigmoid
        scores.
    text_length : maximum number of tokens per prompt, including special tokens.
    text_batch_size : prompts per batch. Halved when memory runs out.
    tokenizer : of transformers; None if there is none, or if it is not loaded.
    """

    logit_scale: float
    logit_bias: float | None = None
    text_length: int
    text_batch_size: int = 256
    tokenizer: Any = None

    def finish_prototypes(self, means: np.ndarray, templates: Sequence[str] | None = None) -> np.ndarray:
        """(K, d) prototypes of unit length, from the mean of each class's rows of `encode_texts`.

        `templates` are those of the prompts, for encoders that need them; None if unknown.
        """
        return normalize(means.astype(np.float32))

    @abstractmethod
    def _text_features(self, prompts: Sequence[str]) -> torch.Tensor:
        """(n, d) features, not normalised; prompts that are too long are truncated."""

    @abstractmethod
    def count_tokens(self, prompts: Sequence[str]) -> list[int]:
        """Number of tokens of each prompt, before truncation."""

    def encode_texts(self, prompts: Sequence[str], *, warn: bool = True) -> np.ndarray:
        """(n, d) unit float32 features. Prompts that are too long are truncated; `warn` warns about them."""
        import torch

        if isinstance(prompts, str):
            raise TypeError(f"prompts must be a sequence of strings; got the single string {prompts!r}. Fix: [prompt].")
        if not prompts:
            raise ValueError("prompts is empty; at least one is needed.")
        for prompt in prompts:
            if not isinstance(prompt, str):
                raise TypeError(f"prompts must be strings; got {prompt!r:.80}. Fix: str(prompt).")
        if warn and (n_long := self.count_too_long(prompts)):
            warn_truncated(n_long, len(prompts), self.text_length)

        def encode(rows: slice) -> np.ndarray:
            with torch.inference_mode():
                return _unit_rows(self._text_features(prompts[rows]), "a prompt")

        rows, self.text_batch_size = run_in_batches(len(prompts), self.text_batch_size, encode)
        return rows

    def count_too_long(self, prompts: Sequence[str]) -> int:
        """Number of prompts with more tokens than the model reads."""
        return sum(count > self.text_length for count in self.count_tokens(prompts))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.source!r}, d={self.dimension}, logit_scale={self.logit_scale:g})"


def stack_pixels(images: Sequence[Pixels]) -> Pixels:
    """One batch from the `Pixels` of several images."""
    return tuple(np.stack(arrays) for arrays in zip(*images, strict=True))


def warn_truncated(n_long: int, total: int, length: int) -> None:
    warnings.warn(
        f"{n_long} of {total} prompts are longer than the {length} tokens the model reads, and are truncated. "
        "Fix: shorten the templates or descriptions, or ignore this if their beginnings suffice.",
        UserWarning,
        stacklevel=3,
    )


def _apply_table(table: np.ndarray, pixels: torch.Tensor) -> torch.Tensor:
    """`PixelPreprocessing.values` on the device."""
    import torch

    values = torch.from_numpy(table).to(pixels.device)
    if pixels.dtype == torch.uint8:
        channels = [values[c][pixels[..., c, :, :].long()] for c in range(len(table))]
        return torch.stack(channels, dim=-3)
    slope = (values[:, 255] - values[:, 0]) / 255
    return pixels.float() * slope[:, None, None] + values[:, 0][:, None, None]


def _unit_rows(features: torch.Tensor, source: str) -> np.ndarray:
    """Unit rows in float32; raises for zero and non-finite rows."""
    features = features.float()
    lengths = features.norm(dim=-1, keepdim=True)
    if not bool(((lengths > 0) & lengths.isfinite()).all()):
        raise ValueError(
            f"the encoder returned a zero or non-finite feature for {source}. Fix: dtype='float32' if it is narrower; "
            "otherwise the model's files are damaged."
        )
    array: np.ndarray = (features / lengths).cpu().numpy()
    return array


MAX_GPU_BATCH = 256
"""Larger batches are not faster, even on the largest GPUs."""

BYTES_PER_PIXEL = 1000
"""Device memory reserved per pixel: a few times what a vision transformer needs."""

DTYPES = ("float32", "float16", "bfloat16")


def choose_device(device: str = "auto") -> torch.device:
    """`device`, or for "auto" the first available one of CUDA, Apple's MPS and the CPU."""
    import torch

    if device == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        chosen = torch.device(device)
        torch.zeros(1, device=chosen).item()  # fails if the device cannot be used
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(
            f"device={device!r} cannot be used ({reason}). Fix: device='auto' (--device auto) picks an available one."
        ) from error
    return chosen


def choose_dtype(dtype: str = "auto", device: Any = None) -> torch.dtype:
    """`dtype`, or for "auto" float32 on every device: half precision changes features in the third digit."""
    import torch

    name = "float32" if dtype == "auto" else dtype
    if name not in DTYPES:
        raise ValueError(f"dtype must be 'auto', {', '.join(map(repr, DTYPES))}; got {dtype!r}.")
    if name == "float16" and device is not None and device.type == "cpu":
        raise ValueError(
            "dtype='float16' is for GPUs: on a CPU it is slower than float32, and several layers do not support it. "
            "Fix: dtype='float32' (--dtype float32), or 'bfloat16'."
        )
    return getattr(torch, name)


def gpu_batch_size(device: torch.device, size: tuple[int, int]) -> int:
    """Initial batch size for images of this height and width, from the GPU's total memory: the same in every run."""
    import torch

    fits = torch.cuda.get_device_properties(device).total_memory // (BYTES_PER_PIXEL * size[0] * size[1])
    # A power of two, so that it can be halved if memory runs out.
    return min(MAX_GPU_BATCH, 2 ** max(0, int(fits).bit_length() - 1))


OUT_OF_MEMORY_PHRASES = (
    "out of memory",
    "can't allocate memory",
    "not enough memory",
    "failed to allocate",
    "alloc_failed",
)
"""Parts of the messages of CUDA, MPS, cuBLAS and torch's allocators when memory runs out."""


def run_in_batches(count: int, size: int, encode: Callable[[slice], np.ndarray]) -> tuple[np.ndarray, int]:
    """Call `encode` on slices of at most `size` rows, halving `size` when memory runs out; returns rows and final size.

    >>> run_in_batches(5, 2, lambda rows: np.arange(5)[rows])
    (array([0, 1, 2, 3, 4]), 2)
    """
    parts: list[np.ndarray] = []
    done = 0
    while done < count:
        n_rows = min(size, count - done)
        try:
            parts.append(encode(slice(done, done + n_rows)))
            done += n_rows
            continue
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            if n_rows == 1:
                raise MemoryError(
                    "the device has not enough memory for a single item. "
                    "Fix: free memory, use device='cpu', or a smaller model."
                ) from error
        # Outside of the except block, the traceback and the tensors it refers to are released.
        size = n_rows // 2
        _free_memory()
    return np.concatenate(parts), size


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out: torch has several exceptions for it, some identified only by their message."""
    if isinstance(error, MemoryError) or type(error).__name__ in ("OutOfMemoryError", "AcceleratorError"):
        return isinstance(error, MemoryError) or "out of memory" in str(error)
    message = str(error).lower()
    return isinstance(error, RuntimeError) and any(phrase in message for phrase in OUT_OF_MEMORY_PHRASES)


def _free_memory() -> None:
    import sys

    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        torch.cuda.empty_cache()
