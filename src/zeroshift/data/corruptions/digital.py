"""Digital damage: contrast, elastic transformation, pixelation and JPEG compression."""

from __future__ import annotations

import io

import numpy as np

from zeroshift.data.corruptions.operations import displace, move_points, to_levels, to_unit
from zeroshift.data.images import pillow

__all__ = ["contrast", "elastic_transform", "jpeg_compression", "pixelate"]

FIELD_REACH = 3.0
"""Standard deviations after which the Gaussian that smooths the displacements is cut off."""


def contrast(image: np.ndarray, rng: np.random.Generator, *, factor: float) -> np.ndarray:
    """Each channel drawn towards its mean over the image, to `factor` of its distance. `rng` is not used."""
    unit = to_unit(image)
    mean = unit.mean(axis=(0, 1), keepdims=True)
    return to_levels(mean + factor * (unit - mean))


def elastic_transform(
    image: np.ndarray, rng: np.random.Generator, *, distance: float, sigma: float, jitter: float
) -> np.ndarray:
    """Bent like rubber: an affine map that moves three points by up to `jitter`, then displacements pixel by pixel.

    These are uniform noise up to `distance`, smoothed by a Gaussian of standard deviation `sigma`. As published for
    ImageNet-C, severities 1 and 2 tilt the whole image and 3 to 5 ripple it: damage by squared error is largest at
    severity 2.
    """
    from scipy.ndimage import gaussian_filter

    size = np.array(image.shape[:2])
    centre, arm = size // 2, min(size) // 3
    corners = centre + arm * np.array([(1, 1), (-1, 1), (-1, -1)])
    moved = move_points(to_unit(image), corners, corners + rng.uniform(-jitter, jitter, size=corners.shape))
    noise = rng.uniform(-1, 1, size=(*size, 2))
    field = distance * gaussian_filter(noise, (sigma, sigma, 0), mode="reflect", truncate=FIELD_REACH)
    return to_levels(displace(moved, field))


def pixelate(image: np.ndarray, rng: np.random.Generator, *, scale: float) -> np.ndarray:
    """Shrunk to `scale` of its sides and enlarged again, by Pillow's box filter. `rng` is not used."""
    Image = pillow()
    height, width = image.shape[:2]
    small = Image.fromarray(image).resize((int(width * scale), int(height * scale)), Image.Resampling.BOX)
    return np.array(small.resize((width, height), Image.Resampling.BOX))


def jpeg_compression(image: np.ndarray, rng: np.random.Generator, *, quality: int) -> np.ndarray:
    """Saved by Pillow as a JPEG of this quality, and read again. `rng` is not used."""
    Image = pillow()
    with io.BytesIO() as file:
        Image.fromarray(image).save(file, "JPEG", quality=quality)
        with Image.open(file) as opened:
            return np.array(opened)
