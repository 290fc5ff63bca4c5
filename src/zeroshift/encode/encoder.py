"""What an encoder is: pictures and sentences in, unit vectors of one space out, and the scale their cosines go with."""

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
    "UNKNOWN",
    "Encoder",
    "choose_device",
    "choose_dtype",
    "gpu_batch_size",
    "in_batches",
    "out_of_memory",
]


# Where a model runs and in which precision, chosen or as asked for.


GPU_BATCH = 256
"""From here on the largest GPUs are busy."""

BYTES_A_PIXEL = 1000
"""Memory of the device one pixel of a picture is given: a few times what a vision transformer needs for it."""

DTYPES = ("float32", "float16", "bfloat16")


def choose_device(device: str = "auto") -> torch.device:
    """`device`, or for "auto" the first there is of CUDA, Apple's MPS and the CPU."""
    import torch

    if device == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        chosen = torch.device(device)
        torch.zeros(1, device=chosen).item()  # a device that holds no numbers is none
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(
            f"device={device!r} cannot be used here ({reason}). Fix: device='auto' (--device auto) takes what there is."
        ) from error
    return chosen


def choose_dtype(dtype: str = "auto", device: Any = None) -> torch.dtype:
    """`dtype`, or for "auto" float32 on every device: halves of it change features in the third digit."""
    import torch

    name = "float32" if dtype == "auto" else dtype
    if name not in DTYPES:
        raise ValueError(f"dtype must be 'auto', {', '.join(map(repr, DTYPES))}; got {dtype!r}.")
    if name == "float16" and device is not None and device.type == "cpu":
        raise ValueError(
            "dtype='float16' is for GPUs: on a CPU it is slower than float32 and several layers lack it. "
            "Fix: dtype='float32' (--dtype float32), or 'bfloat16'."
        )
    return getattr(torch, name)


def gpu_batch_size(device: torch.device, size: tuple[int, int]) -> int:
    """Pictures of this height and width at a time to begin with, by the memory the GPU has in all: the same on every
    run, whatever else is on it."""
    import torch

    fitting = torch.cuda.get_device_properties(device).total_memory // (BYTES_A_PIXEL * size[0] * size[1])
    # A power of two, so that halving it when memory runs out nonetheless loses nothing.
    return min(GPU_BATCH, 2 ** max(0, int(fitting).bit_length() - 1))


# As many at a time as memory allows: start with a size, halve it when memory runs out, keep what was found.


SIGNS = ("out of memory", "can't allocate memory", "not enough memory", "failed to allocate", "alloc_failed")
"""Of memory that ran out, in the words of CUDA, MPS, cuBLAS and torch's own allocators."""


def in_batches(count: int, size: int, encode: Callable[[slice], np.ndarray]) -> tuple[np.ndarray, int]:
    """`encode` over rows 0 to `count`, at most `size` at a time; and the size that memory allowed.

    >>> in_batches(5, 2, lambda rows: np.arange(5)[rows])
    (array([0, 1, 2, 3, 4]), 2)
    """
    parts: list[np.ndarray] = []
    done = 0
    while done < count:
        tried = min(size, count - done)
        try:
            parts.append(encode(slice(done, done + tried)))
            done += tried
            continue
        except Exception as error:
            if not out_of_memory(error):
                raise
            if tried == 1:
                raise MemoryError(
                    "one item at a time is already too much for the memory of the device. "
                    "Fix: free memory there, take device='cpu', or a smaller model."
                ) from error
        # Out here the error is gone, and with its traceback the tensors that were too many.
        size = tried // 2
        _release()
    return np.concatenate(parts), size


def out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out: torch says so in several ways, some of them only in words."""
    if isinstance(error, MemoryError) or type(error).__name__ in ("OutOfMemoryError", "AcceleratorError"):
        return isinstance(error, MemoryError) or "out of memory" in str(error)
    words = str(error).lower()
    return isinstance(error, RuntimeError) and any(sign in words for sign in SIGNS)


def _release() -> None:
    import sys

    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        torch.cuda.empty_cache()


UNKNOWN = "unknown"
"""The revision of a model that does not say which it is."""


class Encoder(ABC):
    """A dual encoder. A family (CLIP, SigLIP, ...) is one subclass that knows how its models want to be fed.

    A subclass sets the attributes below and writes `_image_features` and `_text_features`; batches, memory, unit length
    and the caller's types are settled here.

    Attributes
    ----------
    family : the family's name in the registry.
    source : what was asked for: a hub id, a folder.
    revision : which weights exactly: the hub's commit, or a hash of the files.
    dimension : d, of features and prototypes.
    logit_scale : s in softmax(s t.x).
    logit_bias : added to s t.x where the model was trained with one (SigLIP). A softmax does not feel it; it is kept so
        that sigmoid scores can be made.
    preprocessing : what is done to a picture, in worker processes.
    device, dtype : where and in what the weights are.
    text_length : the most tokens of a prompt the model reads, its own signs included.
    batch_size : pictures at a time; `text_batch_size` prompts at a time. Halved when memory does not suffice.
    """

    family: ClassVar[str]

    source: str
    revision: str
    dimension: int
    logit_scale: float
    logit_bias: float | None = None
    preprocessing: Preprocessing
    device: torch.device
    dtype: torch.dtype
    text_length: int
    batch_size: int = 32  # more at a time are not faster on a CPU; `load` takes more on a GPU
    text_batch_size: int = 256

    def finish_prototypes(self, means: np.ndarray, templates: Sequence[str] | None = None) -> np.ndarray:
        """(K, d) prototypes of unit length, from the mean of each class's rows of `encode_texts`.

        `templates` are those of the prompts, for encoders that must know them; None where they are not known.
        """
        return normalize(means.astype(np.float32))

    @abstractmethod
    def _image_features(self, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
        """(B, d) of any length, from stacked `Pixels` on the device: float, as the model takes them."""

    @abstractmethod
    def _text_features(self, prompts: Sequence[str]) -> torch.Tensor:
        """(n, d) of any length; prompts longer than the model reads are cut."""

    @abstractmethod
    def count_tokens(self, prompts: Sequence[str]) -> list[int]:
        """How long each prompt is, uncut, in the model's own tokens."""

    def key(self) -> dict[str, Any]:
        """What decides the features: a part of the key they are kept under. What the model is called does not."""
        described = self.describe()
        if self.revision != UNKNOWN:
            del described["source"]
        return described

    def describe(self) -> dict[str, Any]:
        """Which encoder it is, as JSON can hold it, for provenance."""
        return {
            "family": self.family,
            "source": self.source,
            "revision": self.revision,
            "dtype": str(self.dtype).removeprefix("torch."),
        }

    def encode_pixels(self, batch: Pixels) -> np.ndarray:
        """(B, d) float32 of unit length, from stacked `Pixels`: what worker processes send."""
        import torch

        self._check_pixels(batch)

        def one(rows: slice) -> np.ndarray:
            with torch.inference_mode():
                tensors = tuple(self._to_device(array[rows], first=i == 0) for i, array in enumerate(batch))
                return _unit(self._image_features(tensors), "an image")

        rows, self.batch_size = in_batches(len(batch[0]), self.batch_size, one)
        return rows

    def _check_pixels(self, batch: Pixels) -> None:
        if not isinstance(batch, tuple) or not batch or not len(batch[0]):
            raise ValueError(
                f"batch must be a tuple of arrays with a row for each picture, and at least one picture; got "
                f"{'none' if isinstance(batch, tuple) else type(batch).__name__}. Fix: (pixels,), pixels (B, 3, H, W)."
            )
        expected = (3, *self.preprocessing.size)
        if isinstance(self.preprocessing, PixelPreprocessing) and batch[0].shape[1:] != expected:
            raise ValueError(
                f"pixels must have the shape (B, {', '.join(map(str, expected))}), as the model takes them; got "
                f"{batch[0].shape}. Fix: encoder.preprocessing(image) for each image, stacked."
            )

    def encode_images(self, images: Iterable[Image | np.ndarray | str | Path]) -> np.ndarray:
        """(N, d) float32 of unit length: pillow images, (H, W, 3) arrays of bytes, or paths; in this process.

        For more than a few hundred, `extract` is faster, decoding beside the model, and can be interrupted.
        """
        from zeroshift.encode.preprocessing import as_picture

        if isinstance(images, (str, Path)) or not isinstance(images, Iterable):
            raise TypeError(f"images must be several, in a list; got one {type(images).__name__}. Fix: [image].")
        parts, waiting = [], []
        for image in images:
            waiting.append(self.preprocessing(as_picture(image)))
            if len(waiting) >= self.batch_size:
                parts.append(self.encode_pixels(stacked(waiting)))
                waiting = []
        if waiting:
            parts.append(self.encode_pixels(stacked(waiting)))
        if not parts:
            raise ValueError("images is empty; at least one is needed.")
        return np.concatenate(parts)

    def encode_texts(self, prompts: Sequence[str], *, warn: bool = True) -> np.ndarray:
        """(n, d) float32 of unit length. Prompts too long for the model are cut; `warn` counts them in a warning."""
        import torch

        if isinstance(prompts, str):
            raise TypeError(f"prompts must be a sequence of strings; got the single string {prompts!r}. Fix: [prompt].")
        if not prompts:
            raise ValueError("prompts is empty; at least one is needed.")
        for prompt in prompts:
            if not isinstance(prompt, str):
                raise TypeError(f"prompts must hold strings; got {prompt!r:.80}. Fix: str(prompt).")
        if warn and (long := self.count_too_long(prompts)):
            warn_cut(long, len(prompts), self.text_length)

        def one(rows: slice) -> np.ndarray:
            with torch.inference_mode():
                return _unit(self._text_features(prompts[rows]), "a prompt")

        rows, self.text_batch_size = in_batches(len(prompts), self.text_batch_size, one)
        return rows

    def count_too_long(self, prompts: Sequence[str]) -> int:
        """How many prompts have more tokens than the model reads."""
        return sum(count > self.text_length for count in self.count_tokens(prompts))

    def _to_device(self, array: np.ndarray, *, first: bool) -> torch.Tensor:
        """The first array holds pixels: looked up on the device where that is possible, in the model's precision."""
        import torch

        tensor = torch.from_numpy(np.ascontiguousarray(array)).to(self.device)
        if first and isinstance(self.preprocessing, PixelPreprocessing):
            tensor = _looked_up(self.preprocessing.table, tensor)
        return tensor.to(self.dtype) if tensor.is_floating_point() else tensor

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.source!r}, d={self.dimension}, logit_scale={self.logit_scale:g})"


def stacked(pictures: Sequence[Pixels]) -> Pixels:
    """One batch of the `Pixels` of several pictures."""
    return tuple(np.stack(arrays) for arrays in zip(*pictures, strict=True))


def warn_cut(long: int, total: int, length: int) -> None:
    warnings.warn(
        f"{long} of {total} prompts are longer than the {length} tokens the model reads; their ends are cut off. "
        "Fix: shorten the templates or descriptions, or leave it so if the beginnings say enough.",
        UserWarning,
        stacklevel=3,
    )


def _looked_up(table: np.ndarray, pixels: torch.Tensor) -> torch.Tensor:
    """`PixelPreprocessing.values` on the device."""
    import torch

    values = torch.from_numpy(table).to(pixels.device)
    if pixels.dtype == torch.uint8:
        channels = [values[c][pixels[..., c, :, :].long()] for c in range(len(table))]
        return torch.stack(channels, dim=-3)
    slope = (values[:, 255] - values[:, 0]) / 255
    return pixels.float() * slope[:, None, None] + values[:, 0][:, None, None]


def _unit(features: torch.Tensor, what: str) -> np.ndarray:
    """Unit rows in float32. A row that cannot be scaled is the model's fault, or its precision's: it ends here."""
    features = features.float()
    lengths = features.norm(dim=-1, keepdim=True)
    if not bool(((lengths > 0) & lengths.isfinite()).all()):
        raise ValueError(
            f"the encoder gave a zero or non-finite feature for {what}. Fix: dtype='float32' if a narrower one was "
            "asked for; else the model's files are damaged."
        )
    array: np.ndarray = (features / lengths).cpu().numpy()
    return array
