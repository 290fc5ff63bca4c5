"""What was in a file when it last looked like this: so that a second run need not read a whole data set to know it."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable
from pathlib import Path

__all__ = ["Contents"]

SETTLED_NS = 2_000_000_000
"""A file changed less than two seconds before it was looked at may change again without its time showing it."""


class Contents:
    """Digests of files by path, size and time of change. Only ever a shortcut: where it fails, files are read."""

    def __init__(self, cache: Path | None) -> None:
        self._database: sqlite3.Connection | None = None
        if cache is None:
            return
        try:
            cache.mkdir(parents=True, exist_ok=True)
            self._database = sqlite3.connect(cache / "contents.sqlite", timeout=10)
            self._database.execute(
                "CREATE TABLE IF NOT EXISTS contents "
                "(path BLOB PRIMARY KEY, size INTEGER, changed INTEGER, digest BLOB) WITHOUT ROWID"
            )
        except (sqlite3.Error, OSError):
            self.close()

    def find(self, path: Path, size: int, changed: int) -> bytes | None:
        """The digest of a file that has not changed since, or None."""
        if self._database is None:
            return None
        try:
            found = self._database.execute(
                "SELECT digest FROM contents WHERE path = ? AND size = ? AND changed = ?", (_name(path), size, changed)
            ).fetchone()
        except sqlite3.Error:
            return None
        return None if found is None else bytes(found[0])

    def keep(self, entries: Iterable[tuple[Path, int, int, bytes]], looked: int) -> None:
        """(path, size, time of change, digest) of files; `looked`, in nanoseconds, is when size and time were taken."""
        settled = looked - SETTLED_NS
        rows = [(_name(path), size, changed, digest) for path, size, changed, digest in entries if changed < settled]
        if self._database is None or not rows:
            return
        try:
            with self._database:
                self._database.executemany("INSERT OR REPLACE INTO contents VALUES (?, ?, ?, ?)", rows)
        except sqlite3.Error:
            self.close()

    def close(self) -> None:
        if self._database is not None:
            self._database.close()
            self._database = None


def _name(path: Path) -> bytes:
    return os.fsencode(path)  # names of files need not be text
