"""TCA from pictures: each one is condensed with what the ones before it taught, then learned from and answered."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from zeroshift.arrays import Array, normalize, to_numpy
from zeroshift.encode.condensation.vision import CondensedVision
from zeroshift.encode.encoder import Encoder
from zeroshift.encode.pictures import as_picture
from zeroshift.methods import TCA

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["adapt_images"]


def adapt_images(
    method: TCA, vision: CondensedVision | Encoder, images: Iterable[Image | np.ndarray | str | Path]
) -> Iterator[Array]:
    """The probabilities (K,) of one picture after the other, as they are made: no picture waits for the next.

    `vision` is a `CondensedVision`, or a CLIP encoder with its defaults. Prototypes of `method` must come from the same
    encoder.
    """
    import torch

    if not isinstance(method, TCA):
        raise TypeError(f"method must be a TCA; got {type(method).__name__}. Fix: zeroshift.methods.TCA(prototypes).")
    if isinstance(images, (str, Path)) or not isinstance(images, Iterable):
        raise TypeError(f"images must be several, in a list; got one {type(images).__name__}. Fix: [image].")
    walk = vision if isinstance(vision, CondensedVision) else CondensedVision(vision)
    encoder = walk.encoder
    if method.dimension != encoder.dimension:
        raise ValueError(
            f"method has prototypes of d = {method.dimension}, the encoder gives d = {encoder.dimension}. "
            "Fix: make the prototypes with the same encoder."
        )

    def answers() -> Iterator[Array]:
        for image in images:
            pixels = tuple(array[None] for array in encoder.preprocessing(as_picture(image)))
            with torch.inference_mode():
                anchors = None if method.anchors is None else torch.as_tensor(to_numpy(method.anchors))
                seen = walk.see(encoder._to_device(pixels[0], first=True)[0], anchors)
                feature = normalize(seen.feature.float().cpu().numpy()[None])
                tokens = seen.tokens.float().cpu().numpy()[None]
            yield method.adapt_tokens(feature, tokens)[0]

    return answers()
