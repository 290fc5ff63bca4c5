"""From a picture to what a model's image tower takes: resize, crop, and a table of what each pixel value becomes.

Decoding and resizing are done in worker processes, so this file knows pillow and NumPy and no deep-learning library;
pictures travel as bytes, a quarter of the floats they become.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from zeroshift.data.images import decode, pillow
from zeroshift.parameters import Choice

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["PixelPreprocessing", "Pixels", "Preprocessing", "affine_table", "as_picture"]


# Whatever stands for one picture in memory or on disk, as an RGB pillow image.


def as_picture(image: Image | np.ndarray | str | Path) -> Image:
    """RGB, from a pillow image, an (H, W, 3) or (H, W) array of bytes, or the path of a file."""
    if isinstance(image, (str, Path)):
        if not Path(image).is_file():
            raise FileNotFoundError(f"no image at {image}. Fix: check the path.")
        return decode(Path(image).read_bytes(), str(image)).image
    if isinstance(image, np.ndarray):
        if image.dtype != np.uint8 or not (image.ndim == 2 or (image.ndim == 3 and image.shape[2] == 3)):
            raise ValueError(
                f"an array that stands for a picture must hold bytes, (H, W, 3) or (H, W); got {image.dtype} of shape "
                f"{image.shape}. Fix: (255 * image).astype('uint8') if its values lie between 0 and 1."
            )
        image = pillow().fromarray(image)
    elif not hasattr(image, "convert"):
        raise TypeError(
            f"an image must be a path, a pillow image or an (H, W, 3) array of bytes; got {type(image).__name__}. "
            "Fix: PIL.Image.open(file), or numpy.asarray(image)."
        )
    picture = cast("Image", image)
    if 0 in picture.size:
        raise ValueError(f"an image must have at least one pixel; got {picture.size} of them. Fix: leave it out.")
    return picture.convert("RGB")


Pixels = tuple[np.ndarray, ...]
"""What the image tower takes of one picture, or stacked of many. Most take one array, (3, H, W)."""

RESAMPLING = {"nearest": 0, "lanczos": 1, "bilinear": 2, "bicubic": 3, "box": 4, "hamming": 5}
"""Pillow's numbers, which are also those in the files of published models."""


MOST_PIXELS = 2**27
"""Of a picture scaled by its shorter side, 400 MB: a line of pixels would become gigabytes to be cropped from."""


class Preprocessing(ABC):
    """What a model does to a picture first. Picklable: worker processes hold a copy."""

    size: tuple[int, int]
    """Height and width of the picture the model sees; views are cropped to it."""

    @abstractmethod
    def __call__(self, image: Image) -> Pixels:
        """An RGB picture of any size."""

    @abstractmethod
    def ready(self, image: Image) -> Pixels:
        """An RGB picture that has been cropped to `size` already."""

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """Everything that decides what comes out, as JSON can hold it: a part of the key features are kept under."""


@dataclass(frozen=True)
class PixelPreprocessing(Preprocessing):
    """Resize, crop the centre, look up: what nearly every published model does.

    Parameters
    ----------
    resize : `("shorter", s)` scales the shorter side to s and keeps the shape; `("exact", h, w)` does not keep it; None
        leaves the picture as it is.
    crop : height and width cut from the centre, black beyond the picture's edge; None cuts nothing.
    resample : pillow's name of the filter.
    table : (3, 256) float32, what each value of each channel becomes (`affine_table` makes one from mean and std).

    >>> from PIL import Image
    >>> clip = PixelPreprocessing(("shorter", 4), (4, 4), "bicubic", affine_table(mean=[0.5] * 3, std=[0.5] * 3))
    >>> (pixels,) = clip(Image.new("RGB", (12, 8), (255, 0, 0)))
    >>> pixels.shape, pixels.dtype.name
    ((3, 4, 4), 'uint8')
    >>> clip.values(pixels)[:, 0, 0].tolist()
    [1.0, -1.0, -1.0]
    """

    resize: tuple[Any, ...] | None
    crop: tuple[int, int] | None
    resample: str
    table: np.ndarray = field(repr=False)

    def __post_init__(self) -> None:
        Choice(tuple(RESAMPLING)).check("resample", self.resample)
        if self.table.shape != (3, 256) or not np.isfinite(self.table).all():
            raise ValueError(
                f"table must hold (3, 256) finite numbers, one for each value of each channel; got shape "
                f"{self.table.shape}. Fix: affine_table(mean=[0.5] * 3, std=[0.5] * 3)."
            )
        if self.crop is None and (self.resize is None or self.resize[0] == "shorter"):
            raise ValueError(
                f"crop=None with resize={self.resize!r} leaves pictures of different sizes, which make no batch. "
                "Fix: give crop=(height, width), or resize=('exact', height, width)."
            )

    @property
    def size(self) -> tuple[int, int]:  # type: ignore[override]
        if self.crop is not None:
            return self.crop
        assert self.resize is not None
        return (self.resize[1], self.resize[2])

    def __call__(self, image: Image) -> Pixels:
        return self.ready(self.cropped(self.resized(image)))

    def resized(self, image: Image) -> Image:
        if self.resize is None:
            return image
        if self.resize[0] == "exact":
            height, width = self.resize[1:]
        else:
            shorter = self.resize[1]
            # The longer side is cut to a whole number, not rounded: what torchvision did, every published model saw.
            width, height = (
                (shorter, int(shorter * image.height / image.width))
                if image.width <= image.height
                else (int(shorter * image.width / image.height), shorter)
            )
            if width * height > MOST_PIXELS:
                raise ValueError(f"{image.width} x {image.height} pixels are too long and thin to be scaled")
        return image.resize((width, height), RESAMPLING[self.resample])

    def cropped(self, image: Image) -> Image:
        if self.crop is None:
            return image
        height, width = self.crop
        top, left = (image.height - height) // 2, (image.width - width) // 2
        return image.crop((left, top, left + width, top + height))

    def ready(self, image: Image) -> Pixels:
        return (np.ascontiguousarray(np.asarray(image, np.uint8).transpose(2, 0, 1)),)

    def values(self, pixels: np.ndarray) -> np.ndarray:
        """What the model is given for (..., 3, H, W) pixels: bytes, or numbers between 0 and 255."""
        if pixels.dtype == np.uint8:
            channels = [table[pixels[..., c, :, :]] for c, table in enumerate(self.table)]
            return np.stack(channels, axis=-3)
        slope = (self.table[:, 255] - self.table[:, 0]) / np.float32(255)
        return pixels * slope[:, None, None] + self.table[:, 0][:, None, None]

    def describe(self) -> dict[str, Any]:
        return {
            "resize": None if self.resize is None else list(self.resize),
            "crop": None if self.crop is None else list(self.crop),
            "resample": self.resample,
            "table": hashlib.sha256(self.table.round(6).astype("<f4").tobytes()).hexdigest()[:16],
            # For people: of nearly every model the table is a straight line between these.
            "black": [round(float(value), 6) for value in self.table[:, 0]],
            "white": [round(float(value), 6) for value in self.table[:, 255]],
        }


def affine_table(mean: list[float], std: list[float]) -> np.ndarray:
    """(3, 256): a byte divided by 255, less the mean, by the standard deviation of its channel."""
    if len(mean) != 3 or len(std) != 3 or not all(deviation > 0 for deviation in std):
        raise ValueError(
            f"mean and std must have three numbers each, for red, green and blue, and std none of 0 or less; got "
            f"mean={mean!r}, std={std!r}. Fix: affine_table(mean=[0.5] * 3, std=[0.5] * 3)."
        )
    values = np.arange(256, dtype=np.float64) / 255
    return np.stack([(values - m) / s for m, s in zip(mean, std, strict=True)]).astype(np.float32)
