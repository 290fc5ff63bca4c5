"""Files that are whole or not there: safetensors with a JSON header, written beside the target and renamed onto it."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["FileFormatError", "atomic_path", "read_header", "read_tensors", "write_tensors"]

HEADER_KEY = "zeroshift"


class FileFormatError(ValueError):
    """A file that is not what it should be: truncated, of another kind, or from a newer version."""


@contextmanager
def atomic_path(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A temporary path beside `path`; renamed onto it when the block ends well, deleted when it does not."""
    target = Path(path)
    if not target.parent.is_dir():
        raise FileNotFoundError(
            f"the folder {target.parent} does not exist, so {target.name} cannot be written. Fix: create it first."
        )
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(6)}.tmp")
    try:
        yield temporary
        # Some writers make private files whatever the umask; a state is often written by one user and read by another.
        temporary.chmod(0o666 & ~_umask())
        with open(temporary, "rb+") as handle:
            os.fsync(handle.fileno())
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current


def write_tensors(path: str | os.PathLike[str], arrays: Mapping[str, np.ndarray], header: Mapping[str, Any]) -> None:
    """Write `arrays` and the JSON-able `header` as one safetensors file, the same bytes for the same content."""
    from safetensors.numpy import save_file

    tensors = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    with atomic_path(path) as temporary:
        save_file(tensors, temporary, metadata={HEADER_KEY: json.dumps(header, sort_keys=True)})


def read_tensors(
    path: str | os.PathLike[str], *, kind: str, schema: int
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Arrays and header of a file `write_tensors` made, of this kind and of a schema no newer than `schema`."""
    with _opened(path, kind) as handle:
        header = _header(path, handle, kind, schema)
        return {name: handle.get_tensor(name) for name in handle.keys()}, header  # noqa: SIM118 (not a dict)


def read_header(path: str | os.PathLike[str], *, kind: str, schema: int) -> dict[str, Any]:
    """The header alone; the arrays stay on the disk."""
    with _opened(path, kind) as handle:
        return _header(path, handle, kind, schema)


@contextmanager
def _opened(path: str | os.PathLike[str], kind: str) -> Iterator[Any]:
    from safetensors import SafetensorError, safe_open

    if not Path(path).is_file():
        raise FileNotFoundError(f"no file at {path}. Fix: check the path; a zeroshift {kind} is one .safetensors file.")
    try:
        with safe_open(path, framework="numpy") as handle:
            yield handle
    except SafetensorError as error:
        raise FileFormatError(
            f"{path} is not a readable safetensors file ({error}). Fix: it may be truncated; write or copy it again."
        ) from error


def _header(path: str | os.PathLike[str], handle: Any, kind: str, schema: int) -> dict[str, Any]:
    try:
        header: dict[str, Any] = json.loads((handle.metadata() or {})[HEADER_KEY])
    except (KeyError, json.JSONDecodeError) as error:
        raise FileFormatError(f"{path} has no zeroshift header, so it is not a zeroshift {kind}.") from error
    if header.get("kind") != kind:
        raise FileFormatError(f"{path} holds a zeroshift {header.get('kind')}, not a {kind}.")
    if header.get("schema", 0) > schema:
        raise FileFormatError(
            f"{path} has schema version {header['schema']}; this zeroshift reads up to {schema}. "
            "Fix: upgrade zeroshift to read it."
        )
    return header
