"""Image decoding, and the two sources of images: files in a folder, and rows of one .npy array.

Sources are cheap to create and to send to worker processes. Pixels are read one image at a time, on demand.
"""

from __future__ import annotations

import io
import os
import stat
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from zeroshift.installation import install_command
from zeroshift.parameters import Choice
from zeroshift.parsers import read_npy

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = [
    "FORMATS",
    "HEIF_FIX",
    "HEIF_SUFFIXES",
    "IMAGE_SUFFIXES",
    "TRANSPARENCY",
    "DecodedImage",
    "FileStat",
    "ImageArrays",
    "ImageError",
    "ImageFiles",
    "ImageSource",
    "decode",
    "is_image",
    "pillow",
    "to_rgb",
]


FORMATS = ("JPEG", "PNG", "GIF", "WEBP", "BMP", "TIFF", "PPM")
"""The formats that are read, by Pillow's names. Others are refused: some (EPS) would start another program."""

PRINT_MODES = ("CMYK", "LAB")
"""Modes for print. Their colours on a screen depend on a profile, so the converted image may look different."""

HIGH_BIT_DEPTH_MODES = ("I", "I;16", "I;16L", "I;16B", "I;16N")
"""Greyscale modes with more than 8 bits, which Pillow would clip at 255 instead of scaling."""

TIFF_BITS, TIFF_SAMPLE_FORMAT, TIFF_SIGNED = 258, 339, 2
"""TIFF 6.0: the tags BitsPerSample and SampleFormat, and the latter's value for signed integers."""

TRANSPARENCY = Choice(("white", "black", "drop"))
"""What becomes of transparency: blended with white or black, or dropped, as Pillow's conversion does. Dropping it keeps
the colours that transparent pixels have in the file, which nobody sees: often black."""

ORIENTATION = 0x0112
TRANSPOSITIONS = {
    2: "FLIP_LEFT_RIGHT",
    3: "ROTATE_180",
    4: "FLIP_TOP_BOTTOM",
    5: "TRANSPOSE",
    6: "ROTATE_270",
    7: "TRANSVERSE",
    8: "ROTATE_90",
}
"""EXIF 2.3: the tag Orientation, and the name of Pillow's transposition that undoes each of its values."""


class ImageError(ValueError):
    """An image that cannot be used. The message has its name, the problem and the fix."""

    def __init__(self, name: str, problem: str, fix: str) -> None:
        super().__init__(f"{name}: {problem}. Fix: {fix}.")
        self.name, self.problem, self.fix = name, problem, fix

    def __reduce__(self) -> tuple[type[ImageError], tuple[str, str, str]]:
        # Raised in worker processes: by default, unpickling would call the class with the message as only argument.
        return type(self), (self.name, self.problem, self.fix)


class DecodedImage(NamedTuple):
    """An image, and a note if decoding changed it."""

    image: Image
    """A Pillow image of mode RGB."""
    note: str | None = None
    """How decoding changed the image, or what Pillow warned about; None for most images."""


def decode(
    data: bytes, name: str, *, upright: bool = False, transparency: str = "drop", longest: int | None = None
) -> DecodedImage:
    """Decode the content of an image file to 8-bit RGB.

    Only the first frame of an animation is used. Greyscale of 16 or 32 bits is scaled from the full range of its type.

    Parameters
    ----------
    data
        The whole content of the file.
    name
        Its name in messages.
    upright
        Rotate the image as its EXIF orientation says. Off by default, as in published protocols; recommended for your
        own photographs.
    transparency
        "white" or "black" is what shows through transparent pixels. "drop", the default, ignores transparency, as
        published protocols do; "white" is recommended for your own images.
    longest
        For thumbnails: a JPEG may be decoded at a half, a quarter or an eighth of its size, several times as fast, if
        both sides keep this many pixels.

    >>> png = bytes.fromhex(
    ...     "89504e470d0a1a0a0000000d49484452000000010000000108020000009077"
    ...     "53de0000000c49444154789c63f8cfc0000003010100c9fe92ef0000000049454e44ae426082"
    ... )
    >>> image, note = decode(png, "red.png")
    >>> image.size, image.getpixel((0, 0)), note
    ((1, 1), (255, 0, 0), None)
    """
    Image = pillow()
    TRANSPARENCY.check("transparency", transparency)
    if not data:
        raise ImageError(name, "is empty (0 bytes)", "copy or download it again, or delete it")
    with _SETTINGS.decoding() as caught:
        try:
            image, notes = _decode_first_frame(data, name, upright, transparency, longest)
        except ImageError:
            raise
        except Image.DecompressionBombError as error:
            raise ImageError(name, f"is too large to be opened safely ({error})", "shrink it first") from error
        except Image.UnidentifiedImageError as error:
            is_heif = data[4:8] == b"ftyp" and data[8:12] in HEIF_BRANDS
            fix = HEIF_FIX if is_heif else f"delete it or convert it; the formats read are {', '.join(_formats())}"
            raise ImageError(name, f"is not an image ({_describe_content(data)})", fix) from error
        except MemoryError:
            raise
        except Exception as error:  # Pillow's decoders raise many kinds of errors for damaged files
            fix = "copy or download it again, or delete it"
            raise ImageError(name, f"is truncated or damaged ({str(error) or type(error).__name__})", fix) from error
    notes += [" ".join(str(message).split()) for message in caught]
    return DecodedImage(image, "; ".join(dict.fromkeys(notes)) or None)


def to_rgb(image: Image, name: str = "an image", *, upright: bool = False, transparency: str = "drop") -> DecodedImage:
    """A Pillow image of any mode as 8-bit RGB; the options are those of `decode`."""
    notes: list[str] = []
    if 0 in image.size:
        raise ImageError(name, f"has no pixels (size {image.size})", "remove it")
    if image.mode in HIGH_BIT_DEPTH_MODES:
        rgb = _scale_to_8_bits(image, name)
        notes.append("more than 8 bits of grey: scaled to 8")
    elif image.mode == "F":
        fix = "save it with 8 or 16 bits per channel"
        raise ImageError(name, "has floating-point values, whose range is not defined", fix)
    elif transparency != "drop" and image.has_transparency_data:
        colours = image.convert("RGBA")
        rgb = pillow().new("RGBA", colours.size, transparency)
        rgb = pillow().alpha_composite(rgb, colours).convert("RGB")
    else:
        if image.mode in PRINT_MODES:
            notes.append(f"{image.mode}: converted to RGB without a colour profile")
        rgb = image.convert("RGB")
    if upright:
        rgb = _apply_orientation(rgb, image, notes)
    return DecodedImage(rgb, "; ".join(notes) or None)


def _decode_first_frame(
    data: bytes, name: str, upright: bool, transparency: str, longest: int | None
) -> tuple[Image, list[str]]:
    Image = pillow()
    with Image.open(io.BytesIO(data), formats=_formats()) as opened:
        if longest is not None:
            opened.draft(None, (longest, longest))
        opened.load()
        image, note = to_rgb(opened, name, upright=upright, transparency=transparency)
        notes = [] if note is None else [note]
        # Last, because counting the frames reads the whole file. MPO files of cameras hold one photograph and its
        # thumbnail or stereo pair, which need no note.
        frames = getattr(opened, "n_frames", 1)
        if frames > 1 and opened.format != "MPO":
            kind = f"{frames} pages" if opened.format == "TIFF" else f"animated, {frames} frames"
            notes.append(f"{kind}: the first is used")
    return image, notes


def _scale_to_8_bits(image: Image, name: str) -> Image:
    """Scale greyscale with more than 8 bits to 8; of a signed type, only the non-negative half is used."""
    tags = getattr(image, "tag_v2", {})
    # Some versions of Pillow return 16-bit PNG and PPM as 32-bit integers.
    bits = int(tags.get(TIFF_BITS, (16,))[0])
    signed = tags.get(TIFF_SAMPLE_FORMAT, (1,))[0] == TIFF_SIGNED
    values = np.asarray(image)
    if not signed and values.dtype == np.int32:
        values = values.view(np.uint32)  # Pillow has no unsigned 32-bit type
    if values.min() < 0:
        raise ImageError(name, "has negative values", "shift them, and save it with 8 or 16 bits per channel")
    white = 2 ** (bits - signed) - 1
    grey = np.rint(values * (255 / white)).astype(np.uint8)
    return pillow().fromarray(grey).convert("RGB")


def _apply_orientation(image: Image, opened: Image, notes: list[str]) -> Image:
    try:
        turn = TRANSPOSITIONS.get(opened.getexif().get(ORIENTATION, 1))
    except Exception as error:  # broken EXIF raises many kinds of errors; the pixels are still fine
        notes.append(f"unreadable EXIF, not rotated ({str(error) or type(error).__name__})")
        return image
    return image.transpose(pillow().Transpose[turn]) if turn else image


def _describe_content(data: bytes) -> str:
    """What the file is instead, for messages: often a web page saved under the name of an image."""
    if data.lstrip()[:1] in (b"<", b"{"):
        return "it looks like a web page or text"
    return f"it starts with {data[:8]!r}"


class _PillowSettings:
    """What decoding needs of settings that all threads share: truncated images are an error, even if another library
    configured Pillow to pad them with grey, and every warning is caught by the thread that it is about.

    The first of several threads that decode at the same time changes the settings, the last one changes them back.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._threads = 0
        self._own = threading.local()
        self._before: tuple[bool, Any, Any] = False, None, None

    @contextmanager
    def decoding(self) -> Iterator[list[object]]:
        """The warnings of this thread, as they come."""
        self._own.caught = []
        with self._lock:
            self._threads += 1
            if self._threads == 1:
                self._change()
        try:
            yield self._own.caught
        finally:
            self._own.caught = None
            with self._lock:
                self._threads -= 1
                if not self._threads:
                    self._change_back()

    def _change(self) -> None:
        from PIL import ImageFile

        self._before = ImageFile.LOAD_TRUNCATED_IMAGES, warnings.filters, warnings.showwarning
        ImageFile.LOAD_TRUNCATED_IMAGES = False
        vars(warnings).update(filters=list(warnings.filters), showwarning=self._catch)
        warnings.simplefilter("always")

    def _change_back(self) -> None:
        from PIL import ImageFile

        ImageFile.LOAD_TRUNCATED_IMAGES, filters, show = self._before
        vars(warnings).update(filters=filters, showwarning=show)

    def _catch(self, message: object, *args: Any, **kwargs: Any) -> None:
        caught = getattr(self._own, "caught", None)
        if caught is not None:
            caught.append(message)
        else:
            self._before[2](message, *args, **kwargs)


_SETTINGS = _PillowSettings()


def pillow() -> ModuleType:
    """`PIL.Image`, or an error that says how to get it."""
    try:
        from PIL import Image
    except ImportError as error:
        raise ImportError(f"reading images needs pillow. Fix: {install_command('encoders')}.") from error
    return Image


IMAGE_SUFFIXES = (".bmp", ".gif", ".jfif", ".jpeg", ".jpg", ".pbm", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
"""Suffixes of image files, in lower case."""

HEIF, HEIF_SUFFIXES = "HEIF", (".heic", ".heif")
"""Photographs of telephones: Pillow's name of the format, which pillow-heif adds, and the suffixes."""

HEIF_BRANDS = (b"heic", b"heix", b"hevc", b"mif1", b"msf1")
"""Bytes 8 to 11 of such files."""

HEIF_FIX = "pip install pillow-heif, or convert them to JPEG"


def is_image(name: str) -> bool:
    """Whether a file name has the suffix of an image that can be read here.

    >>> is_image("ILSVRC2012_val_00000293.JPEG"), is_image("README.txt")
    (True, False)
    """
    suffix = os.path.splitext(name.lower())[1] or name.lower()
    return suffix in IMAGE_SUFFIXES or (suffix in HEIF_SUFFIXES and find_spec("pillow_heif") is not None)


@cache
def _formats() -> tuple[str, ...]:
    """`FORMATS`, and with pillow-heif the photographs of telephones."""
    if find_spec("pillow_heif") is None:
        return FORMATS
    import_module("pillow_heif").register_heif_opener()
    return (*FORMATS, HEIF)


class FileStat(NamedTuple):
    """Attributes that show whether a file has changed, without reading it.

    The inode detects files that were swapped; `changed` detects an overwritten file whose modification time was reset.
    """

    size: int
    modified: int
    """Modification time in nanoseconds; programs can set it."""
    changed: int
    """Time of the last change of content or metadata, in nanoseconds; set by the file system alone."""
    inode: int

    @classmethod
    def of(cls, path: Path) -> FileStat:
        status = os.stat(path)
        return cls(status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)


class ImageSource(Protocol):
    """Interface of a source of images."""

    def __len__(self) -> int: ...

    def name(self, i: int) -> str:
        """The name of image `i` in messages; the same on every machine."""

    def read(self, i: int) -> bytes:
        """The raw content of image `i`."""

    def path(self, i: int) -> Path | None:
        """The file of image `i`; None if it has no file of its own."""

    def stat(self, i: int) -> FileStat | None:
        """Attributes that show whether the file has changed; None if the image has no file of its own."""

    def open(self, i: int) -> DecodedImage:
        """Image `i`, decoded."""

    def open_reduced(self, i: int, longest: int) -> DecodedImage:
        """Image `i` for a thumbnail with sides of at most `longest` pixels; it may be decoded at a fraction of its
        size."""

    def decode_bytes(self, data: bytes, i: int) -> DecodedImage:
        """Decode the content that `read(i)` returned, so that a file is read once for its hash and its pixels."""

    def take(self, indices: Sequence[int] | np.ndarray) -> ImageSource:
        """The images at `indices`, in that order."""

    def decoding_options(self) -> dict[str, Any]:
        """Options that decide the pixels besides the content; JSON-serialisable."""


@dataclass(frozen=True)
class ImageFiles:
    """Image files in a folder and its subfolders.

    >>> files = ImageFiles(Path("photos"), ("cats/1.jpg", "dogs/1.jpg"))
    >>> len(files), files.name(1), files.take([1]).names
    (2, 'dogs/1.jpg', ('dogs/1.jpg',))
    """

    root: Path
    names: tuple[str, ...]
    """Paths relative to `root`, with forward slashes."""
    upright: bool = False
    transparency: str = "drop"
    """See `decode` for both."""

    def __len__(self) -> int:
        return len(self.names)

    def name(self, i: int) -> str:
        return self.names[i]

    def path(self, i: int) -> Path:
        return self.root / self.names[i]

    def read(self, i: int) -> bytes:
        try:
            mode = os.stat(self.path(i)).st_mode
            if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                raise ImageError(self.name(i), "is a device, pipe or socket", "remove it")
            return self.path(i).read_bytes()
        except OSError as error:
            raise self._read_error(i, error) from error

    def stat(self, i: int) -> FileStat:
        try:
            return FileStat.of(self.path(i))
        except OSError as error:
            raise self._read_error(i, error) from error

    def open(self, i: int) -> DecodedImage:
        return self.decode_bytes(self.read(i), i)

    def open_reduced(self, i: int, longest: int) -> DecodedImage:
        return decode(self.read(i), self.name(i), upright=self.upright, transparency=self.transparency, longest=longest)

    def decode_bytes(self, data: bytes, i: int) -> DecodedImage:
        return decode(data, self.name(i), upright=self.upright, transparency=self.transparency)

    def take(self, indices: Sequence[int] | np.ndarray) -> ImageFiles:
        return replace(self, names=tuple(self.names[int(i)] for i in indices))

    def decoding_options(self) -> dict[str, Any]:
        # Without a word about what is dropped, so that caches of earlier versions keep their keys.
        shown = {} if self.transparency == "drop" else {"transparency": self.transparency}
        return {"upright": self.upright, **shown}

    def _read_error(self, i: int, error: OSError) -> ImageError:
        if isinstance(error, FileNotFoundError):
            return ImageError(
                self.name(i), f"is not (or no longer) in {self.root}", "restore it, or list the folder again"
            )
        fix = "check its permissions and the disk, or remove it"
        return ImageError(self.name(i), f"cannot be read ({error.strerror or error})", fix)


class ImageArrays:
    """Images in one .npy file of type uint8: (N, H, W, 3), (N, H, W, 1) or (N, H, W).

    The file is memory-mapped, again in each process that receives the source. `indices` selects rows; None takes all.
    """

    def __init__(self, path: Path, indices: np.ndarray | None = None) -> None:
        self.file = Path(path)
        self._array = _map_array(self.file)
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

    def open(self, i: int) -> DecodedImage:
        return self.decode_bytes(self.read(i), i)

    def open_reduced(self, i: int, longest: int) -> DecodedImage:
        return self.open(i)

    def decode_bytes(self, data: bytes, i: int) -> DecodedImage:
        Image = pillow()
        pixels: np.ndarray = np.frombuffer(data, np.uint8).reshape(self._array.shape[1:])
        return DecodedImage(Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels).convert("RGB"))

    def take(self, indices: Sequence[int] | np.ndarray) -> ImageArrays:
        return ImageArrays(self.file, self.indices[np.asarray(indices, dtype=np.int64)])

    def decoding_options(self) -> dict[str, Any]:
        # The bytes of a row do not determine its width.
        return {"array": list(self._array.shape[1:])}


def _map_array(path: Path) -> np.ndarray:
    """Memory-map the array of a file; refuse it if it does not contain 8-bit images."""
    try:
        array = read_npy(path, mapped=True)
    except FileNotFoundError as error:
        raise ImageError(path.name, f"is not in {path.parent}", "check the path") from error
    except OSError as error:
        raise ImageError(path.name, f"cannot be read ({error.strerror or error})", "check its permissions") from error
    except ValueError as error:
        fix = "write it with np.save from a uint8 array"
        raise ImageError(path.name, f"is not a readable .npy file of numbers ({error})", fix) from error
    what = f"contains an array of shape {array.shape} and type {array.dtype}"
    if array.dtype != np.uint8:
        fix = "np.save((255 * images).round().astype(np.uint8)) if they are in 0..1"
        raise ImageError(path.name, f"{what}; images must be uint8", fix)
    if array.ndim == 3 and array.shape[2] <= 4:
        raise ImageError(path.name, f"{what}, which looks like a single image", "np.save(images[None])")
    if array.ndim == 4 and array.shape[3] not in (1, 3) and array.shape[1] in (1, 3):
        fix = "np.save(images.transpose(0, 2, 3, 1))"
        raise ImageError(path.name, f"{what}; channels must come last", fix)
    if array.ndim not in (3, 4) or (array.ndim == 4 and array.shape[3] not in (1, 3)):
        fix = "reshape them to (N, H, W, 3), (N, H, W, 1) or (N, H, W)"
        raise ImageError(path.name, what, fix)
    if 0 in array.shape[1:]:
        raise ImageError(path.name, f"{what}: the images have no pixels", "write the file again")
    return array
