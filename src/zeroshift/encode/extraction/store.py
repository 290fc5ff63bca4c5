"""A store of feature rows by content digest, in the cache folder.

A store consists of parts, safetensors files of digests and rows, which are written atomically and only ever added. A
killed process loses the part it had not written. Rows are found by content, whatever the names and order of the files.
Nothing in the cache is the only copy: it may be deleted, whole or in part, whenever no run is using it.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
import warnings
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from zeroshift.files import FileFormatError, atomic_path
from zeroshift.tensor_files import read_tensors, write_tensors

__all__ = [
    "DIGEST_BYTES",
    "DamagedPartError",
    "FeatureStore",
    "cache_folder",
    "content_digest",
    "default_cache",
    "settings_folder",
    "settings_key",
]


LAYOUT = 1
"""Part of every key; incremented when the same settings give other features."""


def default_cache() -> Path:
    """`$ZEROSHIFT_CACHE`, or `zeroshift` in the system's cache folder."""
    if given := os.environ.get("ZEROSHIFT_CACHE"):
        return Path(given).expanduser()
    base = os.environ.get("XDG_CACHE_HOME") or os.environ.get("LOCALAPPDATA")
    return (Path(base) if base else Path.home() / ".cache") / "zeroshift"


def cache_folder(cache: str | os.PathLike[str] | None) -> Path | None:
    """`cache` as a path; None for no cache."""
    if cache is None or isinstance(cache, (str, os.PathLike)):
        return None if cache is None else Path(cache).expanduser()
    raise TypeError(f"cache must be a folder or None; got {type(cache).__name__}. Fix: cache=encode.default_cache().")


def settings_key(settings: Mapping[str, Any]) -> str:
    """A short key for JSON-serialisable settings, independent of their order."""
    written = json.dumps({"layout": LAYOUT, **settings}, sort_keys=True, default=str)
    return hashlib.sha256(written.encode()).hexdigest()[:20]


def settings_folder(cache: Path, kind: str, settings: Mapping[str, Any]) -> Path:
    """The folder for results with these settings, created if missing; about.json in it contains the settings."""
    folder = cache / kind / settings_key(settings)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        about = folder / "about.json"
        if not about.exists():
            with atomic_path(about) as temporary:
                temporary.write_text(json.dumps(dict(settings), indent=2, sort_keys=True, default=str) + "\n")
    except OSError as error:
        raise OSError(
            f"the cache {cache} cannot be written ({error.strerror or error}). "
            "Fix: choose another folder with --cache or ZEROSHIFT_CACHE, or use --no-cache."
        ) from error
    return folder


DIGEST_BYTES = 16
"""Size of BLAKE2b digests. With a billion images, the probability of a collision is below 10^-20."""

SCHEMA = 2

ABANDONED_SECONDS = 3600
"""A part is written in less than a second; an older temporary file is from a killed run."""


class DamagedPartError(ValueError):
    """A damaged part of the store. It was deleted, so that its rows are computed again."""


def content_digest(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=DIGEST_BYTES).digest()


class FeatureStore:
    """The rows stored in a folder.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     store = FeatureStore(Path(folder))
    ...     store.add([content_digest(b"cat"), content_digest(b"dog")], np.eye(2, dtype="float16"))
    ...     again = FeatureStore(Path(folder))
    ...     content_digest(b"dog") in again, again.rows([content_digest(b"dog")]).tolist()
    (True, [[0.0, 1.0]])
    """

    def __init__(self, folder: Path, *, check: bool = False) -> None:
        """With `check`, all rows are read and verified now, instead of when they are needed."""
        self.folder = folder
        self._locations: dict[bytes, tuple[Path, int]] = {}
        self._delete_abandoned()
        for path in sorted(folder.glob("part-*.safetensors")):
            try:
                digests = read_tensors(path, kind="part", schema=SCHEMA, names=["digests"])[0]["digests"]
                if check:
                    self._read(path)
            except DamagedPartError:
                continue
            except FileFormatError as error:
                if "schema version" not in str(error):  # a part of a newer zeroshift is not damaged
                    self._drop(path, str(error))
                continue
            self._index(path, [row.tobytes() for row in digests])

    def _delete_abandoned(self) -> None:
        """Delete temporary files of killed runs; newer ones may belong to a run in progress."""
        for path in self.folder.glob(".part-*.tmp"):
            with suppress(OSError):
                if time.time() - path.stat().st_mtime > ABANDONED_SECONDS:
                    path.unlink()

    def __contains__(self, digest: bytes) -> bool:
        return digest in self._locations

    def __len__(self) -> int:
        return len(self._locations)

    def add(self, digests: Sequence[bytes], rows: np.ndarray) -> None:
        """Store `rows`, one per digest; they are on disk when this returns."""
        name = hashlib.sha256(b"".join(digests)).hexdigest()[:20]
        path = self.folder / f"part-{name}.safetensors"
        packed = np.frombuffer(b"".join(digests), np.uint8).reshape(len(digests), DIGEST_BYTES)
        self.folder.mkdir(parents=True, exist_ok=True)  # in case the cache was deleted meanwhile
        write_tensors(path, {"digests": packed, "rows": rows}, {"kind": "part", "schema": SCHEMA})
        self._index(path, digests)

    def rows(self, digests: Sequence[bytes]) -> np.ndarray:
        """The rows of these digests, in order; all must be in the store.

        A damaged part is deleted and raises `DamagedPartError`: its rows must be computed again.
        """
        wanted: dict[Path, list[tuple[int, int]]] = {}
        for position, digest in enumerate(digests):
            path, row = self._locations[digest]
            wanted.setdefault(path, []).append((position, row))
        result: np.ndarray | None = None
        for path, locations in wanted.items():  # one part at a time: together they can be larger than memory
            part = self._read(path)
            if result is None:
                result = np.empty((len(digests), *part.shape[1:]), part.dtype)
            positions, rows = (list(column) for column in zip(*locations, strict=True))
            result[positions] = part[rows]
        if result is None:
            raise ValueError("digests is empty; at least one is needed.")
        return result

    def _read(self, path: Path) -> np.ndarray:
        try:
            arrays, header = read_tensors(path, kind="part", schema=SCHEMA, names=["rows"])
        except (FileFormatError, FileNotFoundError) as error:
            self._drop(path, str(error))
            raise DamagedPartError(str(error)) from error
        if "checksum" not in header and header.get("rows") != _rows_digest(arrays["rows"]):
            self._drop(path, "its content has changed")
            raise DamagedPartError(f"{path} is damaged")
        return arrays["rows"]

    def _drop(self, path: Path, why: str) -> None:
        warnings.warn(f"{path} is damaged and is computed again ({why})", UserWarning, stacklevel=3)
        path.unlink(missing_ok=True)
        self._locations = {digest: location for digest, location in self._locations.items() if location[0] != path}

    def _index(self, path: Path, digests: Iterable[bytes]) -> None:
        for row, digest in enumerate(digests):
            self._locations.setdefault(digest, (path, row))


def _rows_digest(rows: np.ndarray) -> str:
    """The checksum in parts of schema version 1."""
    return hashlib.blake2b(np.ascontiguousarray(rows).tobytes(), digest_size=DIGEST_BYTES).hexdigest()
