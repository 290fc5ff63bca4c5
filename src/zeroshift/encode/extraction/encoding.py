"""Batches encoded in a thread of their own, so that the next is gathered while the device works on the last."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from threading import BoundedSemaphore

import numpy as np

from zeroshift.encode.encoder import Encoder
from zeroshift.encode.extraction.store import FeatureStore
from zeroshift.encode.preprocessing import Pixels

__all__ = ["ShardEncoding"]

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
