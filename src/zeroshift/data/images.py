"""Where images come from: files below a folder, or rows of one .npy array.

Sources are cheap to make and to send to worker processes; pixels are read one image at a time, when asked for.
"""

from __future__ import annotations

import io
import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = [
    "FORMATS",
    "SUFFIXES",
    "Decoded",
    "ImageArrays",
    "ImageError",
    "ImageFiles",
    "ImageSource",
    "Stat",
    "decode",
    "pillow",
]


# Bytes to an RGB picture: what a file may hold that is no plain 8-bit RGB picture is converted, told or refused.


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


SUFFIXES = (".bmp", ".gif", ".jfif", ".jpeg", ".jpg", ".pbm", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
"""How the names of image files end, in lower case."""


class Stat(NamedTuple):
    """What a file looks like without being read. Two that were swapped can be of one size and time, but not of one
    number; one written over in place can be set back to its old time, but not in the file system's own record."""

    size: int
    modified: int
    """Time of the last writing, in nanoseconds; anyone can set it."""
    changed: int
    """Time of the last change of content, name or times, in nanoseconds; nobody can set it."""
    inode: int


class ImageSource(Protocol):
    """What a set of images is read through."""

    def __len__(self) -> int: ...

    def name(self, i: int) -> str:
        """What messages call image `i`; the same on every machine."""

    def read(self, i: int) -> bytes:
        """The raw content of image `i`, as for hashing."""

    def path(self, i: int) -> Path | None:
        """The file of image `i`; None where it has no file of its own."""

    def stat(self, i: int) -> Stat | None:
        """What tells whether its file has changed; None where the image has no file of its own."""

    def open(self, i: int) -> Decoded:
        """Image `i`, decoded."""

    def open_from(self, data: bytes, i: int) -> Decoded:
        """Image `i`, decoded from what `read(i)` gave, so that one reading serves hash and pixels."""

    def take(self, indices: Sequence[int] | np.ndarray) -> ImageSource:
        """The images at `indices`, in that order."""

    def decoding(self) -> dict[str, Any]:
        """What beside an image's content decides its pixels, as JSON can hold it."""


@dataclass(frozen=True)
class ImageFiles:
    """Image files below a folder.

    >>> files = ImageFiles(Path("photos"), ("cats/1.jpg", "dogs/1.jpg"))
    >>> len(files), files.name(1), files.take([1]).names
    (2, 'dogs/1.jpg', ('dogs/1.jpg',))
    """

    root: Path
    names: tuple[str, ...]
    """Paths relative to `root`, with forward slashes."""
    upright: bool = False
    """See `decode`."""

    def __len__(self) -> int:
        return len(self.names)

    def name(self, i: int) -> str:
        return self.names[i]

    def path(self, i: int) -> Path:
        return self.root / self.names[i]

    def read(self, i: int) -> bytes:
        try:
            return self.path(i).read_bytes()
        except OSError as error:
            raise self._unreadable(i, error) from error

    def stat(self, i: int) -> Stat:
        try:
            status = os.stat(self.path(i))
        except OSError as error:
            raise self._unreadable(i, error) from error
        return Stat(status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)

    def open(self, i: int) -> Decoded:
        return self.open_from(self.read(i), i)

    def open_from(self, data: bytes, i: int) -> Decoded:
        return decode(data, self.name(i), upright=self.upright)

    def take(self, indices: Sequence[int] | np.ndarray) -> ImageFiles:
        return replace(self, names=tuple(self.names[int(i)] for i in indices))

    def decoding(self) -> dict[str, Any]:
        return {"upright": self.upright}

    def _unreadable(self, i: int, error: OSError) -> ImageError:
        if isinstance(error, FileNotFoundError):
            return ImageError(self.name(i), f"is not (or no longer) in {self.root}", "restore it, or list the set anew")
        fix = "check its permissions and the disk, or leave it out"
        return ImageError(self.name(i), f"cannot be read ({error.strerror or error})", fix)


class ImageArrays:
    """Images in one .npy file of type uint8: (N, H, W, 3), (N, H, W, 1) or (N, H, W).

    The file is mapped, not loaded, and mapped anew in each process that receives the source. Rows of `indices`, or all.
    """

    def __init__(self, path: Path, indices: np.ndarray | None = None) -> None:
        self.file = Path(path)
        self._array = _mapped(self.file)
        self.indices = np.arange(len(self._array)) if indices is None else np.asarray(indices, dtype=np.int64)

    def __repr__(self) -> str:
        return f"ImageArrays({str(self.file)!r}, {len(self)} of {len(self._array)} images)"

    def __reduce__(self) -> tuple[Any, ...]:
        return ImageArrays, (self.file, self.indices)

    def __len__(self) -> int:
        return len(self.indices)

    def name(self, i: int) -> str:
        return f"{self.file.name}[{self.indices[i]}]"

    def read(self, i: int) -> bytes:
        return self._array[self.indices[i]].tobytes()

    def path(self, i: int) -> None:
        return None

    def stat(self, i: int) -> None:
        return None

    def open(self, i: int) -> Decoded:
        return self.open_from(self.read(i), i)

    def open_from(self, data: bytes, i: int) -> Decoded:
        Image = pillow()
        pixels: np.ndarray = np.frombuffer(data, np.uint8).reshape(self._array.shape[1:])
        return Decoded(Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels).convert("RGB"))

    def take(self, indices: Sequence[int] | np.ndarray) -> ImageArrays:
        return ImageArrays(self.file, self.indices[np.asarray(indices, dtype=np.int64)])

    def decoding(self) -> dict[str, Any]:
        # The bytes of a row alone do not say how wide it is.
        return {"array": list(self._array.shape[1:])}


def _mapped(path: Path) -> np.ndarray:
    """The array of a file, mapped; refused where it does not hold 8-bit images."""
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError as error:
        raise ImageError(path.name, f"is not in {path.parent}", "check the path") from error
    except OSError as error:
        raise ImageError(path.name, f"cannot be read ({error.strerror or error})", "check its permissions") from error
    except (ValueError, EOFError) as error:
        fix = "write it with np.save from a uint8 array"
        raise ImageError(path.name, f"is not a readable .npy file of numbers ({error})", fix) from error
    if not isinstance(array, np.ndarray):
        raise ImageError(path.name, "is an .npz archive, not one array", "np.save the array of images on its own")
    what = f"holds an array of shape {array.shape} and type {array.dtype}"
    if array.dtype != np.uint8:
        fix = "np.save((255 * images).round().astype(np.uint8)) where they lie in 0..1"
        raise ImageError(path.name, f"{what}; images must be uint8", fix)
    if array.ndim == 3 and array.shape[2] <= 4:
        raise ImageError(path.name, f"{what}, which looks like a single image", "np.save(images[None])")
    if array.ndim == 4 and array.shape[3] not in (1, 3) and array.shape[1] in (1, 3):
        fix = "np.save(images.transpose(0, 2, 3, 1))"
        raise ImageError(path.name, f"{what}; channels must come last", fix)
    if array.ndim not in (3, 4) or (array.ndim == 4 and array.shape[3] not in (1, 3)):
        fix = "bring them to (N, H, W, 3), (N, H, W, 1) or (N, H, W)"
        raise ImageError(path.name, what, fix)
    if 0 in array.shape[1:]:
        raise ImageError(path.name, f"{what}: the images have no pixels", "write the file again")
    return array
