"""What was in a file when it last looked like this: so that a second run need not read a whole data set to know it."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable
from pathlib import Path

from zeroshift.data.images import Stat

__all__ = ["Contents"]

SETTLED_NS = 2_000_000_000
"""A file changed less than two seconds before it was looked at may change again without its time showing it."""


class Contents:
    """Digests of files by path and `Stat`. Only ever a shortcut: where it fails, files are read."""

    def __init__(self, cache: Path | None) -> None:
        self._database: sqlite3.Connection | None = None
        if cache is None:
            return
        try:
            cache.mkdir(parents=True, exist_ok=True)
            self._database = sqlite3.connect(cache / "contents.sqlite", timeout=10)
            self._database.execute(
                "CREATE TABLE IF NOT EXISTS files (path BLOB PRIMARY KEY, size INTEGER, modified INTEGER, "
                "changed INTEGER, inode BLOB, digest BLOB) WITHOUT ROWID"
            )
        except (sqlite3.Error, OSError):
            self.close()

    def find(self, path: Path, stat: Stat) -> bytes | None:
        """The digest of a file that has not changed since, or None."""
        if self._database is None:
            return None
        try:
            found = self._database.execute(
                "SELECT digest FROM files WHERE path = ? AND size = ? AND modified = ? AND changed = ? AND inode = ?",
                (_name(path), *_columns(stat)),
            ).fetchone()
        except sqlite3.Error:
            return None
        return None if found is None else bytes(found[0])

    def keep(self, entries: Iterable[tuple[Path, Stat, bytes]], looked: int) -> None:
        """Path, stat and digest of files; `looked`, in nanoseconds, is when the stats were taken."""
        settled = looked - SETTLED_NS
        rows = [(_name(path), *_columns(stat), digest) for path, stat, digest in entries if stat.modified < settled]
        if self._database is None or not rows:
            return
        try:
            with self._database:
                self._database.executemany("INSERT OR REPLACE INTO files VALUES (?, ?, ?, ?, ?, ?)", rows)
        except sqlite3.Error:
            self.close()

    def close(self) -> None:
        if self._database is not None:
            self._database.close()
            self._database = None


def _name(path: Path) -> bytes:
    return os.fsencode(path)  # names of files need not be text


def _columns(stat: Stat) -> tuple[int, int, int, bytes]:
    # Numbers of files can be larger than SQLite's integers.
    return stat.size, stat.modified, stat.changed, str(stat.inode).encode()
