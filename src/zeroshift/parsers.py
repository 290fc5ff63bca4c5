"""JSON, text and NumPy files, read within limits.

A file may be damaged or written by someone else. What it declares about itself (sizes, nesting, types) is checked
before memory is allocated for it, and every error is a `FileFormatError` that names the file.
"""

from __future__ import annotations

import ast
import io
import json
import math
import os
import re
import stat
import threading
import zipfile
import zlib
from collections.abc import Callable
from typing import IO, Any, NamedTuple

import numpy as np

from zeroshift.files import FileFormatError

__all__ = [
    "MAX_INFLATED_VARIABLE",
    "check_inflated",
    "check_regular_file",
    "parse_json",
    "parse_npy",
    "read_array_header",
    "read_bytes",
    "read_json",
    "read_npy",
    "read_npz",
    "read_text",
]

MAX_TEXT_BYTES = 128 * 2**20
"""Largest text or JSON file that is read."""

MAX_DEPTH = 64
"""Largest nesting of lists and objects in JSON."""

MAX_DIGITS = 400
"""Most digits of an integer in JSON; the largest float has 309."""

MAX_NPY_HEADER_BYTES = 10_000
"""Largest header of an .npy array; NumPy's own limit."""

MAX_INFLATED_VARIABLE = "ZEROSHIFT_MAX_INFLATED_BYTES"
"""Environment variable with the number of bytes that the arrays of one .npz file may take in memory."""

INFLATED_BYTES = 256 * 2**20
INFLATED_FACTOR = 16
"""Without it, the arrays may take `INFLATED_BYTES`, or `INFLATED_FACTOR` times the size of the file if that is more."""

COPY_AGAIN = "Fix: it may be damaged; write or copy it again."


def check_regular_file(path: str | os.PathLike[str], *, pipes: bool = False) -> os.stat_result:
    """Refuse what is not a plain file: a folder, or a device or pipe, which may never end. Links are followed.

    With `pipes`, a pipe is accepted, such as that of a shell's `<(command)`.
    """
    try:
        found = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        raise FileNotFoundError(f"no file at {path}. Fix: check the path.") from None
    except ValueError as error:  # a null character
        raise FileNotFoundError(f"no file at {str(path)!r} ({error}). Fix: check the path.") from None
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(f"{path} is a folder. Fix: pass a file in it.")
    if not (stat.S_ISREG(found.st_mode) or (pipes and stat.S_ISFIFO(found.st_mode))):
        kinds = "device or socket" if pipes else "device, pipe or socket"
        raise FileFormatError(f"{path} is a {kinds}. Fix: pass a plain file.")
    return found


def read_bytes(path: str | os.PathLike[str], limit: int = MAX_TEXT_BYTES, *, pipes: bool = False) -> bytes:
    """The content of a plain file of at most `limit` bytes; with `pipes`, also of a pipe, until its end."""
    is_pipe = stat.S_ISFIFO(check_regular_file(path, pipes=pipes).st_mode)
    with open(path, "rb", opener=_open_without_waiting if is_pipe else None) as handle:
        content = handle.read(limit + 1)
    if is_pipe and not content:
        raise FileFormatError(f"{path} is a pipe that nothing was written to. Fix: pass a plain file.")
    if len(content) > limit:
        raise FileFormatError(
            f"{path} has more than {limit:,} bytes, too many for text. Fix: check that it is the right file."
        )
    return content


def _open_without_waiting(path: str, flags: int) -> int:
    """Open a pipe, and do not wait for a program that opens its other end; reading then waits as usual."""
    handle = os.open(path, flags | os.O_NONBLOCK)
    os.set_blocking(handle, True)
    return handle


def read_text(path: str | os.PathLike[str], limit: int = MAX_TEXT_BYTES, *, pipes: bool = False) -> str:
    """The text of a UTF-8 file, with or without a byte order mark, which editors on Windows write."""
    try:
        return read_bytes(path, limit, pipes=pipes).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise FileFormatError(f"{path} is not UTF-8 text ({error}). Fix: save it as UTF-8.") from error


# JSON

_STRUCTURE = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[\[\]{}]', re.DOTALL)
"""A string, which may contain brackets, or a bracket."""


def read_json(path: str | os.PathLike[str]) -> Any:
    """The content of a JSON file."""
    return parse_json(read_text(path), path)


def parse_json(text: str | bytes, source: object) -> Any:
    """The value of a JSON text. `source` says where it is from, in errors.

    Refused, in addition to what is not JSON: nesting deeper than `MAX_DEPTH`, integers of more than `MAX_DIGITS`
    digits, numbers that are not finite, and objects with a key twice (Python would use the last).
    """
    try:
        if isinstance(text, bytes):
            text = text.decode("utf-8")
        _check_depth(text)
        return json.loads(
            text,
            parse_int=_integer,
            parse_float=_finite,
            parse_constant=_finite,
            object_pairs_hook=_distinct,
        )
    except (ValueError, RecursionError) as error:
        raise FileFormatError(
            f"{source} cannot be read as JSON ({error}). Fix: correct it, or write or copy it again."
        ) from error


def _check_depth(text: str) -> None:
    if text.count("[") + text.count("{") <= MAX_DEPTH:
        return
    depth = 0
    for token in _STRUCTURE.finditer(text):
        first = text[token.start()]
        if first in "[{":
            depth += 1
            if depth > MAX_DEPTH:
                raise ValueError(f"lists and objects are nested more than {MAX_DEPTH} deep")
        elif first in "]}":
            depth -= 1


def _integer(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise ValueError(f"an integer has {len(digits):,} characters, more than {MAX_DIGITS}")
    return int(digits)


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is not a finite number")
    return number


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise ValueError(f"the key {key!r} occurs twice in one object")
            seen.add(key)
    return found


# NumPy arrays


_PLAIN_HEADER = re.compile(
    r"\{'descr': '([<>|=]?[A-Za-z]\d{0,9})', 'fortran_order': (True|False), "
    r"'shape': \(((?:(?:0|[1-9]\d{0,18}), ?)*(?:0|[1-9]\d{0,18})?)\),? ?\}"
)
"""The header of an array of numbers or text as NumPy writes it; others are parsed as Python."""

_AST_LOCK = threading.Lock()
"""Python 3.11 counts the depth of its syntax trees for all threads together: two that parse at the same time fail with
"AST constructor recursion depth mismatch"."""


class ArrayHeader(NamedTuple):
    """What the header of an .npy array declares."""

    shape: tuple[int, ...]
    fortran: bool
    dtype: np.dtype[Any]


def read_npy(path: str | os.PathLike[str], *, mapped: bool = False) -> np.ndarray:
    """The array of an .npy file. With `mapped` it stays on disk, and rows are read when they are used."""
    size = check_regular_file(path).st_size
    with open(path, "rb") as handle:
        header = _read_array_header(handle, size, path)
    try:
        array: np.ndarray = np.load(path, mmap_mode="r" if mapped and 0 not in header.shape else None)
    except (ValueError, EOFError) as error:  # it changed meanwhile
        raise FileFormatError(f"{path}: the array cannot be read ({error}). {COPY_AGAIN}") from error
    return array


def parse_npy(content: bytes, source: object) -> np.ndarray:
    """The array of the content of an .npy file. `source` says where it is from, in errors."""
    handle = io.BytesIO(content)
    header = _read_array_header(handle, len(content), source)
    array: np.ndarray = np.frombuffer(content, header.dtype, offset=handle.tell())
    return array.reshape(header.shape, order="F" if header.fortran else "C")


def read_npz(path: str | os.PathLike[str], wanted: Callable[[str], bool]) -> tuple[list[str], dict[str, np.ndarray]]:
    """The names of all arrays of an .npz file, and those arrays whose name is `wanted`.

    The checksums that the archive contains are verified.
    """
    size = check_regular_file(path).st_size
    with open(path, "rb") as handle:
        try:
            with zipfile.ZipFile(handle) as archive:
                members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
                if len(members) < len(archive.infolist()):
                    raise FileFormatError(f"{path} contains two arrays of the same name. Fix: keep one.")
                _check_members(archive, handle, size)
                used = {name: info for name, info in members.items() if wanted(name)}
                check_inflated(path, sum(info.file_size for info in used.values()), size)
                arrays = {name: _read_member(archive, info, f"{path}: {name}") for name, info in used.items()}
                return list(members), arrays
        except FileFormatError:
            raise
        except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, ValueError, OSError) as error:
            raise FileFormatError(f"{path} is not a readable .npz archive ({error}). {COPY_AGAIN}") from error


def _check_members(archive: zipfile.ZipFile, handle: IO[bytes], size: int) -> None:
    """Check what `zipfile` does not check until it reads a member, or not at all: damage must not hide a member."""
    for info in archive.infolist():
        archive.open(info).close()  # compares the name with that stored next to the data
    handle.seek(max(0, size - 2**16 - 22))
    end = handle.read()
    at = end.rfind(b"PK\x05\x06")
    declared = int.from_bytes(end[at + 10 : at + 12], "little")
    if declared not in (len(archive.infolist()), 0xFFFF):  # 0xFFFF: too many for this field
        raise zipfile.BadZipFile(f"it should contain {declared} arrays, but {len(archive.infolist())} are listed")


def check_inflated(path: object, total: int, size: int) -> None:
    """Refuse arrays of `total` bytes in memory from a file of `size` bytes, if that is far more."""
    limit = max(INFLATED_BYTES, INFLATED_FACTOR * size)
    if given := os.environ.get(MAX_INFLATED_VARIABLE):
        if not given.isdecimal():
            raise FileFormatError(
                f"{path} is not read: {MAX_INFLATED_VARIABLE} must be a number of bytes; it is {given!r}."
            )
        limit = int(given)
    if total > limit:
        raise FileFormatError(
            f"{path} has {size:,} bytes, and its arrays would take {total:,} in memory; {limit:,} are allowed. "
            f"Fix: if you trust the file, set the environment variable {MAX_INFLATED_VARIABLE}={total}."
        )


def _read_member(archive: zipfile.ZipFile, info: zipfile.ZipInfo, source: str) -> np.ndarray:
    with archive.open(info) as handle:
        header = _read_array_header(handle, info.file_size, source)
        array = np.empty(math.prod(header.shape), header.dtype)
        content, done = array.view(np.uint8), 0
        while done < len(content):
            part = handle.read(min(len(content) - done, 2**20))
            if not part:
                raise FileFormatError(f"{source} is truncated. {COPY_AGAIN}")
            content[done : done + len(part)] = np.frombuffer(part, np.uint8)
            done += len(part)
        handle.read(1)  # the checksum is compared when the end is reached
    return array.reshape(header.shape, order="F" if header.fortran else "C")


def _read_array_header(handle: IO[bytes], size: int, source: object) -> ArrayHeader:
    """As `read_array_header`, for an array of `size` bytes, header included; the size is checked."""
    before = handle.tell()
    header = read_array_header(handle, source)
    expected = math.prod(header.shape) * header.dtype.itemsize
    present = size - (handle.tell() - before)
    if expected != present:
        raise FileFormatError(
            f"{source} cannot be read: an array of shape {header.shape} and type {header.dtype} takes {expected:,} "
            f"bytes, and {present:,} follow its header. Fix: it may be truncated; write or copy it again."
        )
    return header


def read_array_header(handle: IO[bytes], source: object) -> ArrayHeader:
    """The header of an .npy array; several threads may read headers. `handle` is then at the data."""
    start = handle.read(8)
    if start[:4] == b"PK\x03\x04":
        raise FileFormatError(f"{source} is not an .npy file but an .npz archive. Fix: numpy.save the array alone.")
    if start[:6] != b"\x93NUMPY":
        raise FileFormatError(f"{source} is not an .npy file. Fix: write it with numpy.save.")
    wide = start[6:7] != b"\x01"
    length_bytes = handle.read(4 if wide else 2)
    length = int.from_bytes(length_bytes, "little")
    if start[6:] not in (b"\x01\x00", b"\x02\x00", b"\x03\x00") or length > MAX_NPY_HEADER_BYTES:
        raise FileFormatError(f"{source} cannot be read: its header is damaged, or too long. {COPY_AGAIN}")
    text = handle.read(length)
    if len(text) < length:
        raise FileFormatError(f"{source} cannot be read: it ends within its header, so it is truncated. {COPY_AGAIN}")
    return _parse_array_header(text.decode("latin-1" if start[6:7] != b"\x03" else "utf-8", "replace"), source)


def _parse_array_header(text: str, source: object) -> ArrayHeader:
    try:
        if sum(map(text.count, "([{")) > MAX_DEPTH:
            raise ValueError("too many brackets")
        fields = _header_fields(text.strip())
        shape, fortran = fields["shape"], fields["fortran_order"]
        if fields.keys() != {"descr", "fortran_order", "shape"} or not isinstance(fortran, bool):
            raise ValueError("unknown fields")
        if not isinstance(shape, tuple) or not all(type(n) is int and 0 <= n < 2**63 for n in shape) or len(shape) > 32:
            raise ValueError(f"shape {shape!r}")
        dtype = np.lib.format.descr_to_dtype(fields["descr"])
        if not dtype.itemsize or dtype.subdtype is not None:
            raise ValueError(f"type {dtype}")
    except Exception as error:  # whatever Python and NumPy raise for such a text
        raise FileFormatError(f"{source} cannot be read: its header is damaged ({error}). {COPY_AGAIN}") from error
    if dtype.hasobject:
        raise FileFormatError(
            f"{source} is an object array, which is not read because reading one can run code. "
            "Fix: save numbers as numpy.asarray(x, dtype='float32') and names as numpy.array(names, dtype=str)."
        )
    if dtype.names is not None:
        raise FileFormatError(
            f"{source} is a structured array with the fields {', '.join(map(repr, dtype.names))}, which is not read. "
            "Fix: save numpy.lib.recfunctions.structured_to_unstructured(x), if every field is a number."
        )
    return ArrayHeader(shape, fortran, dtype)


def _header_fields(text: str) -> Any:
    plain = _PLAIN_HEADER.fullmatch(text)
    if plain is not None and ("," in plain[3] or not plain[3]):  # "(5)" is no tuple
        shape = tuple(int(number) for number in plain[3].split(",") if number.strip())
        return {"descr": plain[1], "fortran_order": plain[2] == "True", "shape": shape}
    with _AST_LOCK:
        return ast.literal_eval(text)
