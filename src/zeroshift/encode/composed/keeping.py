"""Arrays that take a while to make and are small to keep: made once, read afterwards, made again where damaged."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from zeroshift.encode.extraction.cache import keyed_folder
from zeroshift.files import FileFormatError, read_tensors, write_tensors

__all__ = ["kept"]

KIND = "composed"
SCHEMA = 1

Arrays = dict[str, np.ndarray]


def kept(cache: Path | None, settings: Mapping[str, Any], make: Callable[[], Arrays]) -> Arrays:
    """What `make` gives, from the file under these settings where there is a whole one; `cache` None keeps nothing."""
    if cache is None:
        return make()
    path = keyed_folder(cache, KIND, settings) / "arrays.safetensors"
    try:
        arrays, header = read_tensors(path, kind=KIND, schema=SCHEMA)
        if header.get("digest") != _digest(arrays):
            raise FileFormatError(f"{path} is damaged.")
    except (OSError, FileFormatError):
        arrays = make()
        write_tensors(path, arrays, {"kind": KIND, "schema": SCHEMA, "digest": _digest(arrays)})
    return arrays


def _digest(arrays: Arrays) -> str:
    """Of every number: safetensors finds a file that was cut short, but no number that changed."""
    digest = hashlib.sha256()
    for name, array in sorted(arrays.items()):
        digest.update(f"{name}\0{array.dtype}\0{array.shape}\0".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()
