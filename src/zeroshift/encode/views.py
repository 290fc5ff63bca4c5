"""Augmented views of a picture: the picture itself, random crops of it, and on request AugMix of those.

Each view has a random stream of its own, named by seed, picture and view. So a view is the same in whatever order, in
whichever process and beside however many others it is made.
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

from zeroshift.encode.encoder import stacked
from zeroshift.parameters import Constraint, Flag, Number, Pair

if TYPE_CHECKING:
    from zeroshift.encode.preprocessing import Pixels, Preprocessing

__all__ = ["MAX_LEVEL", "OPERATIONS", "Views", "augmix", "crop_box"]


# AugMix (Hendrycks et al. 2020) as TPT uses it: a picture mixed with altered copies of itself.
#
# An operation takes a level between 0 and MAX_LEVEL and a sign, both drawn elsewhere, so that each is a plain
# function.


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

ATTEMPTS = 10
"""Crops drawn before a crop of the centre is taken instead; torchvision's number."""

_POSITIVE = Number(0, above=True)
_SHARE = Number(0, 1, above=True)

PARAMETERS: dict[str, Constraint] = {
    "n_views": Number(1, integer=True),
    "augmix": Flag(),
    "seed": Number(0, integer=True),
    "scale": Pair(_SHARE, _SHARE, ("lowest", "highest")),
    "ratio": Pair(_POSITIVE, _POSITIVE, ("lowest", "highest")),
    "flip": Number(0, 1),
    "severity": Number(1, 10, integer=True),
}


@dataclass(frozen=True)
class Views:
    """How the views of a picture are made. The defaults are those of TPT and, without AugMix, of ADAPT, MTA and ZERO.

    Parameters
    ----------
    n_views : views of each picture, the plain one included: 64 in the literature.
    augmix : mix each view with altered copies of itself. TPT does so on fine-grained data sets.
    seed : another seed, other views.
    scale : the lowest and highest share of the picture's area that a crop takes.
    ratio : the lowest and highest width by height of a crop.
    flip : the share of crops that are mirrored.
    severity : strength of AugMix, 1 to 10; without `augmix` it is not used.

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
                    f"{name} must have its lower end first; got {(lowest, highest)}. Fix: {name}={(highest, lowest)}."
                )

    def __call__(self, image: Image, preprocessing: Preprocessing, key: bytes) -> Pixels:
        """The views of an RGB picture, stacked; view 0 is what `preprocessing` alone makes of it.

        Parameters
        ----------
        image : of any size; crops are cut from it as it is, before any scaling.
        preprocessing : the model's.
        key : bytes that tell this picture from others, such as a digest of its content. The same key draws the same
            crops.

        Returns
        -------
        A (V, 3, H, W) array of bytes (or several arrays, where `preprocessing` gives several). With AugMix all views
        are float32 between 0 and 255, because mixtures of bytes are no bytes.
        """
        if not isinstance(key, bytes):
            raise TypeError(f"key must be bytes; got {type(key).__name__}. Fix: a digest, or str(key).encode().")
        if not hasattr(image, "mode"):
            raise TypeError(f"image must be a Pillow image; got {type(image).__name__}. Fix: Image.fromarray(image).")
        if image.mode != "RGB":
            raise ValueError(f"image must have mode 'RGB'; got {image.mode!r}. Fix: image.convert('RGB').")
        plain = preprocessing(image)
        if self.augmix:
            _check_mixable(plain)
            plain = (plain[0].astype(np.float32),)
        others = (self._view(image, preprocessing, self._stream(key, view)) for view in range(1, self.n_views))
        return stacked([plain, *others])

    def describe(self) -> dict[str, Any]:
        """What decides the views, as JSON can hold it: a part of the key features are kept under, and of provenance."""
        settings: dict[str, Any] = {name: getattr(self, name) for name in PARAMETERS}
        settings |= {"scale": list(self.scale), "ratio": list(self.ratio)}
        if not self.augmix:
            del settings["severity"]
        return settings

    def _stream(self, key: bytes, view: int) -> np.random.Generator:
        digest = hashlib.sha256(b"%d:%b" % (self.seed, key)).digest()
        # The view is in the name of its stream, not in its place within one: nobody has to make the views before it.
        return np.random.default_rng(np.random.SeedSequence(int.from_bytes(digest, "big"), spawn_key=(view,)))

    def _view(self, image: Image, preprocessing: Preprocessing, rng: np.random.Generator) -> Pixels:
        from PIL.Image import Resampling, Transpose

        height, width = preprocessing.size
        # Cut, then scaled: `resize(box=...)` would let pixels from beyond the crop bleed in at its edges.
        crop = image.crop(crop_box(image.size, self.scale, self.ratio, rng)).resize(
            (width, height), Resampling.BILINEAR
        )
        if rng.random() < self.flip:
            crop = crop.transpose(Transpose.FLIP_LEFT_RIGHT)
        if not self.augmix:
            return preprocessing.ready(crop)

        return (augmix(crop, lambda altered: preprocessing.ready(altered)[0], rng, severity=self.severity),)


def crop_box(
    size: tuple[int, int], scale: tuple[float, float], ratio: tuple[float, float], rng: np.random.Generator
) -> tuple[int, int, int, int]:
    """Left, top, right and bottom of a random crop, drawn as torchvision's RandomResizedCrop draws it.

    The area is uniform in `scale`, the ratio of width to height log-uniform in `ratio`. Where no drawn crop fits, in
    pictures much longer than wide or the other way, it is the largest crop of the centre that `ratio` allows.

    Parameters
    ----------
    size : width and height of the picture.

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


def _check_mixable(plain: Pixels) -> None:
    if len(plain) == 1 and plain[0].dtype == np.uint8:
        return
    given = f"{len(plain)} arrays of {', '.join(array.dtype.name for array in plain)}"
    raise ValueError(
        f"augmix=True mixes pixels, so the model's preprocessing must give one array of bytes; this one gives {given}. "
        "Fix: augmix=False, or a model that takes plain pictures."
    )
