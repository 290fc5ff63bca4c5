"""Atomic file writing."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["FileFormatError", "atomic_path"]


class FileFormatError(ValueError):
    """A file that cannot be used: damaged, truncated, of another kind, or from a newer version. It names the file."""


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
