"""Files that are whole or not there: safetensors with a JSON header, written beside the target and renamed onto it."""

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

WRITTEN_BY = {
    "features": "FeatureSet(features, prototypes=...).save(path) writes one; arrays of your own may come as an .npz.",
    "state": "a method's save(path) writes one.",
}
"""How a user comes by a file of each kind."""


class FileFormatError(ValueError):
    """A file that is not what it should be: truncated, of another kind, or from a newer version."""


@contextmanager
def atomic_path(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A temporary path beside `path`; renamed onto it when the block ends well, deleted when it does not."""
    # Through a link, so that the file it leads to is replaced and not the link.
    target = Path(os.path.realpath(path))
    if target.is_dir():
        raise IsADirectoryError(
            f"{path} is a folder; the name of a file is needed. Fix: add one, such as {target / 'file'}."
        )
    if not target.parent.is_dir():
        raise FileNotFoundError(
            f"the folder {target.parent} does not exist, so {target.name} cannot be written. Fix: create it first."
        )
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(6)}.tmp")
    try:
        # The permissions of the file it replaces, or those of any new file: some writers make theirs private.
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
    """Arrays and header of a file `write_tensors` made, of this kind and of a schema no newer than `schema`.

    With `names`, only these arrays are read; the others stay on the disk.
    """
    with _opened(path, kind) as handle:
        header = _header(path, handle, kind, schema)
        return {name: handle.get_tensor(name) for name in names or handle.keys()}, header


def read_header(path: str | os.PathLike[str], *, kind: str, schema: int) -> dict[str, Any]:
    """The header alone; the arrays stay on the disk."""
    with _opened(path, kind) as handle:
        return _header(path, handle, kind, schema)


@contextmanager
def _opened(path: str | os.PathLike[str], kind: str) -> Iterator[Any]:
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


def _header(path: str | os.PathLike[str], handle: Any, kind: str, schema: int) -> dict[str, Any]:
    try:
        header = json.loads((handle.metadata() or {})[HEADER_KEY])
    except (KeyError, json.JSONDecodeError) as error:
        raise FileFormatError(
            f"{path} has no zeroshift header, so it is not a {kind} file of zeroshift. Fix: {WRITTEN_BY.get(kind, '')}"
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
