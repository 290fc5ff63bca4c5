"""Blur along a line, as ImageMagick's `MotionBlurImage` defines it: ImageNet-C moves images and snowflakes with it."""

from __future__ import annotations

import numpy as np

__all__ = ["blur_along", "line_kernel"]


def line_kernel(radius: int, sigma: float, angle: float) -> tuple[np.ndarray, np.ndarray]:
    """The weights of the blur and, (row, column), the pixels they stand on.

    The weights are one half of a Gaussian, from its top down: the motion trails off to one side. There are
    2 * radius + 1 of them, a pixel apart, and each takes the nearest pixel (of two as near, the lower coordinate).

    >>> weights, offsets = line_kernel(1, 0.5, angle=0)
    >>> weights.round(4).tolist(), offsets.tolist()
    ([0.8805, 0.1192, 0.0003], [[0, 0], [0, 1], [0, 2]])
    """
    along = np.arange(2 * radius + 1)
    weights = np.exp(-(along**2) / (2 * sigma**2))
    direction = np.array([np.sin(np.deg2rad(angle)), np.cos(np.deg2rad(angle))])
    offsets = np.ceil(along[:, None] * direction - 0.5).astype(int)
    return weights / weights.sum(), offsets


def blur_along(image: np.ndarray, *, radius: int, sigma: float, angle: float) -> np.ndarray:
    """8-bit `image` (H, W) or (H, W, 3) blurred along `angle`, in degrees, clockwise from the right.

    Beyond its border the image goes on with its outermost pixels. Rounded to the nearest level, as ImageMagick does.
    """
    weights, offsets = line_kernel(radius, sigma, angle)
    height, width = image.shape[:2]
    margin = 2 * radius
    padded = np.pad(image, [(margin, margin)] * 2 + [(0, 0)] * (image.ndim - 2), mode="edge")
    blurred = np.zeros(image.shape)
    for weight, (down, right) in zip(weights, offsets + margin, strict=True):
        blurred += weight * padded[down : down + height, right : right + width]
    return np.floor(blurred + 0.5).astype(np.uint8)
