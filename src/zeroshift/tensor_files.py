"""Safetensors files with a JSON header and checksums: state files, feature files and parts of the cache.

The header is the value `zeroshift` of the metadata. Its field `tensor_checksums` has a SHA-256 of every array (name,
type, shape and bytes), and its field `checksum` one of the header itself. Files with schema version 1 have no
checksums; the header returned for them has no field `checksum`.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from zeroshift.files import CHECKSUM_LETTERS, FileFormatError, atomic_path, has_valid_checksum, with_checksum
from zeroshift.parsers import COPY_AGAIN, check_regular_file, parse_json

__all__ = [
    "UnverifiedFileWarning",
    "read_header",
    "read_plain_tensors",
    "read_tensors",
    "unverified_note",
    "write_tensors",
]

HEADER_KEY = "zeroshift"

CHECKSUM_SCHEMA = 2
"""Schema version from which files must have checksums, whatever their kind."""

MAX_HEADER_BYTES = 32 * 2**20
"""Largest header of a file, with the names and shapes of its arrays."""

DTYPES = ("BOOL", "U8", "I8", "U16", "I16", "U32", "I32", "U64", "I64", "F16", "F32", "F64")
"""The types of arrays that are read, as safetensors names them."""

HOW_TO_WRITE = {
    "features": "FeatureSet(features, prototypes=...).save(path) writes one. To read a file of another program, name "
    "its arrays (features_key, --features-key).",
    "state": "a method's save(path) writes one.",
    "pipeline": "the save(path) of a zeroshift.pipeline writes one.",
}
"""How a user gets a file of each kind, for error messages."""


class UnverifiedFileWarning(UserWarning):
    """A file of an earlier version has no checksums, so that damage to its numbers cannot be detected."""


def unverified_note(path: str | os.PathLike[str]) -> str:
    return (
        f"{path} was written by an earlier version of zeroshift, without checksums, so it is not verified. "
        "Fix: load it and save it again."
    )


def write_tensors(path: str | os.PathLike[str], arrays: Mapping[str, np.ndarray], header: Mapping[str, Any]) -> None:
    """Write `arrays` and the JSON-able `header` as one safetensors file, the same bytes for the same content."""
    from safetensors import SafetensorError
    from safetensors.numpy import save_file

    tensors = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    checksums = {name: _array_checksum(name, tensor) for name, tensor in tensors.items()}
    content = parse_json(json.dumps(header), f"the header of {path}")  # what cannot be read back is not written
    text = json.dumps(with_checksum({**content, "tensor_checksums": checksums}), sort_keys=True)
    with atomic_path(path) as temporary:
        try:
            save_file(tensors, temporary, metadata={HEADER_KEY: text})
        except SafetensorError as error:
            raise OSError(str(error)) from error  # `atomic_path` adds the name


def read_tensors(
    path: str | os.PathLike[str], *, kind: str, schema: int, names: Sequence[str] | None = None
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Arrays and header of a file written by `write_tensors`, of this kind and with a schema up to `schema`.

    With `names`, only these arrays are read. Header and arrays are compared with their checksums.
    """
    with _open_safetensors(path, kind) as handle:
        header, checksums = _parse_header(path, handle, kind, schema)
        present = list(handle.keys())
        if checksums is not None and sorted(checksums) != sorted(present):
            raise FileFormatError(f"{path} does not contain the arrays that its header lists. {COPY_AGAIN}")
        tensors = {}
        for name in present if names is None else names:
            if name not in present:
                raise FileFormatError(f"{path} has no array {name!r}. {COPY_AGAIN}")
            if handle.get_slice(name).get_dtype() not in DTYPES:
                raise FileFormatError(f"{path}: the array {name!r} has a type that is not read. {COPY_AGAIN}")
            tensors[name] = handle.get_tensor(name)
            if checksums is not None and _array_checksum(name, tensors[name]) != checksums[name]:
                raise FileFormatError(
                    f"{path} is damaged, or was changed: the array {name!r} does not have the checksum it was written "
                    "with. Fix: write or copy the file again."
                )
        return tensors, header


def read_header(path: str | os.PathLike[str], *, kind: str, schema: int) -> dict[str, Any]:
    """Only the header, compared with its checksum; the arrays are not read."""
    with _open_safetensors(path, kind) as handle:
        return _parse_header(path, handle, kind, schema)[0]


def read_plain_tensors(
    path: str | os.PathLike[str], wanted: Callable[[str], bool]
) -> tuple[list[str], dict[str, np.ndarray]]:
    """The names of all arrays of a safetensors file of another program, and those arrays whose name is `wanted`.

    A file of zeroshift is refused: its arrays are read with their checksums.
    """
    with _open_safetensors(path, "plain") as handle:
        if HEADER_KEY in (handle.metadata() or {}):
            raise FileFormatError(f"{path} was written by zeroshift, and its arrays have fixed names. Fix: no keys.")
        names, arrays = list(handle.keys()), {}
        for name in filter(wanted, names):
            if (dtype := handle.get_slice(name).get_dtype()) not in DTYPES:
                raise FileFormatError(
                    f"{path}: the array {name!r} has the type {dtype}, which is not read. Fix: save it as float32."
                )
            arrays[name] = handle.get_tensor(name)
        return names, arrays


@contextmanager
def _open_safetensors(path: str | os.PathLike[str], kind: str) -> Iterator[Any]:
    from safetensors import SafetensorError, safe_open

    try:
        check_regular_file(path)
    except FileNotFoundError:
        raise FileNotFoundError(
            f"no file at {path}. Fix: check the path; a {kind} file is one .safetensors file."
        ) from None
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
    if length > MAX_HEADER_BYTES:
        raise FileFormatError(
            f"{path} is not a readable safetensors file: its header would have {length:,} bytes, more than "
            f"{MAX_HEADER_BYTES:,}. {COPY_AGAIN}"
        )
    try:
        with safe_open(path, framework="numpy") as handle:
            yield handle
    except FileFormatError:
        raise
    except (SafetensorError, TypeError, ValueError, OverflowError, MemoryError) as error:
        raise FileFormatError(
            f"{path} is not a readable safetensors file ({error}). Fix: it may be truncated; write or copy it again."
        ) from error


def _parse_header(
    path: str | os.PathLike[str], handle: Any, kind: str, schema: int
) -> tuple[dict[str, Any], dict[str, str] | None]:
    """The header and the checksums of the arrays; None if the file has none."""
    metadata = handle.metadata() or {}
    if HEADER_KEY not in metadata:
        raise FileFormatError(
            f"{path} has no zeroshift header, so it is not a zeroshift {kind} file. Fix: {HOW_TO_WRITE.get(kind, '')}"
        )
    header = parse_json(metadata[HEADER_KEY], f"the header of {path}")
    if not isinstance(header, dict) or type(header.get("schema")) is not int or header["schema"] < 1:
        raise FileFormatError(f"{path} has a damaged header. Fix: write or copy the file again.")
    if header.get("kind") != kind:
        raise FileFormatError(f"{path} is a {header.get('kind')} file of zeroshift; a {kind} file is needed here.")
    version = header["schema"]
    if version > schema:
        raise FileFormatError(
            f"{path} has schema version {version}; this zeroshift reads up to {schema}. "
            "Fix: upgrade zeroshift to read it."
        )
    if version < CHECKSUM_SCHEMA and "checksum" not in header:
        return header, None
    checksums = header.get("tensor_checksums")
    if not isinstance(checksums, dict) or not has_valid_checksum(header):
        raise FileFormatError(
            f"{path} is damaged, or was changed: its header does not have the checksum it was written with. "
            "Fix: write or copy the file again."
        )
    del header["tensor_checksums"]
    return header, checksums


def _array_checksum(name: str, array: np.ndarray) -> str:
    """A checksum of the name, type, shape and numbers of an array."""
    little = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
    found = hashlib.sha256(json.dumps([name, little.dtype.str, list(array.shape)]).encode())
    found.update(little.reshape(-1).view(np.uint8).data)
    return found.hexdigest()[:CHECKSUM_LETTERS]
