"""The middle of an image, enlarged to its size."""

from __future__ import annotations

import math

import numpy as np

__all__ = ["clipped_zoom"]


def clipped_zoom(image: np.ndarray, factor: float) -> np.ndarray:
    """The middle 1 / `factor` of each side of `image` (H, W) or (H, W, 3), enlarged linearly to (H, W).

    >>> clipped_zoom(np.arange(16.0).reshape(4, 4), 2.0).round(2)[0].tolist()
    [5.0, 5.33, 5.67, 6.0]
    """
    return _enlarged(_enlarged(image, factor, axis=0), factor, axis=1)


def _enlarged(image: np.ndarray, factor: float, axis: int) -> np.ndarray:
    """One axis: its middle, enlarged so that the first and last pixel stay the first and last.

    The values between pixels are linear in each axis, so the axes may be taken one after the other: several times as
    fast as `scipy.ndimage.zoom`, which the released code calls, and the same but for rounding.
    """
    side = image.shape[axis]
    kept = math.ceil(side / factor)
    enlarged = round(kept * factor)
    # `kept` was rounded up, so a pixel or two may be too much: they are cut off evenly.
    trim = (enlarged - side) // 2
    places = (side - kept) // 2 + np.arange(trim, trim + side) * ((kept - 1) / (enlarged - 1))
    low = np.minimum(places.astype(int), side - 2)
    share = np.expand_dims(places - low, axis=tuple(range(1, image.ndim - axis)))
    return (1 - share) * image.take(low, axis) + share * image.take(low + 1, axis)
