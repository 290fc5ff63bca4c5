"""The image half of an extraction: decoding in worker processes, encoding in shards, and digests of known files.

Shards are cut from the list of all images, not of the remaining ones: a resumed run forms the same batches as an
uninterrupted one, and therefore gives the same bits.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from threading import BoundedSemaphore
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from zeroshift.data.images import FileStat, ImageError, ImageSource
from zeroshift.encode.encoder import ImageEncoder
from zeroshift.encode.extraction.store import DIGEST_BYTES, FeatureStore, content_digest
from zeroshift.encode.preprocessing import Pixels, Preprocessing

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = [
    "Decoder",
    "EncodedImages",
    "FileDigests",
    "PreparedImage",
    "ShardEncoder",
    "default_workers",
    "encode_in_shards",
    "find_known",
]


class EncodedImages(NamedTuple):
    """Features of the images, and a report."""

    indices: list[int]
    """The images that have features."""
    rows: np.ndarray
    """Their features, (n, V, d)."""
    skipped: tuple[ImageError, ...]
    notes: tuple[tuple[str, str], ...]
    computed: int
    """Number of distinct images that were encoded."""


@dataclass
class _PendingImages:
    """Images with cached features, and images that must be read."""

    digests: dict[int, bytes] = field(default_factory=dict)
    """Digests of images with cached features."""
    stats: dict[int, tuple[Path, FileStat]] = field(default_factory=dict)
    """Path and stat of the other images that have a file."""
    to_read: list[int] = field(default_factory=list)
    stat_time: int = field(default_factory=time.time_ns)
    """Time before the first stat was read."""


def encode_in_shards(
    images: ImageSource,
    encoder: ImageEncoder,
    prepare: Callable[[Sequence[int], FeatureStore], Generator[PreparedImage, None, None]],
    store: FeatureStore,
    file_digests: FileDigests,
    *,
    shard_images: int,
    storage: np.dtype,
    stop: bool,
    progress: Callable[[int], None],
) -> EncodedImages:
    """Encode all images whose features are not in the store, and return the features of all; see `extract`. `prepare`
    reads and decodes the images at some indices, in order."""
    pending = _find_pending(images, store, file_digests)
    progress(len(pending.digests))
    digests, skipped, notes = dict(pending.digests), list[ImageError](), list[tuple[str, str]]()
    submitted: set[bytes] = set()
    read: list[int] = []
    with (
        closing(prepare(pending.to_read, store)) as prepared,
        ShardEncoder(encoder, store, storage) as shard_encoder,
    ):
        for image in prepared:
            if read and image.index // shard_images != read[-1] // shard_images:
                shard_encoder.end_shard()
                file_digests.add(_digest_records(read, pending, digests), pending.stat_time)
                read = []
            read.append(image.index)
            progress(1)
            if image.error is not None:
                if stop:
                    raise image.error
                skipped.append(image.error)
                continue
            assert image.digest is not None
            digests[image.index] = image.digest
            if image.note is not None:
                notes.append((images.name(image.index), image.note))
            # The same image can occur twice, or be in the store under another name.
            if image.digest not in submitted and image.digest not in store:
                assert image.pixels is not None
                submitted.add(image.digest)
                shard_encoder.add(image.digest, image.pixels)
        shard_encoder.end_shard()
    file_digests.add(_digest_records(read, pending, digests), pending.stat_time)
    indices = sorted(digests)
    if not indices:
        of_several = f"none of the {len(images)} images can be used. The first: " if len(images) > 1 else ""
        raise ValueError(f"{of_several}{skipped[0]}")
    return EncodedImages(
        indices, store.rows([digests[i] for i in indices]), tuple(skipped), tuple(notes), len(submitted)
    )


def _find_pending(images: ImageSource, store: FeatureStore, file_digests: FileDigests) -> _PendingImages:
    pending = _PendingImages()
    for i in range(len(images)):
        path = images.path(i)
        try:
            stat = None if path is None else images.stat(i)
        except ImageError:
            stat = None  # reading it raises again, and is handled there
        if path is not None and stat is not None:
            pending.stats[i] = (path.absolute(), stat)
            digest = file_digests.find(*pending.stats[i])
            if digest is not None and digest in store:
                pending.digests[i] = digest
                continue
        pending.to_read.append(i)
    return pending


def _digest_records(
    read: list[int], pending: _PendingImages, digests: dict[int, bytes]
) -> Iterator[tuple[Path, FileStat, bytes]]:
    """Records for `FileDigests`. The stats are from before reading, so a file that changed meanwhile is read again."""
    for i in read:
        if i in pending.stats and i in digests:
            yield (*pending.stats[i], digests[i])


MAX_IMAGES_WITHOUT_WORKERS = 48
"""Up to this number, decoding in this process is faster than starting workers."""


@dataclass(frozen=True)
class PreparedImage:
    """A decoded and preprocessed image, or the error that prevented it."""

    index: int
    digest: bytes | None = None
    pixels: Pixels | None = None
    """(V, ...) for each input array of the model; None if its features are known."""
    note: str | None = None
    error: ImageError | None = None


@dataclass(frozen=True)
class Decoder:
    """Reads and preprocesses the image at an index. Picklable."""

    images: ImageSource
    preprocessing: Preprocessing
    corruption: Callable[..., Any] | None = None
    views: Callable[..., Pixels] | None = None

    def __call__(self, index: int) -> PreparedImage:
        digest = None
        try:
            content = self.images.read(index)
            digest = content_digest(content)
            image, note = self.images.decode_bytes(content, index)
        except ImageError as error:
            return PreparedImage(index, digest=digest, error=error)
        try:
            return PreparedImage(index, digest, self._pixels(image, digest), note)
        except ValueError as error:  # too small for a corruption, or too long and thin to be resized
            problem = str(error).split(" Fix:")[0].rstrip(".")
            return PreparedImage(index, digest, error=ImageError(self.images.name(index), problem, "remove it"))

    def _pixels(self, image: Image, digest: bytes) -> Pixels:
        # Random numbers depend on the content of an image, not on its index or on the process.
        if self.corruption is not None:
            image = self.corruption(image, digest)
        if self.views is not None:
            return self.views(image, self.preprocessing, digest)
        return tuple(array[None] for array in self.preprocessing(image))


def find_known(images: ImageSource, index: int, store: FeatureStore) -> PreparedImage | None:
    """The image at an index if the encoder is not needed for it: it has features under another name, or it cannot be
    decoded. Otherwise None."""
    try:
        content = images.read(index)
        digest = content_digest(content)
        if digest in store:
            return PreparedImage(index, digest)
        images.decode_bytes(content, index)
    except ImageError as error:
        return PreparedImage(index, error=error)
    return None


def default_workers(count: int) -> int:
    """0 for a few images; otherwise the available cores less one for the encoder, at most sixteen."""
    return 0 if count <= MAX_IMAGES_WITHOUT_WORKERS else max(1, min(16, _cores() - 1))


def _cores() -> int:
    """The cores this process may use, which can be fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 2


MAX_QUEUED_BATCHES = 3
"""Batches that may wait for the encoder; limits the memory."""


class ShardEncoder:
    """Encodes images in a thread, so that the next batch is prepared meanwhile, and writes each shard to the store.

    Batches never cross the end of a shard: which images are encoded together, and with it the last bits of their
    features, depends only on the shard.
    """

    def __init__(self, encoder: ImageEncoder, store: FeatureStore, storage: np.dtype) -> None:
        self.encoder, self.store, self.storage = encoder, store, storage
        self.batch_size = encoder.batch_size
        self.shard: list[bytes] = []
        self.pending: list[Pixels] = []
        self.n_pending = 0
        self.n_views = 1
        self.encoded: list[np.ndarray] = []
        self.jobs: deque[Future[None]] = deque()
        self.stopped = False
        self.slots = BoundedSemaphore(MAX_QUEUED_BATCHES)
        self.thread = ThreadPoolExecutor(1, thread_name_prefix="encode")

    def __enter__(self) -> ShardEncoder:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # After an error, queued jobs are cancelled; a running job finishes.
        self.stopped |= kind is not None
        self.thread.shutdown(wait=True, cancel_futures=kind is not None)
        if kind is None:
            self._raise_failures()

    def add(self, digest: bytes, pixels: Pixels) -> None:
        """Add one image: (V, ...) for each input array of the model."""
        self.shard.append(digest)
        self.n_views = len(pixels[0])
        self.pending.append(pixels)
        self.n_pending += self.n_views
        if self.n_pending >= self.batch_size:
            self._submit_batches(self.n_pending - self.n_pending % self.batch_size)

    def end_shard(self) -> None:
        """Write the images added since the last call as one part of the store."""
        if self.n_pending:
            self._submit_batches(self.n_pending)
        if self.shard:
            digests, n_views = self.shard, self.n_views
            self.shard = []
            self._submit(lambda: self._store(digests, n_views))

    def _submit_batches(self, count: int) -> None:
        rows: Pixels = tuple(np.concatenate(arrays) for arrays in zip(*self.pending, strict=True))
        rest = self.n_pending - count
        self.pending = [tuple(array[count:] for array in rows)] if rest else []
        self.n_pending = rest
        for start in range(0, count, self.batch_size):
            batch = tuple(array[start : min(start + self.batch_size, count)] for array in rows)
            self._submit(lambda batch=batch: self.encoded.append(self.encoder.encode_pixels(batch)))  # type: ignore[misc]

    def _store(self, digests: list[bytes], n_views: int) -> None:
        rows = np.concatenate(self.encoded).reshape(len(digests), n_views, -1)
        self.encoded = []
        self.store.add(digests, rows.astype(self.storage))

    def _submit(self, job: Callable[[], None]) -> None:
        self._raise_failures()
        self.slots.acquire()

        def run() -> None:
            try:
                # After a failed batch, its shard must not be stored: it would lack rows.
                if not self.stopped:
                    job()
            except BaseException:
                self.stopped = True
                raise
            finally:
                self.slots.release()

        self.jobs.append(self.thread.submit(run))

    def _raise_failures(self) -> None:
        # In order, up to the first job that is not done.
        while self.jobs and self.jobs[0].done():
            self.jobs.popleft().result()


SETTLING_TIME_NS = 2_000_000_000
"""A file modified less than two seconds before its stat was read may change again with the same time."""


class FileDigests:
    """Content digests by path and `FileStat`, so that unchanged files need not be read. Failures are ignored."""

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
                (_path_key(path), *_columns(stat)),
            ).fetchone()
        except sqlite3.Error:
            return None
        return None if found is None else bytes(found[0])

    def digest(self, path: Path) -> bytes:
        """The digest of a file, which is read if it is new or has changed."""
        stat_time = time.time_ns()
        stat = FileStat.of(path)
        known = self.find(path.absolute(), stat)
        if known is not None:
            return known
        digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
        with open(path, "rb") as handle:
            while block := handle.read(1 << 20):
                digest.update(block)
        self.add([(path.absolute(), stat, digest.digest())], stat_time)
        return digest.digest()

    def add(self, records: Iterable[tuple[Path, FileStat, bytes]], stat_time: int) -> None:
        """Store path, stat and digest of files; `stat_time`, in nanoseconds, is when the stats were read."""
        settled = stat_time - SETTLING_TIME_NS
        rows = [(_path_key(path), *_columns(stat), digest) for path, stat, digest in records if stat.modified < settled]
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


def _path_key(path: Path) -> bytes:
    return os.fsencode(path)  # file names need not be valid text


def _columns(stat: FileStat) -> tuple[int, int, int, bytes]:
    # Inode numbers can exceed SQLite's integers.
    return stat.size, stat.modified, stat.changed, str(stat.inode).encode()
