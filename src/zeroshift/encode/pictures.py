"""Whatever stands for one picture in memory or on disk, as an RGB pillow image."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np

from zeroshift.data.decoding import decode, pillow

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["as_picture"]


def as_picture(image: Image | np.ndarray | str | Path) -> Image:
    """RGB, from a pillow image, an (H, W, 3) or (H, W) array of bytes, or the path of a file."""
    if isinstance(image, (str, Path)):
        if not Path(image).is_file():
            raise FileNotFoundError(f"no image at {image}. Fix: check the path.")
        return decode(Path(image).read_bytes(), str(image)).image
    if isinstance(image, np.ndarray):
        if image.dtype != np.uint8 or not (image.ndim == 2 or (image.ndim == 3 and image.shape[2] == 3)):
            raise ValueError(
                f"an array that stands for a picture must hold bytes, (H, W, 3) or (H, W); got {image.dtype} of shape "
                f"{image.shape}. Fix: (255 * image).astype('uint8') if its values lie between 0 and 1."
            )
        image = pillow().fromarray(image)
    elif not hasattr(image, "convert"):
        raise TypeError(
            f"an image must be a path, a pillow image or an (H, W, 3) array of bytes; got {type(image).__name__}. "
            "Fix: PIL.Image.open(file), or numpy.asarray(image)."
        )
    picture = cast("Image", image)
    if 0 in picture.size:
        raise ValueError(f"an image must have at least one pixel; got {picture.size} of them. Fix: leave it out.")
    return picture.convert("RGB")
