"""Atomic file writing, and safetensors files with a JSON header."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["FileFormatError", "atomic_path", "read_header", "read_tensors", "write_tensors"]

HEADER_KEY = "zeroshift"

HOW_TO_WRITE = {
    "features": "FeatureSet(features, prototypes=...).save(path) writes one; your own arrays can be an .npz file.",
    "state": "a method's save(path) writes one.",
}
"""How a user gets a file of each kind, for error messages."""


class FileFormatError(ValueError):
    """A file that cannot be used: truncated, of another kind, or from a newer version."""


@contextmanager
def atomic_path(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A temporary path next to `path`: renamed to `path` when the block succeeds, deleted when it fails."""
    # Resolve links, so that the target of a link is replaced and not the link.
    target = Path(os.path.realpath(path))
    if target.is_dir():
        raise IsADirectoryError(f"{path} is a folder; a file name is needed. Fix: add one, such as {target / 'file'}.")
    if not target.parent.is_dir():
        raise FileNotFoundError(
            f"the folder {target.parent} does not exist, so {target.name} cannot be written. Fix: create it first."
        )
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(6)}.tmp")
    try:
        # Keep the permissions of the replaced file, or use the default ones: some writers create private files.
        with open(temporary, "xb") as handle:
            mode = target.stat().st_mode if target.exists() else os.fstat(handle.fileno()).st_mode
        yield temporary
        temporary.chmod(mode & 0o7777)
        with open(temporary, "rb+") as handle:
            os.fsync(handle.fileno())
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)


def write_tensors(path: str | os.PathLike[str], arrays: Mapping[str, np.ndarray], header: Mapping[str, Any]) -> None:
    """Write `arrays` and the JSON-able `header` as one safetensors file, the same bytes for the same content."""
    from safetensors import SafetensorError
    from safetensors.numpy import save_file

    tensors = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    with atomic_path(path) as temporary:
        try:
            save_file(tensors, temporary, metadata={HEADER_KEY: json.dumps(header, sort_keys=True)})
        except SafetensorError as error:
            raise OSError(f"{path} could not be written ({error}). Fix: check the space left on the disk.") from error


def read_tensors(
    path: str | os.PathLike[str], *, kind: str, schema: int, names: Sequence[str] | None = None
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Arrays and header of a file written by `write_tensors`, of this kind and with a schema up to `schema`.

    With `names`, only these arrays are read.
    """
    with _open_safetensors(path, kind) as handle:
        header = _parse_header(path, handle, kind, schema)
        return {name: handle.get_tensor(name) for name in names or handle.keys()}, header


def read_header(path: str | os.PathLike[str], *, kind: str, schema: int) -> dict[str, Any]:
    """Only the header; the arrays are not read."""
    with _open_safetensors(path, kind) as handle:
        return _parse_header(path, handle, kind, schema)


@contextmanager
def _open_safetensors(path: str | os.PathLike[str], kind: str) -> Iterator[Any]:
    from safetensors import SafetensorError, safe_open

    if not Path(path).is_file():
        raise FileNotFoundError(f"no file at {path}. Fix: check the path; a {kind} file is one .safetensors file.")
    try:
        with safe_open(path, framework="numpy") as handle:
            yield handle
    except SafetensorError as error:
        raise FileFormatError(
            f"{path} is not a readable safetensors file ({error}). Fix: it may be truncated; write or copy it again."
        ) from error


def _parse_header(path: str | os.PathLike[str], handle: Any, kind: str, schema: int) -> dict[str, Any]:
    try:
        header = json.loads((handle.metadata() or {})[HEADER_KEY])
    except (KeyError, json.JSONDecodeError) as error:
        raise FileFormatError(
            f"{path} has no zeroshift header, so it is not a zeroshift {kind} file. Fix: {HOW_TO_WRITE.get(kind, '')}"
        ) from error
    if not isinstance(header, dict) or not isinstance(header.get("schema"), int):
        raise FileFormatError(f"{path} has a damaged header. Fix: write or copy the file again.")
    if header.get("kind") != kind:
        raise FileFormatError(f"{path} is a {header.get('kind')} file of zeroshift; a {kind} file is needed here.")
    version = header["schema"]
    if version > schema:
        raise FileFormatError(
            f"{path} has schema version {version}; this zeroshift reads up to {schema}. "
            "Fix: upgrade zeroshift to read it."
        )
    return header
