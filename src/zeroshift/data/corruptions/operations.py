"""Image operations of the corruptions: grey levels, warps, zoom, directional blur, plasma clouds and drawn frost."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

__all__ = [
    "LEVELS",
    "affine_from_points",
    "clipped_zoom",
    "directional_blur",
    "displace",
    "draw_frost",
    "line_kernel",
    "plasma",
    "to_levels",
    "to_unit",
]

LEVELS = 255
"""The highest grey level of 8 bits."""

TOLERANCE = 1e-6
"""Added before truncation, in grey levels, so that rounding errors do not change the result between machines."""


def to_unit(image: np.ndarray) -> np.ndarray:
    """8-bit pixels as float64 in [0, 1]."""
    return image / LEVELS


def to_levels(unit: np.ndarray) -> np.ndarray:
    """Float pixels as 8 bits: clipped to [0, 1] and truncated, not rounded, as in ImageNet-C.

    >>> to_levels(np.array([-0.2, 0.5, 100 / 255, 7.0]))
    array([  0, 127, 100, 255], dtype=uint8)
    """
    return (np.clip(unit, 0, 1) * LEVELS + TOLERANCE).astype(np.uint8)


def affine_from_points(image: np.ndarray, points: np.ndarray, moved: np.ndarray) -> np.ndarray:
    """`image` (H, W, 3) under the affine map that takes three `points`, (3, 2) as row and column, to `moved`.

    >>> image = np.arange(48.0).reshape(4, 4, 3)
    >>> points = np.array([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0]])
    >>> bool(np.allclose(affine_from_points(image, points, points + (0, 1))[:, 1:], image[:, :-1]))
    True
    """
    # The inverse map gives the source of each pixel of the result.
    backward, *_ = np.linalg.lstsq(_homogeneous(moved), points, rcond=None)
    return _interpolate(image, _homogeneous(_grid(image)) @ backward, mode="mirror")


def displace(image: np.ndarray, field: np.ndarray) -> np.ndarray:
    """`image` (H, W, 3) with each pixel taken from its position plus `field` (H, W, 2), as row and column."""
    return _interpolate(image, _grid(image) + field, mode="reflect")


def _grid(image: np.ndarray) -> np.ndarray:
    """Row and column of each pixel, (H, W, 2)."""
    rows, columns = image.shape[:2]
    return np.stack(np.meshgrid(np.arange(rows), np.arange(columns), indexing="ij"), axis=-1)


def _homogeneous(points: np.ndarray) -> np.ndarray:
    return np.concatenate([points, np.ones((*points.shape[:-1], 1))], axis=-1)


def _interpolate(image: np.ndarray, where: np.ndarray, mode: str) -> np.ndarray:
    """Linear interpolation. Beyond the border the image is mirrored, at the centre ("mirror") or at the edge
    ("reflect") of the outermost pixels."""
    from scipy.ndimage import map_coordinates

    coordinates = np.moveaxis(where, -1, 0)
    channels = [map_coordinates(channel, coordinates, order=1, mode=mode) for channel in np.moveaxis(image, -1, 0)]
    return np.stack(channels, axis=-1)


def clipped_zoom(image: np.ndarray, factor: float) -> np.ndarray:
    """The central 1 / `factor` of each side of `image` (H, W) or (H, W, 3), enlarged linearly to (H, W).

    >>> clipped_zoom(np.arange(16.0).reshape(4, 4), 2.0).round(2)[0].tolist()
    [5.0, 5.33, 5.67, 6.0]
    """
    return _zoom_axis(_zoom_axis(image, factor, axis=0), factor, axis=1)


def _zoom_axis(image: np.ndarray, factor: float, axis: int) -> np.ndarray:
    """Enlarge the centre of one axis so that its first and last pixels stay the first and last.

    Linear interpolation is separable, so the axes are processed one after the other. This is several times faster than
    `scipy.ndimage.zoom`, which the released code calls, and equal up to rounding.
    """
    side = image.shape[axis]
    kept = math.ceil(side / factor)
    enlarged = round(kept * factor)
    # `kept` was rounded up, so there may be a pixel or two too many: they are trimmed evenly.
    trim = (enlarged - side) // 2
    positions = (side - kept) // 2 + np.arange(trim, trim + side) * ((kept - 1) / (enlarged - 1))
    low = np.minimum(positions.astype(int), side - 2)
    fraction = np.expand_dims(positions - low, axis=tuple(range(1, image.ndim - axis)))
    return (1 - fraction) * image.take(low, axis) + fraction * image.take(low + 1, axis)


def line_kernel(radius: int, sigma: float, angle: float) -> tuple[np.ndarray, np.ndarray]:
    """The weights of a directional blur and the offsets, (row, column), of the pixels they apply to.

    The weights are one half of a Gaussian, so the blur trails off to one side. There are 2 * radius + 1 weights, one
    pixel apart; each applies to the nearest pixel (of two equally near, the one with the lower coordinate).

    >>> weights, offsets = line_kernel(1, 0.5, angle=0)
    >>> weights.round(4).tolist(), offsets.tolist()
    ([0.8805, 0.1192, 0.0003], [[0, 0], [0, 1], [0, 2]])
    """
    along = np.arange(2 * radius + 1)
    weights = np.exp(-(along**2) / (2 * sigma**2))
    direction = np.array([np.sin(np.deg2rad(angle)), np.cos(np.deg2rad(angle))])
    offsets = np.ceil(along[:, None] * direction - 0.5).astype(int)
    return weights / weights.sum(), offsets


def directional_blur(image: np.ndarray, *, radius: int, sigma: float, angle: float) -> np.ndarray:
    """8-bit `image` (H, W) or (H, W, 3) blurred along `angle`, in degrees, clockwise from the right.

    Like ImageMagick's `MotionBlurImage`, which ImageNet-C uses, it repeats the outermost pixels beyond the border and
    rounds to the nearest level.
    """
    weights, offsets = line_kernel(radius, sigma, angle)
    height, width = image.shape[:2]
    margin = 2 * radius
    padded = np.pad(image, [(margin, margin)] * 2 + [(0, 0)] * (image.ndim - 2), mode="edge")
    blurred = np.zeros(image.shape)
    for weight, (down, right) in zip(weights, offsets + margin, strict=True):
        blurred += weight * padded[down : down + height, right : right + width]
    return np.floor(blurred + 0.5).astype(np.uint8)


ROUGHNESS = 100.0
"""Square root of the random heights on the coarsest grid. The map is scaled to [0, 1], so only the decay matters."""


def plasma(side: int, decay: float, rng: np.random.Generator) -> np.ndarray:
    """A periodic height map in [0, 1], (`side`, `side`), by the diamond-square algorithm; `side` is a power of two.

    The grid spacing is halved down to one pixel. Each new point is the mean of its four neighbours plus a random
    height, uniform up to the square of a roughness that is divided by `decay` from grid to grid. A small decay gives
    small, hard clouds, a large one soft, wide clouds.

    >>> clouds = plasma(64, 2.0, np.random.default_rng(0))
    >>> clouds.shape, float(clouds.min()), float(clouds.max())
    ((64, 64), 0.0, 1.0)
    """
    heights = np.zeros((side, side))
    step, roughness = side, ROUGHNESS

    def midpoint(neighbours: np.ndarray) -> np.ndarray:
        return neighbours / 4 + roughness**2 * rng.uniform(-1, 1, size=neighbours.shape)

    while step >= 2:
        on, between = slice(0, side, step), slice(step // 2, side, step)
        corners = heights[on, on]
        pairs = corners + np.roll(corners, -1, axis=0)
        heights[between, between] = midpoint(pairs + np.roll(pairs, -1, axis=1))
        centres = heights[between, between]
        heights[on, between] = midpoint(centres + np.roll(centres, 1, axis=0) + corners + np.roll(corners, -1, axis=1))
        heights[between, on] = midpoint(centres + np.roll(centres, 1, axis=1) + corners + np.roll(corners, -1, axis=0))
        step //= 2
        roughness /= decay
    heights -= heights.min()
    return heights / heights.max()


# Constants of drawn frost: straight stems with twigs at 60 degrees, and twiglets on the twigs, over white clouds.

PIXELS_PER_STEM = 500
"""One hundred stems on a 224 x 224 image."""
STEM_LENGTHS = (25.0, 90.0)
"""In pixels."""
BRANCHING = np.pi / 3
"""Ice crystals are hexagonal: branches leave at 60 degrees."""
SPACINGS = (3.0, 3.0)
"""Pixels between twigs on a stem, and between twiglets on a twig."""
BRANCH_LENGTHS = (0.2, 0.5)
"""Relative to the rest of the parent beyond the fork, so that crystals taper."""
BRIGHTNESS = (1.0, 0.6, 0.3)
"""Brightness of stems, twigs and twiglets."""
SAMPLES_PER_PIXEL = 2
SOFTNESS = 0.6
"""Standard deviation of the smoothing of strokes, in pixels."""
CLOUD_DECAY = 1.5
CLOUD_WEIGHT = 0.7
"""Brightness of the whitest cloud."""
TINT = (0.86, 0.94, 1.0)
"""Slightly blue, like ice in shade."""


class Strokes(NamedTuple):
    """Straight strokes: start points (n, 2) as row and column, directions in radians, and lengths."""

    start: np.ndarray
    angle: np.ndarray
    length: np.ndarray


def draw_frost(height: int, width: int, rng: np.random.Generator) -> np.ndarray:
    """A drawn pane of frost, (height, width, 3), float64 in [0, 255].

    >>> pane = draw_frost(32, 48, np.random.default_rng(0))
    >>> pane.shape, bool(pane.min() >= 0), bool(pane.max() <= 255)
    ((32, 48, 3), True, True)
    """
    from scipy.ndimage import gaussian_filter

    # Stems may start outside the image, so that the border is as frosted as the middle.
    margin = STEM_LENGTHS[1] / 2
    area = (height + 2 * margin) * (width + 2 * margin)
    count = round(area / PIXELS_PER_STEM)
    strokes = Strokes(
        rng.uniform((-margin, -margin), (height + margin, width + margin), size=(count, 2)),
        rng.uniform(0, 2 * np.pi, size=count),
        rng.uniform(*STEM_LENGTHS, size=count),
    )
    drawn = np.zeros((height, width))
    _draw(drawn, strokes, BRIGHTNESS[0])
    for spacing, brightness in zip(SPACINGS, BRIGHTNESS[1:], strict=True):
        strokes = _branches(strokes, spacing, rng)
        _draw(drawn, strokes, brightness)
    needles = 1 - np.exp(-gaussian_filter(drawn, SOFTNESS))
    side = 2 ** int(np.ceil(np.log2(max(height, width))))
    clouds = CLOUD_WEIGHT * plasma(side, CLOUD_DECAY, rng)[:height, :width]
    # Screen blending: crystals stay visible in white clouds, and no value exceeds 1.
    pane = 1 - (1 - needles) * (1 - clouds)
    return 255 * pane[..., None] * np.array(TINT)


def _branches(parents: Strokes, spacing: float, rng: np.random.Generator) -> Strokes:
    """Strokes that leave `parents` every `spacing` pixels, to a random side."""
    counts = (parents.length / spacing).astype(int)
    parent = np.repeat(np.arange(len(counts)), counts)
    rank = np.arange(len(parent)) - np.repeat(np.cumsum(counts) - counts, counts)
    along = (rank + rng.uniform(0, 1, size=len(parent))) * spacing
    angle = parents.angle[parent]
    side = rng.choice([-1, 1], size=len(parent))
    return Strokes(
        parents.start[parent] + along[:, None] * _direction(angle),
        angle + side * BRANCHING,
        (parents.length[parent] - along) * rng.uniform(*BRANCH_LENGTHS, size=len(parent)),
    )


def _draw(canvas: np.ndarray, strokes: Strokes, brightness: float) -> None:
    """Add strokes to `canvas`; each sample is distributed over the four pixels around it."""
    counts = np.ceil(strokes.length * SAMPLES_PER_PIXEL).astype(int)
    stroke = np.repeat(np.arange(len(counts)), counts)
    rank = np.arange(len(stroke)) - np.repeat(np.cumsum(counts) - counts, counts)
    points = strokes.start[stroke] + rank[:, None] / SAMPLES_PER_PIXEL * _direction(strokes.angle[stroke])
    low = np.floor(points).astype(int)
    fraction = points - low
    for down in (0, 1):
        for right in (0, 1):
            row, column = low[:, 0] + down, low[:, 1] + right
            weight = np.abs(1 - down - fraction[:, 0]) * np.abs(1 - right - fraction[:, 1])
            inside = (row >= 0) & (row < canvas.shape[0]) & (column >= 0) & (column < canvas.shape[1])
            pixel = row[inside] * canvas.shape[1] + column[inside]
            light = np.bincount(pixel, weight[inside], minlength=canvas.size).reshape(canvas.shape)
            canvas += brightness / SAMPLES_PER_PIXEL * light


def _direction(angle: np.ndarray) -> np.ndarray:
    return np.stack([np.sin(angle), np.cos(angle)], axis=-1)
