"""Where what was computed once is kept: a folder of features under keys made of everything that decides them.

Nothing in it is the only copy of anything: it may be deleted whenever no run is using it, whole or in part.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from zeroshift.files import atomic_path

__all__ = ["as_folder", "default_cache", "key_of", "keyed_folder"]

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
