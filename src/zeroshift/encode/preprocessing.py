"""Preprocessing of images for a model: resize, crop, and a table of normalised pixel values.

It runs in worker processes, so this module uses only Pillow and NumPy. Pixels are sent to the encoder as bytes, which
take a quarter of the memory of floats.
"""

from __future__ import annotations

import hashlib
import re
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import numpy as np

from zeroshift.data.images import decode, pillow, to_rgb
from zeroshift.parameters import Choice

if TYPE_CHECKING:
    from PIL.Image import Image

    AnyImage: TypeAlias = Image | np.ndarray | str | Path | bytes

__all__ = ["PixelPreprocessing", "Pixels", "Preprocessing", "affine_table", "read_image_bytes", "to_rgb_image"]


URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:(//|[A-Za-z0-9/;+.-]*,)")
"""How URLs begin, with "https://" or "data:image/png;base64,": a colon after more letters than a drive has."""


def read_image_bytes(image: str | Path | bytes | bytearray | memoryview) -> tuple[bytes, str]:
    """The content of an image file, given itself or by its path, and its name in messages. URLs are refused."""
    if isinstance(image, (bytes, bytearray, memoryview)):
        return bytes(image), "the image"
    if isinstance(image, str) and URL.match(image):
        raise ValueError(
            f"an image must be a path, not a URL; got {image[:80]}. "
            "Fix: download it and pass the bytes: urllib.request.urlopen(url).read()."
        )
    if Path(image).is_dir():
        raise IsADirectoryError(
            f"{image} is a folder; an image is needed. Fix: the images in it; a pipeline takes a folder, not in a list."
        )
    if not Path(image).is_file():
        raise FileNotFoundError(f"no image at {image}. Fix: check the path.")
    return Path(image).read_bytes(), str(image)


def to_rgb_image(image: AnyImage, *, upright: bool = True, transparency: str = "white") -> Image:
    """An RGB Pillow image from a path, the bytes of a file, a Pillow image, or a uint8 array (H, W), (H, W, 1),
    (H, W, 3) or, with transparency, (H, W, 4). For the options see `zeroshift.data.images.decode`."""
    if isinstance(image, (str, Path, bytes, bytearray, memoryview)):
        content, name = read_image_bytes(image)
        return decode(content, name, upright=upright, transparency=transparency).image
    if isinstance(image, np.ndarray):
        if image.dtype != np.uint8 or not (image.ndim == 2 or (image.ndim == 3 and image.shape[2] in (1, 3, 4))):
            raise ValueError(
                f"an image array must be uint8, (H, W, 3), (H, W, 4) or (H, W); got {image.dtype} of shape "
                f"{image.shape}. Fix: {_array_fix(image)}."
            )
        if 0 in image.shape:
            raise ValueError(
                f"an image must have at least one pixel; got an array of shape {image.shape}. Fix: remove it."
            )
        image = pillow().fromarray(image[..., 0] if image.shape[2:] == (1,) else image)
    elif not hasattr(image, "convert"):
        fix = "file.read()" if hasattr(image, "read") else "PIL.Image.open(file), or numpy.asarray(image)"
        raise TypeError(
            "an image must be a path, the bytes of a file, a Pillow image or an (H, W, 3) uint8 array; got "
            f"{type(image).__name__}. Fix: {fix}."
        )
    return to_rgb(cast("Image", image), upright=upright, transparency=transparency).image


def _array_fix(image: np.ndarray) -> str:
    if image.ndim == 3 and image.shape[0] in (1, 3, 4) and image.shape[2] not in (1, 3, 4):
        return "image.transpose(1, 2, 0), with the channels last"
    if image.dtype != np.uint8:
        return "(255 * image).astype('uint8') if its values are between 0 and 1"
    return "list(images), if they are several"


Pixels = tuple[np.ndarray, ...]
"""The image inputs of a model, for one image or stacked for several. Most models have one array, (3, H, W)."""

RESAMPLING = {"nearest": 0, "lanczos": 1, "bilinear": 2, "bicubic": 3, "box": 4, "hamming": 5}
"""Pillow's numbers of the filters, which configuration files of published models also use."""


MAX_PIXELS = 2**27
"""Maximum size, 400 MB, of an image resized by its shorter side: very long and thin images would need gigabytes."""


class Preprocessing(ABC):
    """What a model does to an image first. Picklable: worker processes have a copy."""

    size: tuple[int, int]
    """Height and width of the model's input; views are cropped to it."""

    @abstractmethod
    def __call__(self, image: Image) -> Pixels:
        """Preprocess an RGB image of any size."""

    @abstractmethod
    def to_pixels(self, image: Image) -> Pixels:
        """Preprocess an RGB image that already has the size `size`."""

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """All settings that determine the result, JSON-serialisable, for cache keys."""


@dataclass(frozen=True)
class PixelPreprocessing(Preprocessing):
    """Resize, crop the centre and normalise: the preprocessing of nearly every published model.

    Parameters
    ----------
    resize : `("shorter", s)` scales the shorter side to s and keeps the aspect ratio; `("exact", h, w)` does not keep
        it; None does not resize.
    crop : height and width of the centre crop, black beyond the image's edge; None does not crop.
    resample : Pillow's name of the filter.
    table : (3, 256) float32, the normalised value of each byte of each channel (see `affine_table`).

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
                f"table must have (3, 256) finite numbers, one per value of each channel; got shape "
                f"{self.table.shape}. Fix: affine_table(mean=[0.5] * 3, std=[0.5] * 3)."
            )
        if self.crop is None and (self.resize is None or self.resize[0] == "shorter"):
            raise ValueError(
                f"crop=None with resize={self.resize!r} gives images of different sizes, which cannot be stacked. "
                "Fix: give crop=(height, width), or resize=('exact', height, width)."
            )

    @property
    def size(self) -> tuple[int, int]:  # type: ignore[override]
        if self.crop is not None:
            return self.crop
        assert self.resize is not None
        return (self.resize[1], self.resize[2])

    def __call__(self, image: Image) -> Pixels:
        return self.to_pixels(self.crop_image(self.resize_image(image)))

    def resize_image(self, image: Image) -> Image:
        if self.resize is None:
            return image
        if self.resize[0] == "exact":
            height, width = self.resize[1:]
        else:
            shorter = self.resize[1]
            # The longer side is truncated to an integer, not rounded, as in torchvision and every published model.
            width, height = (
                (shorter, int(shorter * image.height / image.width))
                if image.width <= image.height
                else (int(shorter * image.width / image.height), shorter)
            )
            if width * height > MAX_PIXELS:
                raise ValueError(f"{image.width} x {image.height} pixels are too long and thin to be resized")
        return image.resize((width, height), RESAMPLING[self.resample])

    def crop_image(self, image: Image) -> Image:
        if self.crop is None:
            return image
        height, width = self.crop
        top, left = (image.height - height) // 2, (image.width - width) // 2
        return image.crop((left, top, left + width, top + height))

    def to_pixels(self, image: Image) -> Pixels:
        return (np.ascontiguousarray(np.asarray(image, np.uint8).transpose(2, 0, 1)),)

    def values(self, pixels: np.ndarray) -> np.ndarray:
        """Normalised values of (..., 3, H, W) pixels: bytes, or numbers between 0 and 255."""
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
            # For readers: for nearly every model the table is linear between these.
            "black": [round(float(value), 6) for value in self.table[:, 0]],
            "white": [round(float(value), 6) for value in self.table[:, 255]],
        }


def affine_table(mean: list[float], std: list[float]) -> np.ndarray:
    """(3, 256): (byte / 255 - mean) / std for each channel."""
    if len(mean) != 3 or len(std) != 3 or not all(deviation > 0 for deviation in std):
        raise ValueError(
            f"mean and std must have three numbers each, for red, green and blue, and std must be positive; got "
            f"mean={mean!r}, std={std!r}. Fix: affine_table(mean=[0.5] * 3, std=[0.5] * 3)."
        )
    values = np.arange(256, dtype=np.float64) / 255
    return np.stack([(values - m) / s for m, s in zip(mean, std, strict=True)]).astype(np.float32)
