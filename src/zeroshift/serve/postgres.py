"""The store in a PostgreSQL database, for several service processes.

A process owns a stream through an advisory lock of its writing connection, which ends with the connection: another
process then takes the stream over. An append also compares the number of the owner, so a process that lost its
connection cannot write with what it remembers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import psycopg

from zeroshift.serve.records import DamagedError, OwnedElsewhereError, Snapshot, StoreError, StreamRecord
from zeroshift.serve.store import SqlStore

__all__ = ["PostgresStore"]

LOCK_CLASS = 0x7A73
"""First number of our advisory locks, so that they differ from those of other programs."""

KEEP_ALIVE = {"keepalives": 1, "keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3}
SERVER_KEEP_ALIVE = "-c tcp_keepalives_idle=10 -c tcp_keepalives_interval=5 -c tcp_keepalives_count=3"
"""How soon the server notices that a machine is gone, and lets its streams go: 25 seconds."""

EXTRA_TABLES = (
    "CREATE TABLE IF NOT EXISTS snapshot_contents (number BIGINT PRIMARY KEY, content BYTEA NOT NULL)",
    "CREATE TABLE IF NOT EXISTS access_keys (id TEXT PRIMARY KEY, entry TEXT NOT NULL)",
)


class PostgresStore(SqlStore):
    errors = (psycopg.Error,)
    types = {"blob": "BYTEA", "serial": "BIGSERIAL PRIMARY KEY"}  # noqa: RUF012

    def __init__(self, address: str, *, read_only: bool = False) -> None:
        super().__init__()
        self.address = address
        try:
            if read_only:
                self._check_schema()
                return
            self._write(lambda execute: [execute(table) for table in EXTRA_TABLES])
            self._prepare()
        except StoreError as error:
            self.close()
            raise ValueError(
                f"the PostgreSQL store cannot be opened: {error}. Fix: check the address, and that the server runs."
            ) from error
        except BaseException:
            self.close()
            raise

    def _connect(self, *, write: bool) -> Any:
        settings: dict[str, Any] = {**KEEP_ALIVE, "connect_timeout": 5, "options": SERVER_KEEP_ALIVE}
        connection = psycopg.connect(self.address, autocommit=True, **settings)
        if write:
            connection.execute("SET synchronous_commit = on")
        return connection

    def _sql(self, statement: str) -> str:
        return statement.replace("%", "%%").replace("?", "%s")

    def _writing_failed(self) -> None:
        """A connection that was lost is made again by the next write; its locks are gone."""
        if self._writer is not None and self._writer.broken:
            with suppress(psycopg.Error):
                self._writer.close()
            self._writer = None

    def claim(self, number: int) -> StreamRecord:
        # Not through `_write`: the lock belongs to the connection, not to a transaction.
        def lock(execute: Callable[..., Any]) -> bool:
            held = execute(
                "SELECT COUNT(*) FROM pg_locks WHERE locktype = 'advisory' AND classid = ? AND objid = ? "
                "AND pid = pg_backend_pid() AND granted",
                (LOCK_CLASS, number),
            ).fetchone()[0]
            return bool(held or execute("SELECT pg_try_advisory_lock(?, ?)", (LOCK_CLASS, number)).fetchone()[0])

        if not self._write(lock):
            raise OwnedElsewhereError("another process owns the stream")
        return super().claim(number)

    # The content of snapshots

    def _write_content(self, content: bytes) -> str:
        return ""

    def _insert_content(self, execute: Callable[..., Any], number: int, content: bytes) -> None:
        execute("INSERT INTO snapshot_contents (number, content) VALUES (?, ?)", (number, content))

    def _read_content(self, snapshot: Snapshot) -> bytes:
        rows = self._read("SELECT content FROM snapshot_contents WHERE number = ?", (snapshot.number,))
        if not rows:
            raise DamagedError(f"the content of snapshot {snapshot.number} is missing")
        return bytes(rows[0][0])

    def _delete_contents(self, files: Sequence[str]) -> None:
        self._do("DELETE FROM snapshot_contents WHERE number NOT IN (SELECT number FROM snapshots)")

    # Access keys

    def access_keys(self) -> list[dict[str, Any]]:
        return [json.loads(entry) for (entry,) in self._read("SELECT entry FROM access_keys ORDER BY id")]

    def change_access_keys(self, change: Callable[[list[dict[str, Any]]], list[dict[str, Any]]]) -> None:
        def replace(execute: Callable[..., Any]) -> None:
            execute("LOCK TABLE access_keys IN EXCLUSIVE MODE")
            before = [json.loads(entry) for (entry,) in execute("SELECT entry FROM access_keys").fetchall()]
            execute("DELETE FROM access_keys")
            for key in change(before):
                execute("INSERT INTO access_keys (id, entry) VALUES (?, ?)", (key["id"], json.dumps(key)))

        self._write(replace)
