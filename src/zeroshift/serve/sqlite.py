"""The store in a folder: an SQLite database, one file per snapshot, and the access keys.

The database is in WAL mode with synchronous=FULL: a commit is on the disk when it returns. Only the writing connection
of the one service that owns the folder writes and makes checkpoints.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from zeroshift.files import atomic_path
from zeroshift.parsers import read_json
from zeroshift.serve.records import DamagedError, Snapshot
from zeroshift.serve.store import SqlStore

__all__ = ["SqliteStore"]

DATABASE, SNAPSHOTS, LOCK, KEYS = "store.sqlite", "snapshots", "lock", "keys.json"
WAIT_SECONDS = 0.5


class SqliteStore(SqlStore):
    errors = (sqlite3.Error,)
    types = {"blob": "BLOB", "serial": "INTEGER PRIMARY KEY AUTOINCREMENT"}  # noqa: RUF012
    begin = "BEGIN IMMEDIATE"

    def __init__(self, folder: str | os.PathLike[str], *, wait: bool = False, read_only: bool = False) -> None:
        super().__init__()
        self.folder = Path(folder)
        self._read_only = read_only
        self._lock_file: int | None = None
        if read_only:
            if not (self.folder / DATABASE).is_file():
                raise FileNotFoundError(f"no store at {folder}. Fix: check the path.")
            self._check_schema()
            return
        (self.folder / SNAPSHOTS).mkdir(parents=True, exist_ok=True)
        self._lock_file = self._own(wait)
        try:
            self._prepare()
            self._delete_unused()
        except BaseException:
            self.close()
            raise

    def _own(self, wait: bool) -> int:
        """Lock the folder; the lock ends with the process."""
        handle = os.open(self.folder / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return handle
            except BlockingIOError:
                if not wait:
                    os.close(handle)
                    raise ValueError(
                        f"another service uses the store {self.folder}. "
                        "Fix: stop it, use another folder, or wait for its end with --standby."
                    ) from None
                time.sleep(WAIT_SECONDS)

    def _connect(self, *, write: bool) -> sqlite3.Connection:
        path = self.folder / DATABASE
        if write:
            connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=10)
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")
            return connection
        connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=10)
        connection.execute("PRAGMA query_only = ON")
        connection.execute("PRAGMA wal_autocheckpoint = 0")
        return connection

    def close(self) -> None:
        super().close()
        if self._lock_file is not None:
            os.close(self._lock_file)
            self._lock_file = None

    # The content of snapshots

    def _write_content(self, content: bytes) -> str:
        name = f"{secrets.token_hex(12)}.safetensors"
        with atomic_path(self.folder / SNAPSHOTS / name) as temporary:
            temporary.write_bytes(content)
        handle = os.open(self.folder / SNAPSHOTS, os.O_RDONLY)
        try:
            os.fsync(handle)  # the name of the file, too
        finally:
            os.close(handle)
        return name

    def _read_content(self, snapshot: Snapshot) -> bytes:
        try:
            return (self.folder / SNAPSHOTS / snapshot.file).read_bytes()
        except OSError as error:
            raise DamagedError(
                f"the file of snapshot {snapshot.number} cannot be read ({error.strerror or error})"
            ) from error

    def _delete_contents(self, files: Sequence[str]) -> None:
        for file in files:
            with suppress(OSError):
                (self.folder / SNAPSHOTS / file).unlink()

    def _delete_unused(self) -> None:
        """Delete files that a service which was killed had not yet recorded, or no longer needed."""
        used = {row[0] for row in self._read("SELECT file FROM snapshots")}
        for path in (self.folder / SNAPSHOTS).iterdir():
            if path.name not in used:
                with suppress(OSError):
                    path.unlink()

    # Access keys: a file of their own, because `zeroshift serve keys` changes them while a service runs

    def access_keys(self) -> list[dict[str, Any]]:
        path = self.folder / KEYS
        return list(read_json(path)["keys"]) if path.exists() else []

    def change_access_keys(self, change: Callable[[list[dict[str, Any]]], list[dict[str, Any]]]) -> None:
        with keys_locked(self.folder):
            _write_keys(self.folder, change(self.access_keys()))

    # Checks and copies

    def _check_database(self) -> Iterator[str]:
        for (answer,) in self._read("PRAGMA integrity_check"):
            if answer != "ok":
                yield f"the database is damaged: {answer}"

    def backup(self, target: str | os.PathLike[str]) -> dict[str, int]:
        """Copy the store to a new folder, also while a service runs; the copy is the store at one moment."""
        folder = Path(target)
        if folder.exists() and any(folder.iterdir()):
            raise FileExistsError(f"{target} exists and is not empty. Fix: a new folder.")
        (folder / SNAPSHOTS).mkdir(parents=True, exist_ok=True)
        source, copy = self._connect(write=False), sqlite3.connect(folder / DATABASE)
        try:
            source.backup(copy)
            missing = []
            for number, file in copy.execute("SELECT number, file FROM snapshots").fetchall():
                try:
                    shutil.copyfile(self.folder / SNAPSHOTS / file, folder / SNAPSHOTS / file)
                except OSError:  # the service deleted it after the database was copied: it has newer ones
                    missing.append((number,))
            with copy:
                copy.executemany("DELETE FROM snapshots WHERE number = ?", missing)
            kept = copy.execute("SELECT COUNT(*) FROM snapshots").fetchone()[0]
            streams = copy.execute("SELECT COUNT(*) FROM streams").fetchone()[0]
        finally:
            copy.close()
            source.close()
        _write_keys(folder, self.access_keys())
        return {"streams": streams, "snapshots": kept}


@contextmanager
def keys_locked(folder: Path) -> Iterator[None]:
    folder.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder / f"{KEYS}.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _write_keys(folder: Path, keys: list[dict[str, Any]]) -> None:
    with atomic_path(folder / KEYS) as temporary:
        temporary.chmod(0o600)
        temporary.write_text(json.dumps({"keys": keys}, indent=1) + "\n", encoding="utf-8")
    (folder / KEYS).chmod(0o600)
