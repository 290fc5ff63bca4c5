"""What was in a file when it last looked like this: so that a second run need not read a whole data set to know it."""

from __future__ import annotations

import os
import sqlite3
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from threading import BoundedSemaphore
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from zeroshift.data.images import FileStat, ImageError, ImageSource
from zeroshift.encode.encoder import Encoder
from zeroshift.encode.extraction.store import FeatureStore, digest_of
from zeroshift.encode.preprocessing import Pixels, Preprocessing

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["Contents", "Decoder", "Outcome", "Picture", "ShardEncoding", "default_workers", "encode_shards"]

SETTLED_NS = 2_000_000_000
"""A file changed less than two seconds before it was looked at may change again without its time showing it."""


class Contents:
    """Digests of files by path and `FileStat`. Only ever a shortcut: where it fails, files are read."""

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

    def find(self, path: Path, stat: FileStat) -> bytes | None:
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

    def keep(self, entries: Iterable[tuple[Path, FileStat, bytes]], looked: int) -> None:
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


def _columns(stat: FileStat) -> tuple[int, int, int, bytes]:
    # Numbers of files can be larger than SQLite's integers.
    return stat.size, stat.modified, stat.changed, str(stat.inode).encode()


# Everything that happens to an image before the encoder sees it; done by other processes, beside the encoder.


FEW = 48
"""As many images are decoded sooner than worker processes are started."""


@dataclass(frozen=True)
class Picture:
    """One image on its way to the encoder, or what kept it from getting there."""

    index: int
    digest: bytes | None = None
    pixels: Pixels | None = None
    """(V, ...) for each array the model takes."""
    note: str | None = None
    error: ImageError | None = None


@dataclass(frozen=True)
class Decoder:
    """From the place of an image to a `Picture`; picklable."""

    images: ImageSource
    preprocessing: Preprocessing
    corruption: Callable[..., Any] | None = None
    views: Callable[..., Pixels] | None = None

    def __call__(self, index: int) -> Picture:
        digest = None
        try:
            content = self.images.read(index)
            digest = digest_of(content)
            image, note = self.images.decode_bytes(content, index)
        except ImageError as error:
            return Picture(index, digest=digest, error=error)
        try:
            return Picture(index, digest, self._pixels(image, digest), note)
        except ValueError as error:  # a picture too small for a corruption, or too long and thin to be scaled
            what = str(error).split(" Fix:")[0].rstrip(".")
            return Picture(index, digest, error=ImageError(self.images.name(index), what, "leave it out"))

    def _pixels(self, image: Image, digest: bytes) -> Pixels:
        # What is random about an image is drawn from its content: not from its place, nor from who decodes it when.
        if self.corruption is not None:
            image = self.corruption(image, digest)
        if self.views is not None:
            return self.views(image, self.preprocessing, digest)
        return tuple(array[None] for array in self.preprocessing(image))


def default_workers(count: int) -> int:
    """None for a few images; else the cores beside the encoder's own, sixteen at most."""
    return 0 if count <= FEW else max(1, min(16, _cores() - 1))


def _cores() -> int:
    """Those this process may run on, which can be fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 2


# Batches encoded in a thread of their own, so that the next is gathered while the device works on the last.


AHEAD = 3
"""Batches that may wait for the device; bounds the memory."""


class ShardEncoding:
    """Pictures go in one by one; a shard's features are on the disk some time after it was ended.

    Batches are of one size and never reach over the end of a shard: which pictures are encoded together depends on the
    shard alone, and so do the last bits of their features.
    """

    def __init__(self, encoder: Encoder, store: FeatureStore, storage: np.dtype) -> None:
        self.encoder, self.store, self.storage = encoder, store, storage
        self.batch_size = encoder.batch_size
        self.shard: list[bytes] = []
        self.waiting: list[Pixels] = []
        self.n_waiting = 0
        self.n_views = 1
        self.encoded: list[np.ndarray] = []
        self.jobs: deque[Future[None]] = deque()
        self.given_up = False
        self.room = BoundedSemaphore(AHEAD)
        self.thread = ThreadPoolExecutor(1, thread_name_prefix="encode")

    def __enter__(self) -> ShardEncoding:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # After an error what waits is given up; what the device has begun is let finish.
        self.given_up |= kind is not None
        self.thread.shutdown(wait=True, cancel_futures=kind is not None)
        if kind is None:
            self._raise_failures()

    def add(self, digest: bytes, pixels: Pixels) -> None:
        """One picture: (V, ...) for each array the model takes."""
        self.shard.append(digest)
        self.n_views = len(pixels[0])
        self.waiting.append(pixels)
        self.n_waiting += self.n_views
        if self.n_waiting >= self.batch_size:
            self._submit_batches(self.n_waiting - self.n_waiting % self.batch_size)

    def end_shard(self) -> None:
        """What was added since the last call becomes one part of the store."""
        if self.n_waiting:
            self._submit_batches(self.n_waiting)
        if self.shard:
            digests, n_views = self.shard, self.n_views
            self.shard = []
            self._submit(lambda: self._keep(digests, n_views))

    def _submit_batches(self, count: int) -> None:
        rows: Pixels = tuple(np.concatenate(arrays) for arrays in zip(*self.waiting, strict=True))
        rest = self.n_waiting - count
        self.waiting = [tuple(array[count:] for array in rows)] if rest else []
        self.n_waiting = rest
        for start in range(0, count, self.batch_size):
            batch = tuple(array[start : min(start + self.batch_size, count)] for array in rows)
            self._submit(lambda batch=batch: self.encoded.append(self.encoder.encode_pixels(batch)))  # type: ignore[misc]

    def _keep(self, digests: list[bytes], n_views: int) -> None:
        rows = np.concatenate(self.encoded).reshape(len(digests), n_views, -1)
        self.encoded = []
        self.store.add(digests, rows.astype(self.storage))

    def _submit(self, job: Callable[[], None]) -> None:
        self._raise_failures()
        self.room.acquire()

        def run() -> None:
            try:
                # Behind a batch that failed a shard must not be kept: it would lack rows.
                if not self.given_up:
                    job()
            except BaseException:
                self.given_up = True
                raise
            finally:
                self.room.release()

        self.jobs.append(self.thread.submit(run))

    def _raise_failures(self) -> None:
        # In order, and only up to the first that is not done: asked twice, a job might end in between.
        while self.jobs and self.jobs[0].done():
            self.jobs.popleft().result()


# The image side of an extraction: decoded beside the encoder, shard by shard, each put on the disk when it is done.
#
# Shards are cut from the whole list of images, not from what is left to do: a run that was stopped and goes on makes
# the
# same batches as one that was not, and so the same bits.


class Outcome(NamedTuple):
    """What became of the images."""

    indices: list[int]
    """Those that have features."""
    rows: np.ndarray
    """(n, V, d), of those."""
    skipped: tuple[ImageError, ...]
    notes: tuple[tuple[str, str], ...]
    computed: int
    """Different pictures the encoder had to look at."""


@dataclass
class _Plan:
    """What is known of the images before any is opened."""

    digests: dict[int, bytes] = field(default_factory=dict)
    """Of images that have features already."""
    stats: dict[int, tuple[Path, FileStat]] = field(default_factory=dict)
    """Of the others that have a file."""
    to_read: list[int] = field(default_factory=list)
    looked: int = field(default_factory=time.time_ns)
    """When `stats` began to be taken."""


def encode_shards(
    images: ImageSource,
    encoder: Encoder,
    decode: Callable[[Sequence[int]], Iterator[Picture]],
    store: FeatureStore,
    contents: Contents,
    *,
    shard_images: int,
    storage: np.dtype,
    stop: bool,
    progress: Callable[[int], None],
) -> Outcome:
    """Features of every image, into the store where they are not in it already; see `extract`."""
    plan = _planned(images, store, contents)
    progress(len(plan.digests))
    digests, skipped, notes = dict(plan.digests), list[ImageError](), list[tuple[str, str]]()
    submitted: set[bytes] = set()
    with ShardEncoding(encoder, store, storage) as encoding:
        read: list[int] = []
        for picture in decode(plan.to_read):
            if read and picture.index // shard_images != read[-1] // shard_images:
                encoding.end_shard()
                contents.keep(_entries(read, plan, digests), plan.looked)
                read = []
            read.append(picture.index)
            progress(1)
            if picture.error is not None:
                if stop:
                    raise picture.error
                skipped.append(picture.error)
                continue
            assert picture.digest is not None
            assert picture.pixels is not None
            digests[picture.index] = picture.digest
            if picture.note is not None:
                notes.append((images.name(picture.index), picture.note))
            # The same picture can be there twice, or be known under a name it no longer has.
            if picture.digest not in submitted and picture.digest not in store:
                submitted.add(picture.digest)
                encoding.add(picture.digest, picture.pixels)
        encoding.end_shard()
    contents.keep(_entries(read, plan, digests), plan.looked)
    indices = sorted(digests)
    if not indices:
        raise ValueError(f"none of the {len(images)} images can be used. The first: {skipped[0]}")
    return Outcome(indices, store.rows([digests[i] for i in indices]), tuple(skipped), tuple(notes), len(submitted))


def _planned(images: ImageSource, store: FeatureStore, contents: Contents) -> _Plan:
    plan = _Plan()
    for i in range(len(images)):
        path = images.path(i)
        try:
            stat = None if path is None else images.stat(i)
        except ImageError:
            stat = None  # reading it will say so again, and be answered as was asked for
        if path is not None and stat is not None:
            plan.stats[i] = (path.absolute(), stat)
            digest = contents.find(*plan.stats[i])
            if digest is not None and digest in store:
                plan.digests[i] = digest
                continue
        plan.to_read.append(i)
    return plan


def _entries(read: list[int], plan: _Plan, digests: dict[int, bytes]) -> Iterator[tuple[Path, FileStat, bytes]]:
    """What `Contents` is to remember. The state is that before reading: a file that changed meanwhile is read again."""
    for i in read:
        if i in plan.stats and i in digests:
            yield (*plan.stats[i], digests[i])
