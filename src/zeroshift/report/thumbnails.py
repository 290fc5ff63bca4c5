"""Small pictures to stand inside a page: JPEG as text, nothing but pixels in it."""

from __future__ import annotations

import base64
import io
from typing import TYPE_CHECKING, NamedTuple

from zeroshift.data.decoding import pillow

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["BYTES_PER_PIXEL", "HEADER_BYTES", "Thumbnail", "thumbnail"]

BYTES_PER_PIXEL = 0.3
"""What a thumbnail may take: 7.7 kB at 160 x 160 pixels, enough for a photograph full of detail at quality 65."""

HEADER_BYTES = 700
"""What the tables of a JPEG take, however few pixels follow."""

QUALITIES = (80, 65, 50, 35, 20, 10, 5)
"""JPEG qualities, tried in turn until the file is small enough; the last ones are for noise."""

REDUCING_GAP = 3.0
"""How far above its final size a picture may be shrunk coarsely first; from 3 on it hardly shows (Pillow's manual)."""


class Thumbnail(NamedTuple):
    """A small picture as a page embeds it."""

    uri: str
    """`data:image/jpeg;base64,...`"""
    width: int
    height: int


def thumbnail(image: Image, longest: int) -> Thumbnail:
    """`image` with its longest side brought down to `longest` pixels, in its own proportions; never enlarged.

    What a file says beside its pixels (EXIF with place and time, comments, profiles) is left behind.

    >>> from PIL import Image
    >>> small = thumbnail(Image.new("RGB", (640, 480), "red"), 160)
    >>> small.width, small.height, small.uri[:23]
    (160, 120, 'data:image/jpeg;base64,')
    """
    resampling = pillow().Resampling.LANCZOS
    shrink = min(1.0, longest / max(image.size))
    width, height = (max(1, round(side * shrink)) for side in image.size)
    # To RGB before it is resized: of palettes and bitmaps Pillow would drop rows instead of averaging them.
    small = image.convert("RGB").resize((width, height), resampling, reducing_gap=REDUCING_GAP)
    # Pillow writes a comment it has read, unasked.
    small.info = {}
    data = _jpeg(small, limit=HEADER_BYTES + int(BYTES_PER_PIXEL * width * height))
    return Thumbnail(f"data:image/jpeg;base64,{base64.b64encode(data).decode('ascii')}", width, height)


def _jpeg(image: Image, *, limit: int) -> bytes:
    """The best of `QUALITIES` that takes at most `limit` bytes."""
    for quality in QUALITIES:
        buffer = io.BytesIO()
        image.save(buffer, "JPEG", quality=quality, optimize=True)
        if buffer.tell() <= limit:
            break
    return buffer.getvalue()
