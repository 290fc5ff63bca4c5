"""The store in a folder: an SQLite database, one file per snapshot, and the access keys.

The database is in WAL mode with synchronous=FULL: a commit is on the disk when it returns. Only the writing connection
of the one service that owns the folder writes and makes checkpoints. All files are private to their owner.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import re
import secrets
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from zeroshift.files import atomic_path
from zeroshift.parsers import read_json
from zeroshift.serve.records import DamagedError, Snapshot, StoreError, is_canary
from zeroshift.serve.store import SCRATCH_PREFIX, SqlStore

__all__ = ["SqliteStore"]

DATABASE, SNAPSHOTS, LOCK, KEYS = "store.sqlite", "snapshots", "lock", "keys.json"
SNAPSHOT_NAME = re.compile(r"[0-9a-f]{24}\.safetensors")
WAIT_SECONDS = 0.5
CACHE_KB = 64 * 1024
"""What the writing connection keeps in memory, at most."""

T = TypeVar("T")

log = logging.getLogger("zeroshift.serve")


class SqliteStore(SqlStore):
    errors = (sqlite3.Error,)
    types = {"blob": "BLOB", "serial": "INTEGER PRIMARY KEY AUTOINCREMENT"}  # noqa: RUF012
    begin = "BEGIN IMMEDIATE"
    exclusive = True

    def __init__(self, folder: str | os.PathLike[str], *, wait: bool = False, read_only: bool = False) -> None:
        super().__init__()
        self.folder = Path(folder)
        self._read_only = read_only
        self._lock_file: int | None = None
        self._commits = 0
        """Transactions in the store since it was made; 0 before the first of this process."""
        self._missing = self._missing_file()
        if read_only:
            if not (self.folder / DATABASE).is_file():
                raise FileNotFoundError(
                    f"no store at {folder}: it has no {DATABASE}. Fix: check the path, or restore a backup."
                )
            try:
                self._check_schema()
            except StoreError as error:
                raise ValueError(self._missing or self._cannot_open(error)) from error
            except BaseException:
                self.close()
                raise
            return
        self.scratch = self.folder / SNAPSHOTS
        if self.scratch.is_symlink():  # files are deleted in it
            raise ValueError(f"{self.scratch} is a link to another folder. Fix: make it a folder of the store.")
        make_private_folder(self.scratch)
        self._lock_file = self._own(wait)
        try:
            self._missing = self._missing_file()  # now that nobody else changes the files
            if self._missing:
                raise ValueError(self._missing)
            self._make_private()
            self._prepare()
            self._delete_unused()
        except StoreError as error:
            self.close()
            raise ValueError(self._cannot_open(error)) from error
        except BaseException:
            self.close()
            raise

    def _cannot_open(self, error: StoreError) -> str:
        return (
            f"{self.folder}: {error}. Fix: check the space left on the disk and the permissions of the folder, "
            "or restore a backup."
        )

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

    def _make_private(self) -> None:
        """Take the permissions of others away from a store of an earlier version, and make the database private.

        SQLite gives its other files the permissions of the database.
        """
        os.close(os.open(self.folder / DATABASE, os.O_RDWR | os.O_CREAT, 0o600))
        files = [*self.folder.glob(f"{DATABASE}*"), *(self.folder / SNAPSHOTS).glob("*.safetensors")]
        for path in [self.folder / SNAPSHOTS, *files]:
            mode = path.stat(follow_symlinks=False).st_mode
            if mode & 0o077 and not path.is_symlink():
                with suppress(PermissionError):  # it belongs to somebody else
                    path.chmod(mode & 0o700)
        if self.folder.stat().st_mode & 0o077:
            log.warning(
                "Others may look into the folder %s, although its files are private. Fix: chmod 700", self.folder
            )

    def _write(self, change: Callable[[Callable[..., Any]], T]) -> T:
        """Every transaction is counted, in the database and then in the lock file: see `_missing_file`."""

        def counted(execute: Callable[..., Any]) -> tuple[T, int]:
            result = change(execute)
            row = execute(
                "INSERT INTO meta (name, value) VALUES ('commits', '1') ON CONFLICT (name) DO UPDATE "
                "SET value = CAST(CAST(meta.value AS INTEGER) + 1 AS TEXT) RETURNING value"
            ).fetchone()
            return result, int(row[0])

        with self._lock:
            result, self._commits = super()._write(counted)
            self._mark("open")
        return result

    def _mark(self, state: str) -> None:
        """Note in the lock file whether the store is `open` or was `closed` in order, and after which transaction."""
        if self._commits and self._lock_file is not None:
            with suppress(OSError):
                os.pwrite(self._lock_file, f"{state:8}{self._commits:20}".encode(), 0)

    def _missing_file(self) -> str | None:
        """What is wrong if a file of the database is gone. SQLite would begin without it, and say nothing."""
        lock, database = self.folder / LOCK, self.folder / DATABASE
        state, _, noted = (lock.read_text() if lock.is_file() else "").partition(" ")
        if not database.exists() and (state or any((self.folder / SNAPSHOTS).glob("*"))):
            return f"{DATABASE} is missing in the store {self.folder}, which has been used. Fix: restore a backup."
        log = Path(f"{database}-wal")
        if state != "open" or (log.exists() and log.stat().st_size):
            return None
        # Another program that reads the database of a service that was killed moves the log into it, and deletes it.
        found, last = self._count_commits(), int(noted) if noted.strip().isdecimal() else None
        if last is not None and found in (last, last + 1):  # it may be killed before it notes the last one
            return None
        return (
            f"{DATABASE}-wal is missing in the store {self.folder}: the last samples may be lost, since the database "
            f"has transaction {found} and the service noted {last}. Fix: restore a backup; or delete the file `{LOCK}` "
            "to continue without them."
        )

    def _count_commits(self) -> int | None:
        """Number of the last transaction in the database without a write-ahead log; None if it cannot be read."""
        address = f"{(self.folder / DATABASE).absolute().as_uri()}?mode=ro&immutable=1"
        try:
            with closing(sqlite3.connect(address, uri=True)) as connection:
                row = connection.execute("SELECT value FROM meta WHERE name = 'commits'").fetchone()
            return None if row is None else int(row[0])
        except (sqlite3.Error, ValueError):
            return None

    def _connect(self, *, write: bool) -> sqlite3.Connection:
        path = self.folder / DATABASE
        if self._read_only:
            # The write-ahead log of a service that was killed stays as it is. Without one, the folder may be read-only.
            wal = Path(f"{path}-wal")
            how = "mode=ro" if wal.exists() or os.access(self.folder, os.W_OK) else "mode=ro&immutable=1"
            return sqlite3.connect(
                f"{path.absolute().as_uri()}?{how}", uri=True, isolation_level=None, check_same_thread=False, timeout=10
            )
        if write:
            connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=10)
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")
            # A commit changes the row of its stream, which contains the prototypes: with many classes they are more
            # than the 2 MB that are kept in memory by default.
            connection.execute(f"PRAGMA cache_size = -{CACHE_KB}")
            return connection
        connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=10)
        connection.execute("PRAGMA query_only = ON")
        connection.execute("PRAGMA wal_autocheckpoint = 0")
        return connection

    def close(self) -> None:
        self._mark("closed")
        super().close()
        if self._lock_file is not None:
            os.close(self._lock_file)
            self._lock_file = None

    # The content of snapshots

    def _write_content(self, content: bytes) -> str:
        name = f"{secrets.token_hex(12)}.safetensors"
        try:
            with atomic_path(self.folder / SNAPSHOTS / name, mode=0o600) as temporary:
                temporary.write_bytes(content)
            handle = os.open(self.folder / SNAPSHOTS, os.O_RDONLY)
            try:
                os.fsync(handle)  # the name of the file, too
            finally:
                os.close(handle)
        except OSError as error:
            raise StoreError(f"a snapshot cannot be written ({error.strerror or error})") from error
        return name

    def _snapshot_path(self, file: str) -> Path:
        """Where a snapshot is. DamagedError for a name that no store gives, which may lead to another folder."""
        path = self.folder / SNAPSHOTS / file
        if not SNAPSHOT_NAME.fullmatch(file) or path.is_symlink():
            raise DamagedError(f"a snapshot has the file name {file[:80]!r}, which is none of this store")
        return path

    def _read_content(self, snapshot: Snapshot) -> bytes:
        try:
            return self._snapshot_path(snapshot.file).read_bytes()
        except OSError as error:
            raise DamagedError(
                f"the file of snapshot {snapshot.number} cannot be read ({error.strerror or error})"
            ) from error

    def _delete_contents(self, files: Sequence[str]) -> None:
        for file in files:
            with suppress(OSError, DamagedError):
                self._snapshot_path(file).unlink()

    def _delete_unused(self) -> None:
        """Delete files that a service which was killed had not yet recorded, or no longer needed."""
        used = {row[0] for row in self._read("SELECT file FROM snapshots")}
        for path in (self.folder / SNAPSHOTS).iterdir():
            if path.name.startswith(SCRATCH_PREFIX) and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            elif path.name not in used and path.name.endswith((".safetensors", ".tmp")):
                with suppress(OSError):
                    path.unlink()

    # Access keys: a file of their own, because `zeroshift serve keys` changes them while a service runs

    def access_keys(self) -> list[dict[str, Any]]:
        path = self.folder / KEYS
        try:
            return list(read_json(path)["keys"]) if path.exists() else []
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise StoreError(f"{KEYS} cannot be read ({error})") from error

    def change_access_keys(self, change: Callable[[list[dict[str, Any]]], list[dict[str, Any]]]) -> None:
        with keys_locked(self.folder):
            _write_keys(self.folder, change(self.access_keys()))

    # Checks and copies

    def _check_database(self) -> Iterator[str]:
        if self._missing:
            yield self._missing
        for (answer,) in self._read("PRAGMA integrity_check"):
            if answer != "ok":
                yield f"the database is damaged: {answer}"

    def backup(self, target: str | os.PathLike[str]) -> dict[str, int]:
        """Copy the store to a new folder, also while a service runs; the copy is the store at one moment."""
        folder = Path(target)
        if folder.exists() and any(folder.iterdir()):
            raise FileExistsError(f"{target} exists and is not empty. Fix: a new folder.")
        make_private_folder(folder / SNAPSHOTS)
        os.close(os.open(folder / DATABASE, os.O_RDWR | os.O_CREAT, 0o600))
        source, copy = self._connect(write=False), sqlite3.connect(folder / DATABASE)
        try:
            # The service may delete old snapshots at any time. Those of now are copied before the database, those that
            # are made meanwhile after it.
            self._copy_snapshots(folder, source.execute("SELECT number, file FROM snapshots").fetchall())
            source.backup(copy)
            copied = copy.execute("SELECT number, file FROM snapshots").fetchall()
            missing = self._copy_snapshots(folder, copied)
            with copy:
                copy.executemany("DELETE FROM snapshots WHERE number = ?", [(number,) for number in missing])
            used = {file for _, file in copied}
            for path in (folder / SNAPSHOTS).iterdir():
                if path.name not in used:
                    path.unlink()
            streams = sum(not is_canary(name) for (name,) in copy.execute("SELECT id FROM streams"))
        finally:
            copy.close()
            source.close()
        _write_keys(folder, self.access_keys())
        return {"streams": streams, "snapshots": len(copied) - len(missing)}

    def _copy_snapshots(self, folder: Path, snapshots: Sequence[tuple[int, str]]) -> list[int]:
        """Copy the files of snapshots that `folder` does not have yet; the numbers of those that do not exist."""
        missing = []
        for number, file in snapshots:
            target = folder / SNAPSHOTS / file
            try:
                source = self._snapshot_path(file)
                if not target.exists():
                    with atomic_path(target, mode=0o600) as temporary:
                        shutil.copyfile(source, temporary)
            except (FileNotFoundError, DamagedError):
                missing.append(number)
        return missing


def make_private_folder(path: Path) -> None:
    """Make a folder and those above it; only the owner may enter the store and what is in it."""
    path.parent.parent.mkdir(parents=True, exist_ok=True)
    for one in (path.parent, path):
        one.mkdir(mode=0o700, exist_ok=True)


@contextmanager
def keys_locked(folder: Path) -> Iterator[None]:
    handle = os.open(folder / f"{KEYS}.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _write_keys(folder: Path, keys: list[dict[str, Any]]) -> None:
    with atomic_path(folder / KEYS, mode=0o600) as temporary:
        temporary.write_text(json.dumps({"keys": keys}, indent=1) + "\n", encoding="utf-8")
