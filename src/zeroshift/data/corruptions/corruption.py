"""`Corruption`: one kind of corruption at one severity. Equal images give equal results on every machine."""

from __future__ import annotations

import hashlib
import operator
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from zeroshift.data.corruptions import kinds
from zeroshift.data.corruptions.constants import KINDS, SEVERITIES, SIZES, constants
from zeroshift.suggest import did_you_mean

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = [
    "MIN_SIDE",
    "Corruption",
    "CroppedCorruption",
    "corrupt",
]

MIN_SIDE = 8
"""Smallest height and width in pixels: glass blur at severity 5 moves pixels by up to four in each direction."""

ImageT = TypeVar("ImageT", "Image", np.ndarray)


@dataclass(frozen=True)
class Corruption:
    """A kind of corruption at a severity, a function of images.

    The random numbers for an image depend only on `seed`, `kind`, `severity` and the image's key, not on the order of
    images or on the process. A set of images can therefore be split among workers, interrupted and resumed.

    Parameters
    ----------
    kind
        One of `KINDS`.
    severity
        1 to 5.
    seed
        Seed of the random numbers.
    frost_images
        A folder with ImageNet-C's photographs of frost. Without it, frost is drawn. Other kinds ignore it.
    made_for
        Side length in pixels of the images the severities are for: 224 for ImageNet-C's, 32 for CIFAR-10-C's. Neither
        table is scaled to other images: ImageNet-C's severities are too strong for images of 32 x 32 pixels, and
        CIFAR-10-C's too weak for photographs. The random numbers are the same for both.

    >>> fog = Corruption("fog", severity=3)
    >>> image = np.full((16, 16, 3), 200, np.uint8)
    >>> fog(image).shape
    (16, 16, 3)
    >>> bool(np.array_equal(fog(image, key=1), fog(image, key=2)))
    False
    """

    kind: str
    severity: int = 5
    seed: int = 0
    frost_images: Path | None = None
    made_for: int = 224

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            guess = did_you_mean(self.kind, KINDS)
            raise ValueError(f"kind must be one of {', '.join(KINDS)}; got {self.kind!r}. {guess}".rstrip())
        for name, allowed in [("severity", "an integer from 1 to 5"), ("seed", "an integer of at least 0")]:
            value = _as_integer(getattr(self, name))
            if value is None or value < 0 or (name == "severity" and value not in SEVERITIES):
                given, fix = getattr(self, name), "5 is the strongest" if name == "severity" else "seed=0"
                raise ValueError(f"{name} must be {allowed}; got {given!r}. Fix: {fix}.")
            object.__setattr__(self, name, value)
        made_for = _as_integer(self.made_for)
        if made_for not in SIZES:
            raise ValueError(
                "made_for must be 224, for the severities of ImageNet-C, or 32, for those of CIFAR-10-C; "
                f"got {self.made_for!r}. Fix: made_for=32 for images of about 32 x 32 pixels, else 224."
            )
        object.__setattr__(self, "made_for", made_for)
        if self.frost_images is not None:
            object.__setattr__(self, "frost_images", Path(self.frost_images))
            if self.kind == "frost":
                kinds.check_frost_images(Path(self.frost_images))

    def __call__(self, image: ImageT, key: bytes | int | None = None) -> ImageT:
        """A corrupted copy of `image`.

        Parameters
        ----------
        image
            A Pillow image of mode RGB, or a uint8 array (H, W, 3); at least 8 pixels high and wide. The constants are
            for images with side `made_for` and are not scaled: they damage smaller images more, and larger ones less.
        key
            Identifies the image, such as the digest of its file; None uses the digest of its pixels.
        """
        pixels = _pixels(image, self.made_for)
        digest = hashlib.sha256(repr(pixels.shape).encode() + pixels.tobytes()).digest() if key is None else key
        function = getattr(kinds, self.kind)
        result = function(pixels, self._rng(digest), **self._parameters())
        if isinstance(image, np.ndarray):
            return result
        return _pillow().fromarray(result)

    def describe(self) -> dict[str, Any]:
        """The corruption and its constants, JSON-serialisable, for provenance.

        >>> Corruption("frost", 1).describe()["frost"]
        'procedural'
        """
        record: dict[str, Any] = {
            "kind": self.kind,
            "severity": self.severity,
            "seed": self.seed,
            "made_for": self.made_for,
            "constants": constants(self.kind, self.severity, self.made_for),
        }
        if self.kind == "frost":
            record["frost"] = "procedural"
            if self.frost_images is not None:
                record["frost"] = f"photographs, sha256:{kinds.frost_digest(self.frost_images)}"
        return record

    def _parameters(self) -> dict[str, Any]:
        parameters: dict[str, Any] = constants(self.kind, self.severity, self.made_for)
        if self.kind == "frost" and self.frost_images is not None:
            parameters["frost_images"] = self.frost_images
        return parameters

    def _rng(self, key: bytes | int) -> np.random.Generator:
        if isinstance(key, bytes):
            identity = b"bytes:" + key
        elif (number := _as_integer(key)) is not None:
            identity = f"integer:{number}".encode()
        else:
            raise TypeError(f"key must be bytes, an integer or None; got {key!r}. Fix: pass the image's digest.")
        # Hashed together, so that no two combinations share random numbers.
        combined = f"{self.kind}:{self.severity}:{self.seed}:".encode() + identity
        entropy = int.from_bytes(hashlib.sha256(combined).digest(), "big")
        return np.random.Generator(np.random.Philox(np.random.SeedSequence(entropy)))


def corrupt(
    image: ImageT,
    kind: str,
    severity: int = 5,
    *,
    seed: int = 0,
    frost_images: str | os.PathLike[str] | None = None,
    made_for: int = 224,
) -> ImageT:
    """A copy of `image`, a Pillow image or an array, with one of the corruptions of ImageNet-C or CIFAR-10-C.

    The random numbers depend on `seed` and the pixels: equal images give equal results. `Corruption` describes the
    parameters.

    >>> grey = np.full((8, 8, 3), 100, np.uint8)
    >>> corrupt(grey, "brightness", 1)[0, 0].tolist()
    [125, 125, 125]
    >>> corrupt(grey, "brightness", 1, made_for=32)[0, 0].tolist()
    [112, 112, 112]
    """
    folder = None if frost_images is None else Path(frost_images)
    return Corruption(kind, severity, seed, folder, made_for)(image)


def _as_integer(value: Any) -> int | None:
    """An int or NumPy integer as an int; None for anything else, and for True and False."""
    try:
        return None if isinstance(value, (bool, np.bool_)) else operator.index(value)
    except TypeError:
        return None


def _pillow() -> Any:
    from zeroshift.data.images import pillow

    return pillow()


def _pixels(image: Any, made_for: int) -> np.ndarray:
    """The pixels of an image, (H, W, 3) and uint8; raises for anything else."""
    pixels = image
    if not isinstance(image, np.ndarray):
        if not hasattr(image, "getbands"):
            raise TypeError(
                f"image must be a Pillow image or a NumPy array; got {type(image).__name__}. "
                "Fix: Image.open(path).convert('RGB')."
            )
        if image.mode != "RGB":
            raise ValueError(f"image must have the mode RGB; got {image.mode}. Fix: image.convert('RGB').")
        pixels = np.asarray(image)
    if pixels.dtype != np.uint8:
        fix = "(255 * image).round().astype(np.uint8) if the values are in 0..1"
        raise TypeError(f"image must be of type uint8, from 0 to 255; got {pixels.dtype}. Fix: {fix}.")
    if pixels.ndim != 3 or pixels.shape[2] != 3:
        fix = "np.stack([image] * 3, axis=-1) for a grey image; channels come last, images one at a time"
        raise ValueError(f"image must have the shape (H, W, 3); got {pixels.shape}. Fix: {fix}.")
    if min(pixels.shape[:2]) < MIN_SIDE:
        raise ValueError(
            f"image must be at least {MIN_SIDE} pixels high and wide; got {pixels.shape[0]} x {pixels.shape[1]} "
            f"(height x width). Fix: enlarge it, for example to {made_for} x {made_for}, "
            "the size the constants are for."
        )
    return pixels


SHORTER, SIDE = 256, 224
"""The shorter side is scaled to 256 pixels, then the central 224 x 224 pixels are cropped."""


@dataclass(frozen=True)
class CroppedCorruption:
    """A corruption for photographs of any size: resized and cropped like ImageNet-C's, then corrupted.

    The constants are for images of 224 x 224 pixels; the same blur would hardly be visible on a large photograph.
    Images of that size or smaller are not resized. Nor are images for a corruption made for another size: CIFAR-10-C's
    images, of 32 x 32 pixels, were neither resized nor cropped.

    >>> from PIL import Image
    >>> fog = CroppedCorruption(Corruption("contrast", severity=3))
    >>> fog(Image.new("RGB", (640, 480)), b"a").size, fog(Image.new("RGB", (32, 32)), b"a").size
    ((224, 224), (32, 32))
    """

    corruption: Corruption

    def __call__(self, image: Image, key: bytes) -> Image:
        return self.corruption(resize_and_crop(image) if self._crops else image, key)

    def describe(self) -> dict[str, Any]:
        crop = {"shorter_side": SHORTER, "side": SIDE} if self._crops else {}
        return {**self.corruption.describe(), **crop}

    @property
    def _crops(self) -> bool:
        return self.corruption.made_for == SIDE


def resize_and_crop(image: Image) -> Image:
    """The centre of the resized image, 224 x 224; the image itself if it is not larger."""
    from PIL.Image import Resampling

    width, height = image.size
    if min(width, height) <= SIDE:
        return image
    shorter = min(width, height)
    # Rounded like the torchvision ImageNet-C was made with: down here, halves to even below.
    scaled = image.resize((SHORTER * width // shorter, SHORTER * height // shorter), Resampling.BILINEAR)
    left, top = round((scaled.width - SIDE) / 2), round((scaled.height - SIDE) / 2)
    return scaled.crop((left, top, left + SIDE, top + SIDE))
