"""Photographs brought to the size the corruptions were made for, as ImageNet-C brought ImageNet's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from zeroshift.data.corruptions.corruption import Corruption

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["FramedCorruption"]

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
