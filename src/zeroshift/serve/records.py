"""What the service stores: streams, batches of samples with their answers, snapshots, and the errors of a store."""

from __future__ import annotations

import hashlib
import json
import math
import struct
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

__all__ = [
    "CANARY",
    "Answers",
    "Append",
    "Batch",
    "DamagedError",
    "DeletedError",
    "Epoch",
    "OwnedElsewhereError",
    "Snapshot",
    "StoreError",
    "StreamRecord",
    "UnusableError",
    "is_canary",
    "newest_kept",
    "superfluous",
]

CANARY = "_canary"
"""The stream that health checks send a sample through; no user's stream can have this name. Where several processes use
a store, each has one of its own, with a number behind the name."""


def is_canary(name: str) -> bool:
    return name == CANARY or name.startswith(f"{CANARY}-")


class StoreError(RuntimeError):
    """The store could not do what was asked; nothing of it was stored, or it is not known whether it was."""


class OwnedElsewhereError(StoreError):
    """Another service process owns the stream."""


class DeletedError(StoreError):
    """The stream was deleted, perhaps by another process."""


class DamagedError(StoreError):
    """A row or file of the store is missing or does not have its checksum."""


class UnusableError(StoreError):
    """What is stored is intact, but cannot be used here, such as without the package of a method."""


@dataclass(frozen=True)
class StreamRecord:
    """A stream as it is stored."""

    number: int
    """Its number in the store, never used again for another stream."""
    id: str
    config: Mapping[str, Any]
    """What the stream was created with, without the prototypes."""
    prototypes: np.ndarray
    """(K, d) float32."""
    created: float
    seq: int
    """Number of the last sample in the log; the first is 1."""
    epoch: int
    alarm: Mapping[str, Any] | None = None
    owner: int = 0
    """Changes when another process takes the stream over; an append with an old value is refused."""

    def same_as(self, config: Mapping[str, Any], prototypes: np.ndarray) -> bool:
        return dict(self.config) == dict(config) and np.array_equal(self.prototypes, prototypes)


@dataclass(frozen=True)
class Answers:
    """The answers to the samples of one batch, as arrays with one row per sample."""

    classes: np.ndarray
    """(n, T) uint32: the most probable classes, best first."""
    scores: np.ndarray
    """(n, T) float32: their probabilities."""
    zero_shot: np.ndarray
    """(n,) uint32: the class zero-shot predicts."""
    zero_shot_scores: np.ndarray
    """(n,) float32."""
    entropies: np.ndarray
    """(n,) float32: entropy of the zero-shot posterior, as a share of log K."""
    distances: np.ndarray
    """(n, 2) float64: see `zeroshift.reject.class_distances`."""
    reject: np.ndarray
    """(n,) float64: from 0 (a class fits) to 1 (none does)."""

    TYPES = ("<u4", "<f4", "<u4", "<f4", "<f4", "<f8", "<f8")

    def __len__(self) -> int:
        return len(self.zero_shot)

    @classmethod
    def empty(cls, n: int, top: int) -> Answers:
        """Arrays that are still to be written."""
        shapes = ((n, top), (n, top), (n,), (n,), (n,), (n, 2), (n,))
        return cls(*(np.empty(shape, dtype) for shape, dtype in zip(shapes, cls.TYPES, strict=True)))

    def fill(self, rows: slice, probabilities: np.ndarray) -> None:
        """Write the most probable classes of some samples."""
        order = best_classes(probabilities, self.classes.shape[1])
        self.classes[rows], self.scores[rows] = order, np.take_along_axis(probabilities, order, axis=1)

    def first(self, top: int) -> Answers:
        """The answers with fewer predictions."""
        return replace(self, classes=self.classes[:, :top], scores=self.scores[:, :top])

    def _columns(self) -> tuple[np.ndarray, ...]:
        return (
            self.classes, self.scores, self.zero_shot, self.zero_shot_scores, self.entropies, self.distances,
            self.reject,
        )  # fmt: skip

    def part(self, start: int, stop: int) -> Answers:
        """The answers to some of the samples, from `start` to before `stop`."""
        return Answers(*(column[start:stop] for column in self._columns()))

    @property
    def nbytes(self) -> int:
        return 8 + sum(column.nbytes for column in self._columns())

    def to_bytes(self) -> bytes:
        head = struct.pack("<II", len(self), self.classes.shape[1])
        return head + b"".join(
            np.ascontiguousarray(a, t).tobytes() for a, t in zip(self._columns(), self.TYPES, strict=True)
        )

    @classmethod
    def from_bytes(cls, content: bytes) -> Answers:
        n, top = struct.unpack_from("<II", content)
        shapes = ((n, top), (n, top), (n,), (n,), (n,), (n, 2), (n,))
        arrays, at = [], 8
        for shape, dtype in zip(shapes, cls.TYPES, strict=True):
            count = int(np.prod(shape))
            arrays.append(np.frombuffer(content, dtype, count, at).reshape(shape))
            at += count * np.dtype(dtype).itemsize
        return cls(*arrays)


def best_classes(probabilities: np.ndarray, top: int) -> np.ndarray:
    """The `top` most probable classes (n, top), best first; of equal ones the first class.

    >>> best_classes(np.array([[0.1, 0.4, 0.1, 0.4]]), 3)
    array([[1, 3, 0]])
    """
    if probabilities.shape[1] <= 4 * top:
        return np.argsort(-probabilities, axis=1, kind="stable")[:, :top]
    chosen = np.sort(np.argpartition(-probabilities, top - 1, axis=1)[:, :top], axis=1)
    scores = np.take_along_axis(probabilities, chosen, axis=1)
    return np.take_along_axis(chosen, np.argsort(-scores, axis=1, kind="stable"), axis=1)


@dataclass(frozen=True)
class Batch:
    """Samples that were given to the method in one call, with their answers: one row of the log.

    Replaying the same calls gives the same bits; samples are therefore stored by call, not one by one.
    """

    first: int
    """Number of its first sample."""
    epoch: int
    learned: bool
    """False if the stream answered with zero-shot after a drift alarm, and learned nothing."""
    time: float
    keys: tuple[str | None, ...]
    """The key of each sample."""
    features: np.ndarray
    """(n, d) float32."""
    answers: Answers

    @property
    def count(self) -> int:
        return len(self.answers)

    @property
    def nbytes(self) -> int:
        """Of features and answers in the store."""
        return self.features.nbytes + self.answers.nbytes

    @property
    def last(self) -> int:
        return self.first + self.count - 1

    def to_row(self) -> tuple[Any, ...]:
        """first, count, epoch, learned, time, keys, features, answers, checksum."""
        row = (
            self.first, self.count, self.epoch, int(self.learned), self.time,
            json.dumps(self.keys) if any(self.keys) else "",
            np.ascontiguousarray(self.features, "<f4").tobytes(), self.answers.to_bytes(),
        )  # fmt: skip
        return (*row, row_checksum(row))

    @classmethod
    def from_row(cls, row: tuple[Any, ...], dimension: int) -> Batch:
        """DamagedError if the row does not have its checksum."""
        first, count, epoch, learned, time, keys, features, answers, checksum = row
        values = (first, count, epoch, learned, time, keys, bytes(features), bytes(answers))
        if row_checksum(values) != checksum:
            raise DamagedError(f"the log row of samples {first} to {first + count - 1} does not have its checksum")
        return cls(
            first=first,
            epoch=epoch,
            learned=bool(learned),
            time=time,
            keys=tuple(json.loads(keys)) if keys else (None,) * count,
            features=np.frombuffer(values[6], "<f4").reshape(count, dimension),
            answers=Answers.from_bytes(values[7]),
        )


def row_checksum(values: tuple[Any, ...]) -> str:
    """SHA-256 of the values of a row, shortened."""
    digest = hashlib.sha256()
    for value in values:
        content = value if isinstance(value, bytes) else repr(value).encode()
        digest.update(len(content).to_bytes(8, "little") + content)
    return digest.hexdigest()[:32]


@dataclass(frozen=True)
class Epoch:
    """A stretch of the log in which the state developed without a jump."""

    epoch: int
    start: int
    """Number of the last sample before it."""
    parent_epoch: int | None
    parent_seq: int | None
    """Its state began as that of the parent epoch after this sample; None if it began in another way."""
    reason: str
    time: float


@dataclass(frozen=True)
class Snapshot:
    number: int
    epoch: int
    seq: int
    """Number of the last sample that is counted in it."""
    time: float
    size: int
    checksum: str
    environment: Mapping[str, Any]
    """Versions and numbers of threads under which its answers were computed."""
    monitor: Mapping[str, Any] = field(repr=False)
    file: str = ""
    """Name of the file that contains the state; empty in a store that keeps it in the database."""

    def public(self, kept: Container[int]) -> dict[str, Any]:
        return {
            "id": self.number,
            "kept": self.number in kept,
            "epoch": self.epoch,
            "seq": self.seq,
            "time": self.time,
            "bytes": self.size,
            "environment": dict(self.environment),
        }


def newest_kept(count: int) -> int:
    """How many of the `count` snapshots of a stream are the newest ones: a restart uses one of them, with the log."""
    return max(2, count - count // 2)


def superfluous(snapshots: Sequence[Snapshot], kept: Container[int], count: int) -> list[Snapshot]:
    """Which of the snapshots, newest first, to delete: `count` stay of those `kept` by the operator, and of the others.

    The newest of the others stay. Of the older ones, that goes which is nearest to its neighbours, compared with its
    age (at least a minute): many snapshots of one second replace each other, not those of an hour or a day ago.
    """
    operators = [one for one in snapshots if one.number in kept]
    others = [one for one in snapshots if one.number not in kept]
    deleted = operators[count:]

    def spread(at: int) -> float:
        if at == len(others) - 1:
            return math.inf
        return (others[at - 1].time - others[at + 1].time) / max(others[0].time - others[at].time, 60.0)

    while len(others) > count:
        deleted.append(others.pop(min(range(newest_kept(count), len(others)), key=spread)))
    return deleted


@dataclass
class Append:
    """What one group of requests adds to a stream, stored in one transaction."""

    stream: StreamRecord
    """As it was before."""
    batches: list[Batch] = field(default_factory=list)
    keys: list[tuple[str, str, int]] = field(default_factory=list)
    """Key of a sample, digest of its content, number of the sample."""
    requests: list[tuple[str, str, str, int]] = field(default_factory=list)
    """Key of a request, digest of its content, its results as JSON, number of the last sample before it."""
    thumbnails: list[tuple[int, bytes]] = field(default_factory=list)
    alarm: Mapping[str, Any] | None = None

    @property
    def seq(self) -> int:
        return self.batches[-1].last if self.batches else self.stream.seq

    @property
    def nbytes(self) -> int:
        """Of the batches and the keys in the store, as `SqlStore.stored_bytes` counts them."""
        keys = sum(2 * len(name) + len(digest) for name, digest, _ in self.keys)
        requests = sum(len(text) for row in self.requests for text in row[:3])
        return sum(batch.nbytes for batch in self.batches) + keys + requests

    def after(self) -> StreamRecord:
        """The stream after it."""
        return replace(self.stream, seq=self.seq, alarm=self.alarm)

    def __bool__(self) -> bool:
        return bool(self.batches or self.requests)
