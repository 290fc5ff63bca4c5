"""The store of the service: streams, log, snapshots and access keys, in SQLite (`sqlite`) or PostgreSQL (`postgres`).

`SqlStore` contains the tables and statements, which both databases share. A subclass opens connections, and says how
the database writes types and where the content of snapshots and the access keys are.

Reads use one connection per thread. Writes use one connection, one at a time. `append` is the only write that happens
for every request: `Committer` collects what several streams want to append into one transaction.
"""

from __future__ import annotations

import hashlib
import json
import queue
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np

from zeroshift.installation import install_command
from zeroshift.serve.records import (
    Append,
    Batch,
    DamagedError,
    DeletedError,
    Epoch,
    Snapshot,
    StoreError,
    StreamRecord,
    row_checksum,
)

__all__ = ["SCRATCH_PREFIX", "Committer", "SqlStore", "open_store"]

SCHEMA = 2
"""Increased when an earlier version cannot use a store of this one."""

TABLES = """
CREATE TABLE IF NOT EXISTS meta (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS streams (number {serial}, id TEXT NOT NULL UNIQUE, config TEXT NOT NULL,
  prototypes {blob} NOT NULL, dimension BIGINT NOT NULL, created DOUBLE PRECISION NOT NULL, checksum TEXT NOT NULL,
  seq BIGINT NOT NULL DEFAULT 0, epoch BIGINT NOT NULL DEFAULT 0, alarm TEXT, owner BIGINT NOT NULL DEFAULT 0);
CREATE TABLE IF NOT EXISTS epochs (stream BIGINT NOT NULL, epoch BIGINT NOT NULL, start BIGINT NOT NULL,
  parent_epoch BIGINT, parent_seq BIGINT, reason TEXT NOT NULL, time DOUBLE PRECISION NOT NULL,
  PRIMARY KEY (stream, epoch));
CREATE TABLE IF NOT EXISTS batches (stream BIGINT NOT NULL, first BIGINT NOT NULL, count BIGINT NOT NULL,
  epoch BIGINT NOT NULL, learned BIGINT NOT NULL, time DOUBLE PRECISION NOT NULL, keys TEXT NOT NULL,
  features {blob} NOT NULL, answers {blob} NOT NULL, checksum TEXT NOT NULL, PRIMARY KEY (stream, first));
CREATE TABLE IF NOT EXISTS sample_keys (stream BIGINT NOT NULL, name TEXT NOT NULL, digest TEXT NOT NULL,
  seq BIGINT NOT NULL, PRIMARY KEY (stream, name));
CREATE TABLE IF NOT EXISTS requests (stream BIGINT NOT NULL, name TEXT NOT NULL, digest TEXT NOT NULL,
  results TEXT NOT NULL, seq BIGINT NOT NULL, checksum TEXT NOT NULL, PRIMARY KEY (stream, name));
CREATE TABLE IF NOT EXISTS snapshots (number {serial}, stream BIGINT NOT NULL, epoch BIGINT NOT NULL,
  seq BIGINT NOT NULL, time DOUBLE PRECISION NOT NULL, size BIGINT NOT NULL, checksum TEXT NOT NULL,
  environment TEXT NOT NULL, monitor TEXT NOT NULL, file TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS kept_snapshots (stream BIGINT NOT NULL, number BIGINT NOT NULL,
  PRIMARY KEY (stream, number));
CREATE INDEX IF NOT EXISTS snapshots_of_stream ON snapshots (stream, epoch, seq);
CREATE TABLE IF NOT EXISTS thumbnails (stream BIGINT NOT NULL, seq BIGINT NOT NULL, content {blob} NOT NULL,
  PRIMARY KEY (stream, seq));
CREATE TABLE IF NOT EXISTS labels (stream BIGINT NOT NULL, seq BIGINT NOT NULL, label BIGINT NOT NULL,
  predicted BIGINT NOT NULL, zero_shot BIGINT NOT NULL, features {blob} NOT NULL, time DOUBLE PRECISION NOT NULL,
  checksum TEXT NOT NULL, PRIMARY KEY (stream, seq));
"""

STREAM_COLUMNS = "number, id, config, prototypes, dimension, created, checksum, seq, epoch, alarm, owner"
STREAM_TABLES = ("epochs", "batches", "sample_keys", "requests", "snapshots", "kept_snapshots", "thumbnails", "labels")
BATCH_COLUMNS = "first, count, epoch, learned, time, keys, features, answers, checksum"
THUMBNAIL_SIZES = "SELECT seq, LENGTH(content) FROM thumbnails WHERE stream = ?"
STORED_BYTES = {
    "batches": "LENGTH(features) + LENGTH(answers)",
    "sample_keys": "2 * LENGTH(name) + LENGTH(digest)",  # the batches have the names, too
    "requests": "LENGTH(name) + LENGTH(digest) + LENGTH(results)",
    "labels": "LENGTH(features)",
    "snapshots": "size",
}
"""By table, what counts of a row for the quota of its tenant."""
SNAPSHOT_COLUMNS = "number, epoch, seq, time, size, checksum, environment, monitor, file"

SCRATCH_PREFIX = "zeroshift-"
"""How the names of folders begin in which states are written and read."""

READ_ROWS, READ_BYTES = 64, 16 * 2**20

T = TypeVar("T")


def open_store(location: str, *, wait: bool = False, read_only: bool = False) -> SqlStore:
    """The store in a folder (SQLite) or at a `postgresql://` address.

    One service owns a folder at a time. With `wait`, wait until another one ends; otherwise that is an error. With
    `read_only`, nothing is owned or written, and a service may run.
    """
    if location.startswith(("postgresql://", "postgres://")):
        try:
            from zeroshift.serve.postgres import PostgresStore
        except ImportError as error:
            raise ImportError(
                f"a PostgreSQL store needs psycopg, which is not installed. Fix: {install_command('postgres')}."
            ) from error
        return PostgresStore(location, read_only=read_only)
    from zeroshift.serve.sqlite import SqliteStore

    return SqliteStore(location, wait=wait, read_only=read_only)


class SqlStore(ABC):
    errors: ClassVar[tuple[type[Exception], ...]]
    """What the database raises."""
    types: ClassVar[Mapping[str, str]]
    """How the database writes `blob` and `serial`."""
    scratch: Path | None = None
    """Where states are written and read; None is the system's folder for temporary files."""

    def __init__(self) -> None:
        self._local = threading.local()
        self._lock = threading.RLock()
        self._writer: Any = None
        self._opened: list[Any] = []

    # Connections

    @abstractmethod
    def _connect(self, *, write: bool) -> Any:
        """A connection on which only statements begin and end transactions."""

    def _sql(self, statement: str) -> str:
        return statement

    def _read(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        connection = getattr(self._local, "connection", None)
        try:
            if connection is None:
                connection = self._local.connection = self._connect(write=False)
                with self._lock:
                    self._opened.append(connection)
            return list(connection.execute(self._sql(statement), values).fetchall())
        except self.errors as error:
            self._local.connection = None
            if connection is not None:
                with suppress(Exception):
                    connection.close()
                with self._lock, suppress(ValueError):
                    self._opened.remove(connection)
            raise StoreError(f"the store cannot be read ({_brief(error)})") from error

    def _write(self, change: Callable[[Callable[..., Any]], T]) -> T:
        """Run `change(execute)` in a transaction: all of it is stored, or nothing."""
        with self._lock:
            try:
                if self._writer is None:
                    self._writer = self._connect(write=True)
                connection = self._writer

                def execute(statement: str, values: Sequence[Any] = ()) -> Any:
                    return connection.execute(self._sql(statement), values)

                connection.execute(self.begin)
                try:
                    result = change(execute)
                    connection.execute("COMMIT")
                except BaseException:
                    with suppress(*self.errors):
                        connection.execute("ROLLBACK")
                    raise
                return result
            except self.errors as error:
                self._writing_failed()
                raise StoreError(f"the store cannot be written ({_brief(error)})") from error

    begin: ClassVar[str] = "BEGIN"
    exclusive: ClassVar[bool] = False
    """Whether only one process can use it."""

    def _writing_failed(self) -> None:  # noqa: B027 (a subclass may, but need not)
        """Called with the lock held."""

    def _do(self, statement: str, values: Sequence[Any] = ()) -> None:
        """One statement in a transaction of its own."""
        self._write(lambda execute: (execute(statement, values), None)[1])

    def _prepare(self) -> None:
        """Create the tables, or check that the store was made by a version that this one understands."""

        def create(execute: Callable[..., Any]) -> None:
            for number, statement in enumerate(filter(str.strip, TABLES.format(**self.types).split(";\n"))):
                execute(statement)
                if number == 0:  # the table meta; the others of a store of another schema are left as they are
                    insert = "INSERT INTO meta (name, value) VALUES ('schema', ?) ON CONFLICT DO NOTHING"
                    execute(insert, (str(SCHEMA),))
                    _check_schema(execute("SELECT value FROM meta WHERE name = 'schema'").fetchall())

        self._write(create)

    def _check_schema(self) -> None:
        _check_schema(self._read("SELECT value FROM meta WHERE name = 'schema'"))

    def close(self) -> None:
        with self._lock:
            for connection in [*self._opened, self._writer]:
                if connection is not None:
                    with suppress(Exception):
                        connection.close()
            self._opened, self._writer = [], None

    # Streams

    def streams(self) -> tuple[list[StreamRecord], dict[str, str]]:
        """All streams by name; and the names of those whose row is damaged, with what is wrong."""
        found: list[StreamRecord] = []
        damaged: dict[str, str] = {}
        for row in self._read(f"SELECT {STREAM_COLUMNS} FROM streams ORDER BY id"):
            try:
                found.append(_stream_record(row))
            except DamagedError as error:
                damaged[str(row[1])] = str(error)
        return found, damaged

    def stream(self, number: int) -> StreamRecord:
        rows = self._read(f"SELECT {STREAM_COLUMNS} FROM streams WHERE number = ?", (number,))
        if not rows:
            raise DeletedError("the stream was deleted")
        return _stream_record(rows[0])

    def find_stream(self, name: str) -> StreamRecord | None:
        rows = self._read(f"SELECT {STREAM_COLUMNS} FROM streams WHERE id = ?", (name,))
        return _stream_record(rows[0]) if rows else None

    def create_stream(self, name: str, config: Mapping[str, Any], prototypes: np.ndarray) -> StreamRecord:
        """The new stream, or the one of that name that another process made meanwhile."""
        now = time.time()
        row = (name, json.dumps(config), prototypes.astype("<f4").tobytes(), prototypes.shape[1], now)

        def create(execute: Callable[..., Any]) -> None:
            made = execute(
                "INSERT INTO streams (id, config, prototypes, dimension, created, checksum) VALUES (?, ?, ?, ?, ?, ?) "
                "ON CONFLICT (id) DO NOTHING RETURNING number",
                (*row, row_checksum(row)),
            ).fetchone()
            if made is not None:
                execute(
                    "INSERT INTO epochs (stream, epoch, start, reason, time) VALUES (?, 0, 0, 'created', ?)",
                    (made[0], now),
                )

        self._write(create)
        found = self.find_stream(name)
        if found is None:
            raise StoreError("the stream was deleted meanwhile")
        return found

    def delete_stream(self, stream: StreamRecord) -> None:
        files = [snapshot.file for snapshot in self.snapshots(stream)]

        def delete(execute: Callable[..., Any]) -> None:
            for table in STREAM_TABLES:
                execute(f"DELETE FROM {table} WHERE stream = ?", (stream.number,))
            execute("DELETE FROM streams WHERE number = ?", (stream.number,))

        self._write(delete)
        self._delete_contents(files)

    def claim(self, number: int) -> StreamRecord:
        """Make this process the owner of a stream. What an earlier owner still wants to append is refused."""
        self._write(
            lambda execute: execute("UPDATE streams SET owner = owner + 1 WHERE number = ?", (number,)) and None
        )
        return self.stream(number)

    # The log

    def append(self, appends: Sequence[Append]) -> None:
        """Store what several streams append, all or nothing."""

        def add(execute: Callable[..., Any]) -> None:
            for one in appends:
                self._append(execute, one)

        self._write(add)

    def _append(self, execute: Callable[..., Any], one: Append) -> None:
        stream = one.stream
        alarm = None if one.alarm is None else json.dumps(one.alarm)
        changed = execute(
            "UPDATE streams SET seq = ?, alarm = ? WHERE number = ? AND seq = ? AND epoch = ? AND owner = ?",
            (one.seq, alarm, stream.number, stream.seq, stream.epoch, stream.owner),
        )
        if changed.rowcount != 1:
            raise StoreError("another process changed the stream meanwhile")
        number = stream.number
        for batch in one.batches:
            execute(
                f"INSERT INTO batches (stream, {BATCH_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (number, *batch.to_row()),
            )
        for name, digest, seq in one.keys:
            execute(
                "INSERT INTO sample_keys (stream, name, digest, seq) VALUES (?, ?, ?, ?)", (number, name, digest, seq)
            )
        for request in one.requests:
            execute(
                "INSERT INTO requests (stream, name, digest, results, seq, checksum) VALUES (?, ?, ?, ?, ?, ?)",
                (number, *request, row_checksum(request)),
            )
        for seq, content in one.thumbnails:
            execute("INSERT INTO thumbnails (stream, seq, content) VALUES (?, ?, ?)", (number, seq, content))
        if one.thumbnails:
            self._trim_thumbnails(execute, stream)

    def _trim_thumbnails(self, execute: Callable[..., Any], stream: StreamRecord) -> None:
        """Delete the oldest thumbnails beyond the count and the bytes that the stream keeps."""
        limit, total = stream.config["thumbnails"], 0
        kept = execute(f"{THUMBNAIL_SIZES} ORDER BY seq DESC", (stream.number,)).fetchall()
        for place, (seq, size) in enumerate(kept):
            total += size
            if place >= limit["count"] or total > limit["bytes"]:
                execute("DELETE FROM thumbnails WHERE stream = ? AND seq <= ?", (stream.number, seq))
                return

    def find_keys(self, stream: StreamRecord, names: Sequence[str]) -> dict[str, tuple[str, int]]:
        """Digest and number of the samples that have these keys."""
        found: dict[str, tuple[str, int]] = {}
        for at in range(0, len(names), 500):
            part = names[at : at + 500]
            marks = ", ".join("?" * len(part))
            rows = self._read(
                f"SELECT name, digest, seq FROM sample_keys WHERE stream = ? AND name IN ({marks})",
                (stream.number, *part),
            )
            found |= {name: (digest, seq) for name, digest, seq in rows}
        return found

    def find_requests(self, stream: StreamRecord, names: Sequence[str]) -> dict[str, tuple[str, list[Any]]]:
        """Digest and results of the requests that have these keys."""
        if not names:
            return {}
        marks = ", ".join("?" * len(names))
        rows = self._read(
            f"SELECT name, digest, results, seq, checksum FROM requests WHERE stream = ? AND name IN ({marks})",
            (stream.number, *names),
        )
        for *row, checksum in rows:
            if row_checksum(tuple(row)) != checksum:
                raise DamagedError("the row of an earlier request does not have its checksum")
        return {name: (digest, json.loads(results)) for name, digest, results, *_ in rows}

    def read_batches(self, stream: StreamRecord, after: int) -> Iterator[Batch]:
        """The log in order, from the batch that contains sample `after + 1`. DamagedError at a damaged row."""
        while rows := self._batch_rows(stream, after):
            for row in rows:
                batch = Batch.from_row(row, stream.prototypes.shape[1])
                yield batch
                after = batch.last

    def _batch_rows(self, stream: StreamRecord, after: int) -> list[tuple[Any, ...]]:
        """The next rows of the log, up to `READ_ROWS` and `READ_BYTES`, but at least one."""
        which = (
            "FROM batches WHERE stream = ? AND first + count - 1 > ? AND first >= "
            "COALESCE((SELECT MAX(first) FROM batches WHERE stream = ? AND first <= ?), 0) ORDER BY first LIMIT ?"
        )
        values = (stream.number, after, stream.number, after + 1)
        sizes = [
            one[0] for one in self._read(f"SELECT LENGTH(features) + LENGTH(answers) {which}", (*values, READ_ROWS))
        ]
        fitting = sum(total <= READ_BYTES for total in accumulate(sizes))
        return self._read(f"SELECT {BATCH_COLUMNS} {which}", (*values, max(1, fitting))) if sizes else []

    def first_sample(self, stream: StreamRecord) -> int:
        """Number of the first sample that is still in the log; 0 if there is none."""
        return int(self._read("SELECT COALESCE(MIN(first), 0) FROM batches WHERE stream = ?", (stream.number,))[0][0])

    def last_sample(self, stream: StreamRecord) -> int:
        """Number of the last sample in the log; 0 if there is none."""
        rows = self._read(
            "SELECT first + count - 1 FROM batches WHERE stream = ? ORDER BY first DESC LIMIT 1", (stream.number,)
        )
        return int(rows[0][0]) if rows else 0

    def find_batch(self, stream: StreamRecord, seq: int) -> Batch | None:
        """The batch that contains a sample; None if it was deleted."""
        rows = self._read(
            f"SELECT {BATCH_COLUMNS} FROM batches WHERE stream = ? AND first <= ? ORDER BY first DESC LIMIT 1",
            (stream.number, seq),
        )
        batch = Batch.from_row(rows[0], stream.prototypes.shape[1]) if rows else None
        return batch if batch is not None and batch.first <= seq <= batch.last else None

    def compact(self, stream: StreamRecord, through: int) -> int:
        """Delete the log up to sample `through`, with the keys of these samples; how many bytes that were."""

        def delete(execute: Callable[..., Any]) -> int:
            def remove(table: str, which: str, end: int) -> int:
                rows, values = f"FROM {table} WHERE stream = ? AND {which}", (stream.number, end)
                size = execute(f"SELECT COALESCE(SUM({STORED_BYTES[table]}), 0) {rows}", values).fetchone()[0]
                execute(f"DELETE {rows}", values)
                return int(size)

            deleted = remove("batches", "first + count - 1 <= ?", through)
            left = execute("SELECT COALESCE(MIN(first), ?) FROM batches WHERE stream = ?", (through + 1, stream.number))
            before = left.fetchone()[0]
            return deleted + remove("sample_keys", "seq < ?", before) + remove("requests", "seq < ?", before - 1)

        return self._write(delete)

    def stored_bytes(self, stream: StreamRecord) -> int:
        """Bytes of the prototypes, the log with its keys, the labels and the snapshots."""
        found = [
            self._read(f"SELECT COALESCE(SUM({size}), 0) FROM {table} WHERE stream = ?", (stream.number,))
            for table, size in STORED_BYTES.items()
        ]
        return stream.prototypes.nbytes + sum(int(rows[0][0]) for rows in found)

    # Epochs and snapshots

    def epochs(self, stream: StreamRecord) -> list[Epoch]:
        rows = self._read(
            "SELECT epoch, start, parent_epoch, parent_seq, reason, time FROM epochs WHERE stream = ? ORDER BY epoch",
            (stream.number,),
        )
        return [Epoch(*row) for row in rows]

    def snapshots(self, stream: StreamRecord) -> list[Snapshot]:
        """Newest first."""
        rows = self._read(
            f"SELECT {SNAPSHOT_COLUMNS} FROM snapshots WHERE stream = ? ORDER BY number DESC", (stream.number,)
        )
        names = [name.strip() for name in SNAPSHOT_COLUMNS.split(",")]
        decoded = ({**dict(zip(names, row, strict=True)), **_parsed(row[6], row[7])} for row in rows)
        return [Snapshot(**values) for values in decoded]

    def add_snapshot(
        self,
        stream: StreamRecord,
        content: bytes,
        monitor: Mapping[str, Any],
        environment: Mapping[str, Any],
        *,
        new_epoch: Epoch | None = None,
        alarm: Mapping[str, Any] | None = None,
    ) -> StreamRecord:
        """Store the state of a stream as it is now. With `new_epoch`, begin that epoch with it."""
        described, now = json.dumps(monitor), time.time()
        file = self._write_content(content)
        epoch = stream.epoch if new_epoch is None else new_epoch.epoch

        def add(execute: Callable[..., Any]) -> None:
            if new_epoch is not None:
                one = new_epoch
                execute(
                    "INSERT INTO epochs (stream, epoch, start, parent_epoch, parent_seq, reason, time) "
                    "VALUES (?, ?, ?, ?, ?, ?, ?)",
                    (stream.number, one.epoch, one.start, one.parent_epoch, one.parent_seq, one.reason, one.time),
                )
            changed = execute(
                "UPDATE streams SET epoch = ?, alarm = ? WHERE number = ? AND seq = ? AND epoch = ? AND owner = ?",
                (
                    epoch, None if alarm is None else json.dumps(alarm),
                    stream.number, stream.seq, stream.epoch, stream.owner,
                ),
            )  # fmt: skip
            if changed.rowcount != 1:
                raise StoreError("another process changed the stream meanwhile")
            made = execute(
                "INSERT INTO snapshots (stream, epoch, seq, time, size, checksum, environment, monitor, file) "
                "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) RETURNING number",
                (
                    stream.number, epoch, stream.seq, now, len(content),
                    content_checksum(content, described, epoch, stream.seq), json.dumps(environment), described, file,
                ),
            ).fetchone()  # fmt: skip
            self._insert_content(execute, made[0], content)

        try:
            self._write(add)
        except BaseException:
            self._delete_contents([file])
            raise
        return replace(stream, epoch=epoch, alarm=alarm)

    def read_snapshot(self, snapshot: Snapshot) -> bytes:
        """The content of a snapshot. DamagedError if it is missing or changed."""
        content = self._read_content(snapshot)
        described = json.dumps(snapshot.monitor)
        if content_checksum(content, described, snapshot.epoch, snapshot.seq) != snapshot.checksum:
            raise DamagedError(f"snapshot {snapshot.number} does not have its checksum")
        return content

    def keep_snapshot(self, stream: StreamRecord, number: int) -> None:
        """Note that the operator wants a snapshot: those that nobody asked for do not replace it."""
        self._do(
            "INSERT INTO kept_snapshots (stream, number) VALUES (?, ?) ON CONFLICT DO NOTHING", (stream.number, number)
        )

    def kept_snapshots(self, stream: StreamRecord) -> set[int]:
        return {row[0] for row in self._read("SELECT number FROM kept_snapshots WHERE stream = ?", (stream.number,))}

    def delete_snapshots(self, stream: StreamRecord, snapshots: Sequence[Snapshot]) -> None:
        for snapshot in snapshots:
            for table in ("kept_snapshots", "snapshots"):
                self._do(f"DELETE FROM {table} WHERE stream = ? AND number = ?", (stream.number, snapshot.number))
        self._delete_contents([snapshot.file for snapshot in snapshots])

    @abstractmethod
    def _write_content(self, content: bytes) -> str:
        """Write the content of a snapshot to a file and return its name; empty if it is kept in the database."""

    def _insert_content(self, execute: Callable[..., Any], number: int, content: bytes) -> None:  # noqa: B027
        """Keep the content of a snapshot in the database."""

    @abstractmethod
    def _read_content(self, snapshot: Snapshot) -> bytes: ...

    @abstractmethod
    def _delete_contents(self, files: Sequence[str]) -> None: ...

    # Thumbnails and labels

    def thumbnail(self, stream: StreamRecord, seq: int) -> bytes | None:
        rows = self._read("SELECT content FROM thumbnails WHERE stream = ? AND seq = ?", (stream.number, seq))
        return bytes(rows[0][0]) if rows else None

    def thumbnails(self, stream: StreamRecord) -> list[tuple[int, int]]:
        """Sample number and bytes of each, newest first."""
        return [(seq, size) for seq, size in self._read(f"{THUMBNAIL_SIZES} ORDER BY seq DESC", (stream.number,))]

    def add_labels(self, stream: StreamRecord, labels: Sequence[tuple[int, int]]) -> int | None:
        """Keep confirmed labels (sample, class) with the features of the samples, which the log may lose.

        If the log does not have all the samples, nothing is stored, and the place of one that is missing is returned.
        """
        found, batch = [], None
        for place in sorted(range(len(labels)), key=lambda place: labels[place][0]):
            seq, label = labels[place]
            if batch is None or seq > batch.last:
                batch = self.find_batch(stream, seq)
            if batch is None:
                return place
            row = seq - batch.first
            answers, features = batch.answers, batch.features[row].astype("<f4").tobytes()
            found.append((seq, label, int(answers.classes[row, 0]), int(answers.zero_shot[row]), features))

        def add(execute: Callable[..., Any]) -> None:
            for values in found:
                execute(
                    "INSERT INTO labels (stream, seq, label, predicted, zero_shot, features, time, checksum) "
                    "VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (stream, seq) "
                    "DO UPDATE SET label = excluded.label, time = excluded.time, checksum = excluded.checksum",
                    (stream.number, *values, time.time(), row_checksum(values)),
                )

        self._write(add)
        return None

    def count_labels(self, stream: StreamRecord) -> int:
        return int(self._read("SELECT COUNT(*) FROM labels WHERE stream = ?", (stream.number,))[0][0])

    def labels(self, stream: StreamRecord) -> list[tuple[int, int, int, int, np.ndarray]]:
        """Sample number, label, predicted class, zero-shot's class and features (d,) of every confirmed label."""
        rows = self._read(
            "SELECT seq, label, predicted, zero_shot, features, checksum FROM labels WHERE stream = ? ORDER BY seq",
            (stream.number,),
        )
        for *row, features, checksum in rows:
            if row_checksum((*row, bytes(features))) != checksum:
                raise DamagedError(f"the confirmed label of sample {row[0]} does not have its checksum")
        return [(*row[:4], np.frombuffer(bytes(row[4]), "<f4")) for row in rows]

    # Access keys

    @abstractmethod
    def access_keys(self) -> list[dict[str, Any]]: ...

    @abstractmethod
    def change_access_keys(self, change: Callable[[list[dict[str, Any]]], list[dict[str, Any]]]) -> None:
        """Replace the access keys by what `change` makes of them, also while a service runs."""

    # Checks

    def check(self) -> Iterator[str]:
        """What is wrong with the store: one sentence per problem."""
        yield from self._check_database()
        streams, damaged = self.streams()
        yield from (f"stream {name}: {problem}" for name, problem in damaged.items())
        for stream in streams:
            for problem in self._check_stream(stream):
                yield f"stream {stream.id}: {problem}"

    def _check_database(self) -> Iterator[str]:
        return iter(())

    def _check_stream(self, stream: StreamRecord) -> Iterator[str]:
        dimension, expected, start = stream.prototypes.shape[1], None, 0
        after = 0
        while rows := self._batch_rows(stream, after):
            for row in rows:
                first, after = row[0], row[0] + max(0, row[1] - 1)
                start = start or first
                if expected is not None and first != expected:
                    yield f"the log has no samples {expected} to {first - 1}"
                try:
                    yield from self._check_keys(stream, Batch.from_row(row, dimension))
                except (DamagedError, ValueError) as error:
                    yield str(error)
                expected = first + row[1]
        if (expected or stream.seq + 1) != stream.seq + 1:
            yield f"the log ends at sample {(expected or 1) - 1}, but {stream.seq} were answered"
        epochs = self.epochs(stream)
        if not epochs or epochs[-1].epoch != stream.epoch:
            yield f"it is in epoch {stream.epoch}, which is not recorded"
        start, readable = start or stream.seq + 1, False
        for snapshot in self.snapshots(stream):
            try:
                self.read_snapshot(snapshot)
                readable |= snapshot.epoch == stream.epoch and snapshot.seq >= start - 1
            except DamagedError as error:
                yield str(error)
            if snapshot.seq > stream.seq:
                yield f"snapshot {snapshot.number} is of sample {snapshot.seq}, but {stream.seq} were answered"
        if start > 1 and not readable:
            yield f"no snapshot is left from which the state can be computed: the log begins at sample {start}"
        try:
            self.labels(stream)
        except DamagedError as error:
            yield str(error)
        lost = self._read("SELECT COUNT(*) FROM sample_keys WHERE stream = ? AND seq > ?", (stream.number, stream.seq))[
            0
        ][0]
        if lost:
            yield f"{lost} keys belong to samples that are not in the log"

    def _check_keys(self, stream: StreamRecord, batch: Batch) -> Iterator[str]:
        """Whether the keys of samples can still be found: without that they would be learned again."""
        expected = {key: batch.first + row for row, key in enumerate(batch.keys) if key is not None}
        found = {name: seq for name, (_, seq) in self.find_keys(stream, list(expected)).items()}
        wrong = sorted(seq for key, seq in expected.items() if found.get(key) != seq)
        if wrong:
            yield f"{len(wrong)} keys are missing or wrong, the first of sample {wrong[0]}"


def _check_schema(found: Sequence[tuple[Any, ...]]) -> None:
    """ValueError if the value of `schema` in the table meta is that of another version."""
    value = found[0][0] if found else None
    if value == "1":
        raise ValueError(
            f"the store has schema 1, of a development version before the first release; this one uses {SCHEMA}. "
            "Fix: use that development version, or another store."
        )
    if value != str(SCHEMA):
        raise ValueError(
            f"the store has schema {value}, this version of zeroshift uses {SCHEMA}. "
            "Fix: use the version that made it, or another store."
        )


def content_checksum(content: bytes, monitor: str, epoch: int, seq: int) -> str:
    return row_checksum((hashlib.sha256(content).hexdigest(), monitor, epoch, seq))


def _stream_record(row: tuple[Any, ...]) -> StreamRecord:
    number, name, config, prototypes, dimension, created, checksum, seq, epoch, alarm, owner = row
    if row_checksum((name, config, bytes(prototypes), dimension, created)) != checksum:
        raise DamagedError("its settings or prototypes do not have their checksum")
    return StreamRecord(
        number=number,
        id=name,
        config=json.loads(config),
        prototypes=np.frombuffer(bytes(prototypes), "<f4").reshape(-1, dimension),
        created=created,
        seq=seq,
        epoch=epoch,
        alarm=None if alarm is None else json.loads(alarm),
        owner=owner,
    )


def _parsed(environment: str, monitor: str) -> dict[str, Any]:
    try:
        return {"environment": json.loads(environment), "monitor": json.loads(monitor)}
    except ValueError:  # it does not have its checksum either: see `read_snapshot`
        return {"environment": {}, "monitor": {}}


def _brief(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__


class Committer:
    """A thread that appends to the store. What arrives while a transaction runs goes into the next one together."""

    LARGEST = 256
    """Appends per transaction."""

    def __init__(self, store: SqlStore) -> None:
        self._store = store
        self._queue: queue.SimpleQueue[tuple[Append, Future[None]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="zeroshift-commit", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def submit(self, append: Append) -> Future[None]:
        """A future that is done when `append` is committed, or has the StoreError."""
        done: Future[None] = Future()
        self._queue.put((append, done))
        return done

    def close(self) -> None:
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (first := self._queue.get()) is not None:
            group, ended = [first], False
            with suppress(queue.Empty):
                while len(group) < self.LARGEST:
                    more = self._queue.get_nowait()
                    if more is None:
                        ended = True
                        break
                    group.append(more)
            self._commit(group)
            if ended:
                return

    def _commit(self, group: list[tuple[Append, Future[None]]]) -> None:
        try:
            self._store.append([append for append, _ in group])
        except Exception as error:
            if len(group) > 1:  # one of them may be the reason
                for one in group:
                    self._commit([one])
            else:
                known = error if isinstance(error, StoreError) else StoreError(f"the store failed ({_brief(error)})")
                group[0][1].set_exception(known)
            return
        for _, done in group:
            done.set_result(None)
