"""Augmented views of an image: the image itself and random crops, optionally with AugMix.

Each view has its own random generator, seeded by seed, image and view. A view therefore does not depend on the order,
the process or the number of views.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import ImageOps
from PIL.Image import Image, Resampling, Transform

from zeroshift.encode.encoder import stack_pixels
from zeroshift.parameters import Constraint, Flag, Number, Pair

if TYPE_CHECKING:
    from zeroshift.encode.preprocessing import Pixels, Preprocessing

__all__ = ["MAX_LEVEL", "OPERATIONS", "Views", "augmix", "crop_box"]


MAX_LEVEL = 10
"""The level at which an operation has its full strength, given below."""

MIN_LEVEL = 0.1
"""Levels are drawn between this and the severity."""

CHAINS, MAX_DEPTH = 3, 3
"""Number of altered copies, and maximum number of operations applied to each."""

POSTERIZE_BITS = 4
"""Bits kept at level 0, and removed at full strength."""
ROTATE_DEGREES = 30
SOLARIZE_VALUES = 256
SHEAR = 0.3
TRANSLATE_PART = 3
"""At full strength, a third of the image's width or height."""

Operation = Callable[[Image, float, int], Image]
"""A function of an image, a level between 0 and MAX_LEVEL, and a sign."""


def augmix(
    image: Image, pixels: Callable[[Image], np.ndarray], rng: np.random.Generator, *, severity: float = 1
) -> np.ndarray:
    """AugMix (Hendrycks et al. 2020) as in TPT: `image` mixed with altered copies, float32 between 0 and 255.

    The authors mix normalised tensors. Mixing pixels is equivalent, because normalisation is affine and the weights sum
    to 1.

    Parameters
    ----------
    image : an RGB image of its final size.
    pixels : converts an image to an array of bytes.
    rng : random generator.
    severity : the highest level of an operation.

    >>> from PIL import Image
    >>> grey = Image.new("RGB", (2, 2), (90, 90, 90))
    >>> augmix(grey, np.asarray, np.random.default_rng(0)).shape
    (2, 2, 3)
    """
    weights = rng.dirichlet(np.ones(CHAINS))
    original_weight = rng.beta(1, 1)
    mixed = np.float32(original_weight) * pixels(image).astype(np.float32)
    for weight in weights:
        altered = image
        for _ in range(rng.integers(1, MAX_DEPTH, endpoint=True)):
            operation = OPERATIONS[OPERATION_NAMES[rng.integers(len(OPERATION_NAMES))]]
            altered = operation(altered, rng.uniform(MIN_LEVEL, severity), 1 if rng.random() < 0.5 else -1)
        mixed += np.float32((1 - original_weight) * weight) * pixels(altered).astype(np.float32)
    return mixed


def _strength(level: float, full: float) -> float:
    return level * full / MAX_LEVEL


def _autocontrast(image: Image, level: float, sign: int) -> Image:
    return ImageOps.autocontrast(image)


def _equalize(image: Image, level: float, sign: int) -> Image:
    return ImageOps.equalize(image)


def _posterize(image: Image, level: float, sign: int) -> Image:
    return ImageOps.posterize(image, POSTERIZE_BITS - int(_strength(level, POSTERIZE_BITS)))


def _rotate(image: Image, level: float, sign: int) -> Image:
    return image.rotate(sign * int(_strength(level, ROTATE_DEGREES)), Resampling.BILINEAR)


def _solarize(image: Image, level: float, sign: int) -> Image:
    return ImageOps.solarize(image, SOLARIZE_VALUES - int(_strength(level, SOLARIZE_VALUES)))


def _shear_x(image: Image, level: float, sign: int) -> Image:
    return _affine(image, (1, sign * _strength(level, SHEAR), 0, 0, 1, 0))


def _shear_y(image: Image, level: float, sign: int) -> Image:
    return _affine(image, (1, 0, 0, sign * _strength(level, SHEAR), 1, 0))


def _translate_x(image: Image, level: float, sign: int) -> Image:
    return _affine(image, (1, 0, sign * int(_strength(level, image.width / TRANSLATE_PART)), 0, 1, 0))


def _translate_y(image: Image, level: float, sign: int) -> Image:
    return _affine(image, (1, 0, 0, 0, 1, sign * int(_strength(level, image.height / TRANSLATE_PART))))


def _affine(image: Image, matrix: tuple[float, ...]) -> Image:
    """Each pixel (x, y) becomes the one at (a x + b y + c, d x + e y + f), or black outside of the image."""
    return image.transform(image.size, Transform.AFFINE, matrix, Resampling.BILINEAR)


OPERATIONS: dict[str, Operation] = {
    "autocontrast": _autocontrast,
    "equalize": _equalize,
    "posterize": _posterize,
    "rotate": _rotate,
    "solarize": _solarize,
    "shear_x": _shear_x,
    "shear_y": _shear_y,
    "translate_x": _translate_x,
    "translate_y": _translate_y,
}
"""The operations by name. None of them is one of ImageNet-C's corruptions."""

OPERATION_NAMES = tuple(OPERATIONS)

ATTEMPTS = 10
"""Random crops tried before the centre crop is used, as in torchvision."""

_POSITIVE = Number(0, above=True)
_FRACTION = Number(0, 1, above=True)

PARAMETERS: dict[str, Constraint] = {
    "n_views": Number(1, integer=True),
    "augmix": Flag(),
    "seed": Number(0, integer=True),
    "scale": Pair(_FRACTION, _FRACTION, ("lowest", "highest")),
    "ratio": Pair(_POSITIVE, _POSITIVE, ("lowest", "highest")),
    "flip": Number(0, 1),
    "severity": Number(1, 10, integer=True),
}


@dataclass(frozen=True)
class Views:
    """How views of an image are made. The defaults are those of TPT and, without AugMix, of ADAPT, MTA and ZERO.

    Parameters
    ----------
    n_views : views per image, including the unchanged one; 64 in the literature.
    augmix : apply AugMix to each view, as TPT does on fine-grained data sets.
    seed : seed of the random crops.
    scale : lowest and highest area of a crop, as a fraction of the image's.
    ratio : lowest and highest ratio of a crop's width to its height.
    flip : probability that a crop is mirrored.
    severity : strength of AugMix, 1 to 10; only used with `augmix`.

    >>> from PIL import Image
    >>> from zeroshift.encode.preprocessing import PixelPreprocessing, affine_table
    >>> clip = PixelPreprocessing(("shorter", 4), (4, 4), "bicubic", affine_table(mean=[0.5] * 3, std=[0.5] * 3))
    >>> (pixels,) = Views(16)(Image.new("RGB", (12, 8), (255, 0, 0)), clip, key=b"red")
    >>> pixels.shape, pixels.dtype.name
    ((16, 3, 4, 4), 'uint8')
    """

    n_views: int = 64
    augmix: bool = False
    seed: int = 0
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    flip: float = 0.5
    severity: int = 1

    def __post_init__(self) -> None:
        for name, constraint in PARAMETERS.items():
            object.__setattr__(self, name, constraint.check(name, getattr(self, name)))
        for name in ("scale", "ratio"):
            lowest, highest = getattr(self, name)
            if lowest > highest:
                raise ValueError(
                    f"{name} must have its lower value first; got {(lowest, highest)}. Fix: {name}={(highest, lowest)}."
                )

    def __call__(self, image: Image, preprocessing: Preprocessing, key: bytes) -> Pixels:
        """The views of an RGB image, stacked; view 0 is the image as `preprocessing` returns it.

        Parameters
        ----------
        image : of any size; it is cropped before it is resized.
        preprocessing : the model's.
        key : bytes that identify the image, such as a digest of its content. Equal keys give equal crops.

        Returns
        -------
        A (V, 3, H, W) array of bytes (or several arrays, if `preprocessing` returns several). With AugMix, float32
        between 0 and 255.
        """
        if not isinstance(key, bytes):
            raise TypeError(f"key must be bytes; got {type(key).__name__}. Fix: a digest, or str(key).encode().")
        if not hasattr(image, "mode"):
            raise TypeError(f"image must be a Pillow image; got {type(image).__name__}. Fix: Image.fromarray(image).")
        if image.mode != "RGB":
            raise ValueError(f"image must have mode 'RGB'; got {image.mode!r}. Fix: image.convert('RGB').")
        original = preprocessing(image)
        if self.augmix:
            _check_mixable(original)
            original = (original[0].astype(np.float32),)
        others = (self._make_view(image, preprocessing, self._rng(key, view)) for view in range(1, self.n_views))
        return stack_pixels([original, *others])

    def describe(self) -> dict[str, Any]:
        """The settings that determine the views, JSON-serialisable, for cache keys and provenance."""
        settings: dict[str, Any] = {name: getattr(self, name) for name in PARAMETERS}
        settings |= {"scale": list(self.scale), "ratio": list(self.ratio)}
        if not self.augmix:
            del settings["severity"]
        return settings

    def _rng(self, key: bytes, view: int) -> np.random.Generator:
        digest = hashlib.sha256(b"%d:%b" % (self.seed, key)).digest()
        # The view is part of the seed, so that a view can be made without the previous ones.
        return np.random.default_rng(np.random.SeedSequence(int.from_bytes(digest, "big"), spawn_key=(view,)))

    def _make_view(self, image: Image, preprocessing: Preprocessing, rng: np.random.Generator) -> Pixels:
        from PIL.Image import Resampling, Transpose

        height, width = preprocessing.size
        # Crop, then resize: `resize(box=...)` would blend pixels from beyond the crop into its edges.
        crop = image.crop(crop_box(image.size, self.scale, self.ratio, rng)).resize(
            (width, height), Resampling.BILINEAR
        )
        if rng.random() < self.flip:
            crop = crop.transpose(Transpose.FLIP_LEFT_RIGHT)
        if not self.augmix:
            return preprocessing.to_pixels(crop)

        return (augmix(crop, lambda altered: preprocessing.to_pixels(altered)[0], rng, severity=self.severity),)


def crop_box(
    size: tuple[int, int], scale: tuple[float, float], ratio: tuple[float, float], rng: np.random.Generator
) -> tuple[int, int, int, int]:
    """Left, top, right and bottom of a random crop, as in torchvision's RandomResizedCrop.

    The area is uniform in `scale`, the ratio of width to height log-uniform in `ratio`. If no random crop fits, in very
    long or very wide images, the result is the largest centre crop that `ratio` allows.

    Parameters
    ----------
    size : width and height of the image.

    >>> crop_box((500, 2), (0.5, 1.0), (3 / 4, 4 / 3), np.random.default_rng(0))
    (248, 0, 251, 2)
    """
    width, height = size
    for _ in range(ATTEMPTS):
        area = width * height * rng.uniform(*scale)
        shape = math.exp(rng.uniform(math.log(ratio[0]), math.log(ratio[1])))
        w, h = round(math.sqrt(area * shape)), round(math.sqrt(area / shape))
        if 0 < w <= width and 0 < h <= height:
            left = int(rng.integers(0, width - w, endpoint=True))
            top = int(rng.integers(0, height - h, endpoint=True))
            return left, top, left + w, top + h
    w, h = width, height
    if width / height < ratio[0]:
        h = max(1, round(width / ratio[0]))
    elif width / height > ratio[1]:
        w = max(1, round(height * ratio[1]))
    left, top = (width - w) // 2, (height - h) // 2
    return left, top, left + w, top + h


def _check_mixable(pixels: Pixels) -> None:
    if len(pixels) == 1 and pixels[0].dtype == np.uint8:
        return
    given = f"{len(pixels)} arrays of {', '.join(array.dtype.name for array in pixels)}"
    raise ValueError(
        f"augmix=True mixes pixels, so the model's preprocessing must return one array of bytes; it returns {given}. "
        "Fix: augmix=False, or a model whose input is one array."
    )
