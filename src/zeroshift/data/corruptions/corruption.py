"""The photographs of frost that ImageNet-C was made with, for those who have them."""

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
    "SMALLEST",
    "Corruption",
    "FramedCorruption",
    "corrupt",
]

# One kind of corruption at one severity, applied to images; the same image gives the same result everywhere.


SMALLEST = 8
"""Pixels that each side of an image must have: glass blur at severity 5 reaches over four on either side."""

Picture = TypeVar("Picture", "Image", np.ndarray)


@dataclass(frozen=True)
class Corruption:
    """A kind of corruption at a severity, ready for many images.

    The random stream of an image follows from `seed`, `kind`, `severity` and the image's key alone, never from the
    order of images or the process that holds it, so a set may be split among workers, stopped and gone on with.

    Parameters
    ----------
    kind
        One of `KINDS`.
    severity
        1 to 5.
    seed
        Another seed, other noise.
    frost_images
        A folder with ImageNet-C's photographs of frost. Without it frost is drawn; other kinds do not look at it.
    made_for
        The side in pixels of the images whose severities are taken: 224 for ImageNet-C's, 32 for CIFAR-10-C's. Neither
        table is scaled to other images. On pictures of 32 x 32 pixels ImageNet-C's leave little to be recognised; on
        photographs CIFAR-10-C's hardly show. The random stream is the same for both.

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
            value = _integer(getattr(self, name))
            if value is None or value < 0 or (name == "severity" and value not in SEVERITIES):
                given, fix = getattr(self, name), "5 is the strongest" if name == "severity" else "seed=0"
                raise ValueError(f"{name} must be {allowed}; got {given!r}. Fix: {fix}.")
            object.__setattr__(self, name, value)
        made_for = _integer(self.made_for)
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

    def __call__(self, image: Picture, key: bytes | int | None = None) -> Picture:
        """`image`, corrupted; itself it stays as it is.

        Parameters
        ----------
        image
            A Pillow image of mode RGB, or uint8 of shape (H, W, 3); at least 8 pixels high and wide. The constants are
            in pixels of an image of the side `made_for` and are not scaled to others: on smaller images the same kind
            and severity do more harm, on larger ones less.
        key
            What tells this image from others, such as the digest of its file; None takes the digest of its pixels.
        """
        pixels = _pixels(image, self.made_for)
        digest = hashlib.sha256(repr(pixels.shape).encode() + pixels.tobytes()).digest() if key is None else key
        function = getattr(kinds, self.kind)
        result = function(pixels, self._stream(digest), **self._parameters())
        if isinstance(image, np.ndarray):
            return result
        return _pillow().fromarray(result)

    def describe(self) -> dict[str, Any]:
        """What was done to the images, for provenance; plain JSON.

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

    def _stream(self, key: bytes | int) -> np.random.Generator:
        if isinstance(key, bytes):
            told = b"bytes:" + key
        elif (number := _integer(key)) is not None:
            told = f"integer:{number}".encode()
        else:
            raise TypeError(f"key must be bytes, an integer or None; got {key!r}. Fix: pass the image's digest.")
        # Hashed as one, so that no two combinations share a stream.
        whole = f"{self.kind}:{self.severity}:{self.seed}:".encode() + told
        entropy = int.from_bytes(hashlib.sha256(whole).digest(), "big")
        return np.random.Generator(np.random.Philox(np.random.SeedSequence(entropy)))


def corrupt(
    image: Picture,
    kind: str,
    severity: int = 5,
    *,
    seed: int = 0,
    frost_images: str | os.PathLike[str] | None = None,
    made_for: int = 224,
) -> Picture:
    """`image` with one of the corruptions of ImageNet-C or CIFAR-10-C; a Pillow image or an array, as it was given.

    The noise follows from `seed` and the pixels: the same image gives the same result, another image other noise.
    `Corruption` says what the parameters may be.

    >>> grey = np.full((8, 8, 3), 100, np.uint8)
    >>> corrupt(grey, "brightness", 1)[0, 0].tolist()
    [125, 125, 125]
    >>> corrupt(grey, "brightness", 1, made_for=32)[0, 0].tolist()
    [112, 112, 112]
    """
    folder = None if frost_images is None else Path(frost_images)
    return Corruption(kind, severity, seed, folder, made_for)(image)


def _integer(value: Any) -> int | None:
    """An int or NumPy integer as an int; None for anything else, and for True and False."""
    try:
        return None if isinstance(value, (bool, np.bool_)) else operator.index(value)
    except TypeError:
        return None


def _pillow() -> Any:
    from zeroshift.data.images import pillow

    return pillow()


def _pixels(image: Any, made_for: int) -> np.ndarray:
    """The pixels of a picture, (H, W, 3) and uint8, or an error that says what is wrong with it."""
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
        fix = "(255 * image).round().astype(np.uint8) where the values lie in 0..1"
        raise TypeError(f"image must be of type uint8, from 0 to 255; got {pixels.dtype}. Fix: {fix}.")
    if pixels.ndim != 3 or pixels.shape[2] != 3:
        fix = "np.stack([image] * 3, axis=-1) for a grey image; channels come last, images one at a time"
        raise ValueError(f"image must have the shape (H, W, 3); got {pixels.shape}. Fix: {fix}.")
    if min(pixels.shape[:2]) < SMALLEST:
        raise ValueError(
            f"image must be at least {SMALLEST} pixels high and wide; got {pixels.shape[0]} x {pixels.shape[1]} "
            f"(height x width). Fix: enlarge it, for example to {made_for} x {made_for}, "
            "for which the constants are made."
        )
    return pixels


# Photographs brought to the size the corruptions were made for, as ImageNet-C brought ImageNet's.


SHORTER, SIDE = 256, 224
"""Pixels: the shorter side is scaled to the first, and the centre cut out to the second."""


@dataclass(frozen=True)
class FramedCorruption:
    """A corruption of photographs of any size: scaled and cut as ImageNet-C's were, then corrupted.

    Severities are in pixels of a 224 x 224 image, so that the same blur would hardly show on a photograph of twelve
    million. Pictures of that size or smaller are corrupted as they are. So are all where the corruption is made for
    another size: CIFAR-10-C's pictures, of 32 x 32 pixels, were neither scaled nor cut.

    >>> from PIL import Image
    >>> framed = FramedCorruption(Corruption("contrast", severity=3))
    >>> framed(Image.new("RGB", (640, 480)), b"a").size, framed(Image.new("RGB", (32, 32)), b"a").size
    ((224, 224), (32, 32))
    """

    corruption: Corruption

    def __call__(self, image: Image, key: bytes) -> Image:
        return self.corruption(framed(image) if self._frames else image, key)

    def describe(self) -> dict[str, Any]:
        frame = {"shorter_side": SHORTER, "side": SIDE} if self._frames else {}
        return {**self.corruption.describe(), **frame}

    @property
    def _frames(self) -> bool:
        return self.corruption.made_for == SIDE


def framed(image: Image) -> Image:
    """The centre of the picture, 224 x 224; the picture itself where it is not larger."""
    from PIL.Image import Resampling

    width, height = image.size
    if min(width, height) <= SIDE:
        return image
    shorter = min(width, height)
    # Which way halves are rounded is that of the torchvision ImageNet-C was made with: down here, to even below.
    scaled = image.resize((SHORTER * width // shorter, SHORTER * height // shorter), Resampling.BILINEAR)
    left, top = round((scaled.width - SIDE) / 2), round((scaled.height - SIDE) / 2)
    return scaled.crop((left, top, left + SIDE, top + SIDE))
