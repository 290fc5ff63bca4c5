"""AugMix (Hendrycks et al. 2020) as TPT uses it: a picture mixed with altered copies of itself.

An operation takes a level between 0 and MAX_LEVEL and a sign, both drawn elsewhere, so that each is a plain function.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from PIL import ImageOps
from PIL.Image import Image, Resampling, Transform

__all__ = ["MAX_LEVEL", "OPERATIONS", "augmix"]

MAX_LEVEL = 10
"""The level at which an operation has its full strength; the strengths below are those."""

MIN_LEVEL = 0.1
"""Levels are drawn from here up to the severity."""

CHAINS, MAX_DEPTH = 3, 3
"""Altered copies that are mixed, and the most operations in a row that make one."""

POSTERIZE_BITS = 4
"""Bits kept at level 0, and taken away at full strength."""
ROTATE_DEGREES = 30
SOLARIZE_VALUES = 256
SHEAR = 0.3
TRANSLATE_PART = 3
"""A third of the picture's width or height."""

Operation = Callable[[Image, float, int], Image]


def augmix(
    image: Image, pixels: Callable[[Image], np.ndarray], rng: np.random.Generator, *, severity: float = 1
) -> np.ndarray:
    """`image` mixed with altered copies of itself: float32 between 0 and 255, of the shape `pixels` gives.

    The authors mix normalised tensors. Mixing pixels is the same, because normalisation is affine and the weights sum
    to 1, and leaves the normalisation to whoever holds the model.

    Parameters
    ----------
    image : an RGB picture of its final size.
    pixels : a picture as an array of bytes.
    rng : where the draws come from.
    severity : the highest level of an operation.

    >>> from PIL import Image
    >>> grey = Image.new("RGB", (2, 2), (90, 90, 90))
    >>> augmix(grey, np.asarray, np.random.default_rng(0)).shape
    (2, 2, 3)
    """
    shares = rng.dirichlet(np.ones(CHAINS))
    plain = rng.beta(1, 1)
    mixed = np.float32(plain) * pixels(image).astype(np.float32)
    for share in shares:
        altered = image
        for _ in range(rng.integers(1, MAX_DEPTH, endpoint=True)):
            operation = OPERATIONS[NAMES[rng.integers(len(NAMES))]]
            altered = operation(altered, rng.uniform(MIN_LEVEL, severity), 1 if rng.random() < 0.5 else -1)
        mixed += np.float32((1 - plain) * share) * pixels(altered).astype(np.float32)
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
    """Each pixel (x, y) becomes that at (a x + b y + c, d x + e y + f); black where there is none."""
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
"""By name. None of them is among ImageNet-C's corruptions."""

NAMES = tuple(OPERATIONS)
