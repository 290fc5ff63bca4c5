"""Where images come from: files below a folder, or rows of one .npy array.

Sources are cheap to make and to send to worker processes; pixels are read one image at a time, when asked for.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from zeroshift.data.decoding import Decoded, ImageError, decode, pillow

__all__ = ["SUFFIXES", "Decoded", "ImageArrays", "ImageError", "ImageFiles", "ImageSource", "Stat", "decode"]

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
