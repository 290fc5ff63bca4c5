"""Bytes to an RGB picture: what a file may hold that is no plain 8-bit RGB picture is converted, told or refused."""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["FORMATS", "Decoded", "ImageError", "decode", "pillow"]

FORMATS = ("JPEG", "PNG", "GIF", "WEBP", "BMP", "TIFF", "PPM")
"""What is read, by Pillow's names. Not all it could read: some formats (EPS) would start another program."""

INKS = ("CMYK", "LAB")
"""Modes made for print: their colours on a screen depend on a profile, so the picture may look unlike itself."""

DEEP = ("I", "I;16", "I;16L", "I;16B", "I;16N")
"""Modes of greyscale with more than 8 bits, which Pillow would clip at 255 instead of scale."""

TIFF_BITS, TIFF_SAMPLE_FORMAT, TIFF_SIGNED = 258, 339, 2
"""TIFF 6.0: the tags BitsPerSample and SampleFormat, and the latter's value for signed integers."""

ORIENTATION = 0x0112
TURNS = {
    2: "FLIP_LEFT_RIGHT",
    3: "ROTATE_180",
    4: "FLIP_TOP_BOTTOM",
    5: "TRANSPOSE",
    6: "ROTATE_270",
    7: "TRANSVERSE",
    8: "ROTATE_90",
}
"""EXIF 2.3: the tag Orientation, and what brings each of its values upright, in Pillow's words."""


class ImageError(ValueError):
    """An image that cannot be used; the message names it, says why and what to do."""

    def __init__(self, name: str, what: str, fix: str) -> None:
        super().__init__(f"{name}: {what}. Fix: {fix}.")
        self.name, self.what, self.fix = name, what, fix

    def __reduce__(self) -> tuple[type[ImageError], tuple[str, str, str]]:
        # Raised in worker processes: without this, unpickling would call the class with the message alone.
        return type(self), (self.name, self.what, self.fix)


class Decoded(NamedTuple):
    """A picture, and what a careful reader should know about how it came about."""

    image: Image
    """A Pillow image of mode RGB."""
    note: str | None = None
    """What was done that changes the picture, or what the file warned of; None for most."""


def decode(data: bytes, name: str, *, upright: bool = False) -> Decoded:
    """The picture in the bytes of an image file, as 8-bit RGB.

    Only the first frame of an animation is taken. Greyscale of 16 or 32 bits is scaled from the full range of its type.
    Transparency is dropped, not blended with white: Pillow's conversion does so, and with it every published pipeline.

    Parameters
    ----------
    data
        The whole content of the file.
    name
        What messages call it.
    upright
        Turn the picture as its EXIF orientation says. Off by default, as in published protocols; photographs of one's
        own are better with it.

    >>> png = bytes.fromhex(
    ...     "89504e470d0a1a0a0000000d49484452000000010000000108020000009077"
    ...     "53de0000000c49444154789c63f8cfc0000003010100c9fe92ef0000000049454e44ae426082"
    ... )
    >>> image, note = decode(png, "red.png")
    >>> image.size, image.getpixel((0, 0)), note
    ((1, 1), (255, 0, 0), None)
    """
    Image = pillow()
    if not data:
        raise ImageError(name, "is empty (0 bytes)", "copy or download it again, or delete it")
    with warnings.catch_warnings(record=True) as caught, _no_padding():
        warnings.simplefilter("always")
        try:
            image, notes = _converted(data, name, upright)
        except ImageError:
            raise
        except Image.DecompressionBombError as error:
            raise ImageError(name, f"is too large to be opened safely ({error})", "shrink it first") from error
        except Image.UnidentifiedImageError as error:
            formats = ", ".join(FORMATS)
            fix = f"delete it or convert it; the formats read are {formats}"
            raise ImageError(name, f"is not an image ({_start(data)})", fix) from error
        except MemoryError:
            raise
        except Exception as error:  # on damaged files Pillow's decoders raise nearly anything
            fix = "copy or download it again, or delete it"
            raise ImageError(name, f"is truncated or damaged ({str(error) or type(error).__name__})", fix) from error
    notes += [" ".join(str(warning.message).split()) for warning in caught]
    return Decoded(image, "; ".join(dict.fromkeys(notes)) or None)


def _converted(data: bytes, name: str, upright: bool) -> tuple[Image, list[str]]:
    Image = pillow()
    notes = []
    with Image.open(io.BytesIO(data), formats=FORMATS) as opened:
        opened.load()
        if opened.mode in DEEP:
            image = _scaled(opened, name)
            notes.append("more than 8 bits of grey: scaled to 8")
        elif opened.mode == "F":
            fix = "save it with 8 or 16 bits; which value is white, only you know"
            raise ImageError(name, "holds floating-point values, which have no agreed range", fix)
        else:
            if opened.mode in INKS:
                notes.append(f"{opened.mode}: converted to RGB without a colour profile")
            image = opened.convert("RGB")
        if upright:
            image = _turned(image, opened, notes)
        # Last, because to count the frames of an animation is to read through it. A camera's MPO is one photograph
        # with a thumbnail or a second eye, not worth a word.
        frames = getattr(opened, "n_frames", 1)
        if frames > 1 and opened.format != "MPO":
            kind = f"{frames} pages" if opened.format == "TIFF" else f"animated, {frames} frames"
            notes.append(f"{kind}: the first is used")
    return image, notes


def _scaled(image: Image, name: str) -> Image:
    """Greyscale of many bits as 8 bits; a signed type's range is its non-negative half, light having no other."""
    tags = getattr(image, "tag_v2", {})
    # Pillow hands out PNG and PPM of 16 bits as 32-bit integers, too, or did so in earlier versions.
    bits = int(tags.get(TIFF_BITS, (16,))[0])
    signed = tags.get(TIFF_SAMPLE_FORMAT, (1,))[0] == TIFF_SIGNED
    values = np.asarray(image)
    if not signed and values.dtype == np.int32:
        values = values.view(np.uint32)  # Pillow has no unsigned type of 32 bits
    if values.min() < 0:
        raise ImageError(name, "holds negative values", "shift them, and save it with 8 or 16 bits")
    white = 2 ** (bits - signed) - 1
    grey = np.rint(values * (255 / white)).astype(np.uint8)
    return pillow().fromarray(grey).convert("RGB")


def _turned(image: Image, opened: Image, notes: list[str]) -> Image:
    try:
        turn = TURNS.get(opened.getexif().get(ORIENTATION, 1))
    except Exception as error:  # as many kinds as there are broken EXIF blocks; the pixels are whole all the same
        notes.append(f"unreadable EXIF, not turned ({str(error) or type(error).__name__})")
        return image
    return image.transpose(pillow().Transpose[turn]) if turn else image


def _start(data: bytes) -> str:
    """A hint at what the file is instead: a web page saved under a picture's name is the usual case."""
    if data.lstrip()[:1] in (b"<", b"{"):
        return "it looks like a web page or text"
    return f"it starts with {data[:8]!r}"


@contextmanager
def _no_padding() -> Iterator[None]:
    """Other libraries tell Pillow to fill truncated pictures with grey; here such a picture is an error."""
    from PIL import ImageFile

    before = ImageFile.LOAD_TRUNCATED_IMAGES
    ImageFile.LOAD_TRUNCATED_IMAGES = False
    try:
        yield
    finally:
        ImageFile.LOAD_TRUNCATED_IMAGES = before


def pillow() -> ModuleType:
    """`PIL.Image`, or an error that says how to get it."""
    try:
        from PIL import Image
    except ImportError as error:
        raise ImportError("reading images needs pillow. Fix: pip install 'zeroshift[encoders]'.") from error
    return Image
