"""What an encoder is: pictures and sentences in, unit vectors of one space out, and the scale their cosines go with."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from zeroshift.arrays import normalize
from zeroshift.encode.batches import in_batches
from zeroshift.encode.preprocessing import PixelPreprocessing, Pixels, Preprocessing

if TYPE_CHECKING:
    import torch
    from PIL.Image import Image

__all__ = ["UNKNOWN", "Encoder"]

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
        from zeroshift.encode.pictures import as_picture

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
