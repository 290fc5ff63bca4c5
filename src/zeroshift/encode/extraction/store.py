"""Rows of features by the content they belong to: parts that are only ever added, each written whole.

A part is one safetensors file of digests and rows. A process that is killed loses the part it had not written; what
was written is found again by content, whatever the files are called then and however they are ordered.
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

from zeroshift.files import FileFormatError, atomic_path, read_tensors, write_tensors

__all__ = [
    "DIGEST_BYTES",
    "DamagedPartError",
    "FeatureStore",
    "as_folder",
    "default_cache",
    "digest_of",
    "key_of",
    "keyed_folder",
]


# Where what was computed once is kept: a folder of features under keys made of everything that decides them.
#
# Nothing in it is the only copy of anything: it may be deleted whenever no run is using it, whole or in part.


LAYOUT = 1
"""A part of every key; raised when the same settings come to mean other features."""


def default_cache() -> Path:
    """`$ZEROSHIFT_CACHE`, or `zeroshift` in the folder the system keeps caches in."""
    if given := os.environ.get("ZEROSHIFT_CACHE"):
        return Path(given).expanduser()
    base = os.environ.get("XDG_CACHE_HOME") or os.environ.get("LOCALAPPDATA")
    return (Path(base) if base else Path.home() / ".cache") / "zeroshift"


def as_folder(cache: str | os.PathLike[str] | None) -> Path | None:
    """The folder a caller names, as text or as a path; None for none."""
    if cache is None or isinstance(cache, (str, os.PathLike)):
        return None if cache is None else Path(cache).expanduser()
    raise TypeError(f"cache must be a folder or None; got {type(cache).__name__}. Fix: cache=encode.default_cache().")


def key_of(settings: Mapping[str, Any]) -> str:
    """One short name for settings that JSON can hold, whatever their order."""
    written = json.dumps({"layout": LAYOUT, **settings}, sort_keys=True, default=str)
    return hashlib.sha256(written.encode()).hexdigest()[:20]


def keyed_folder(cache: Path, kind: str, settings: Mapping[str, Any]) -> Path:
    """The folder for results of these settings, made where it is missing, with the settings beside them to read."""
    folder = cache / kind / key_of(settings)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        about = folder / "about.json"
        if not about.exists():
            with atomic_path(about) as temporary:
                temporary.write_text(json.dumps(dict(settings), indent=2, sort_keys=True, default=str) + "\n")
    except OSError as error:
        raise OSError(
            f"the cache {cache} cannot be written ({error.strerror or error}). "
            "Fix: name another folder with --cache or ZEROSHIFT_CACHE, or do without: --no-cache."
        ) from error
    return folder


DIGEST_BYTES = 16
"""Of BLAKE2b: with a billion images, the odds that any two collide are below one in 10^20."""

SCHEMA = 1

ABANDONED_SECONDS = 3600
"""A part is written in less than a second; a temporary file this old is nobody's."""


class DamagedPartError(ValueError):
    """Rows that were kept and are not what they were; they are gone now, to be computed again."""


def digest_of(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=DIGEST_BYTES).digest()


class FeatureStore:
    """The rows kept in a folder.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     store = FeatureStore(Path(folder))
    ...     store.add([digest_of(b"cat"), digest_of(b"dog")], np.eye(2, dtype="float16"))
    ...     again = FeatureStore(Path(folder))
    ...     digest_of(b"dog") in again, again.rows([digest_of(b"dog")]).tolist()
    (True, [[0.0, 1.0]])
    """

    def __init__(self, folder: Path, *, check: bool = False) -> None:
        """`check` reads every row now, and not only those that are asked for, when they are."""
        self.folder = folder
        self._places: dict[bytes, tuple[Path, int]] = {}
        self._sweep()
        for path in sorted(folder.glob("part-*.safetensors")):
            try:
                digests = read_tensors(path, kind="part", schema=SCHEMA, names=["digests"])[0]["digests"]
                if check:
                    self._read(path)
            except DamagedPartError:
                continue
            except FileFormatError as error:
                if "schema version" not in str(error):  # a newer zeroshift's is whole, and not ours to delete
                    self._drop(path, str(error))
                continue
            self._note(path, [row.tobytes() for row in digests])

    def _sweep(self) -> None:
        """Take away what killed runs had half written; what is younger may be another run's, still at work."""
        for path in self.folder.glob(".part-*.tmp"):
            with suppress(OSError):
                if time.time() - path.stat().st_mtime > ABANDONED_SECONDS:
                    path.unlink()

    def __contains__(self, digest: bytes) -> bool:
        return digest in self._places

    def __len__(self) -> int:
        return len(self._places)

    def add(self, digests: Sequence[bytes], rows: np.ndarray) -> None:
        """Keep `rows`, one for each digest; on the disk when this returns."""
        named = hashlib.sha256(b"".join(digests)).hexdigest()[:20]
        path = self.folder / f"part-{named}.safetensors"
        packed = np.frombuffer(b"".join(digests), np.uint8).reshape(len(digests), DIGEST_BYTES)
        self.folder.mkdir(parents=True, exist_ok=True)  # whoever deletes the cache meanwhile may
        header = {"kind": "part", "schema": SCHEMA, "rows": _rows_digest(rows)}
        write_tensors(path, {"digests": packed, "rows": rows}, header)
        self._note(path, digests)

    def rows(self, digests: Sequence[bytes]) -> np.ndarray:
        """The rows of these digests, in their order; all must be kept here.

        A part that is no longer what was written is dropped, and `DamagedPartError` says that its rows are to be
        computed again.
        """
        wanted: dict[Path, list[tuple[int, int]]] = {}
        for position, digest in enumerate(digests):
            path, row = self._places[digest]
            wanted.setdefault(path, []).append((position, row))
        result: np.ndarray | None = None
        for path, places in wanted.items():  # one part at a time: all of them together can be larger than memory
            part = self._read(path)
            if result is None:
                result = np.empty((len(digests), *part.shape[1:]), part.dtype)
            positions, rows = (list(column) for column in zip(*places, strict=True))
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
        if header.get("rows") != _rows_digest(arrays["rows"]):
            self._drop(path, "its content is not what was written")
            raise DamagedPartError(f"{path} is damaged")
        return arrays["rows"]

    def _drop(self, path: Path, why: str) -> None:
        warnings.warn(f"{path} is damaged and is computed again ({why})", UserWarning, stacklevel=3)
        path.unlink(missing_ok=True)
        self._places = {digest: place for digest, place in self._places.items() if place[0] != path}

    def _note(self, path: Path, digests: Iterable[bytes]) -> None:
        for row, digest in enumerate(digests):
            self._places.setdefault(digest, (path, row))


def _rows_digest(rows: np.ndarray) -> str:
    return hashlib.blake2b(np.ascontiguousarray(rows).tobytes(), digest_size=DIGEST_BYTES).hexdigest()
