"""Images become features: decoded in threads, encoded together with images of other requests."""

from __future__ import annotations

import asyncio
import hashlib
import io
import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np

from zeroshift.data.images import FORMATS, ImageError, decode, pillow
from zeroshift.serve.errors import Problem
from zeroshift.serve.stream import Item

if TYPE_CHECKING:
    from zeroshift.encode import Encoder

__all__ = ["EncoderPool"]

log = logging.getLogger("zeroshift.serve")

THUMBNAIL = 96
"""Longest side of a thumbnail."""


class EncoderPool:
    """An encoder that takes up to `max_batch` images at a time, and waits `max_wait` seconds for more."""

    def __init__(self, encoder: Encoder, *, max_batch: int, max_wait: float, max_pixels: int, max_queued: int) -> None:
        self.encoder = encoder
        self._max_batch, self._max_wait, self._max_pixels = max_batch, max_wait, max_pixels
        self._queue: asyncio.Queue[tuple[Any, asyncio.Future[np.ndarray]]] = asyncio.Queue()
        self._max_queued = max_queued
        self._decoding = ThreadPoolExecutor(2, "zeroshift-decode")
        self._encoding = ThreadPoolExecutor(1, "zeroshift-encode")
        self._task: asyncio.Task[None] | None = None
        self.batches = 0
        self.images = 0
        self.queued = 0
        """Images that wait to be decoded or encoded."""

    @property
    def alive(self) -> bool:
        return self._task is not None and not self._task.done()

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run(), name="encoder")

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._decoding.shutdown(wait=False)
        self._encoding.shutdown(wait=False)

    def check_room(self, count: int) -> None:
        if self.queued + count > self._max_queued:
            raise Problem(
                429, "encoder_busy", f"{self.queued} images are waiting to be encoded. Fix: retry later.", retry_after=1
            )

    async def encode(
        self, images: Sequence[bytes | Problem], keys: Sequence[str | None], *, thumbnails: bool
    ) -> list[Item]:
        """One item per image; an image that cannot be read is an error of its own."""
        self.queued += len(images)
        try:
            pairs = zip(images, keys, strict=True)
            return list(await asyncio.gather(*(self._encode(image, key, thumbnails) for image, key in pairs)))
        finally:
            self.queued -= len(images)

    async def _encode(self, image: bytes | Problem, key: str | None, thumbnails: bool) -> Item:
        if isinstance(image, Problem):
            return Item(None, "", key, {"code": image.code, "message": image.message})
        digest = hashlib.sha256(image).hexdigest()
        loop = asyncio.get_running_loop()
        try:
            pixels, thumbnail = await loop.run_in_executor(self._decoding, self._decode, image, thumbnails)
        except ImageError as error:
            return Item(None, digest, key, {"code": "invalid_image", "message": str(error)})
        except Exception:
            log.exception("an image could not be prepared")
            message = "It could not be prepared. Fix: the log of the service says why."
            return Item(None, digest, key, {"code": "invalid_image", "message": message})
        done: asyncio.Future[np.ndarray] = loop.create_future()
        self._queue.put_nowait((pixels, done))
        try:
            return Item(await done, digest, key, thumbnail=thumbnail)
        except (RuntimeError, ValueError, MemoryError) as error:
            return Item(None, digest, key, {"code": "encoding_failed", "message": str(error)[:200]})

    def _decode(self, content: bytes, thumbnails: bool) -> tuple[Any, bytes | None]:
        """The preprocessed pixels of an image and, if asked for, a small JPEG of it."""
        self._check_size(content)
        image = decode(content, "the image").image
        thumbnail = None
        if thumbnails:
            small = image.copy()
            small.thumbnail((THUMBNAIL, THUMBNAIL))
            written = io.BytesIO()
            small.save(written, "JPEG", quality=80)
            thumbnail = written.getvalue()
        return self.encoder.preprocessing(image), thumbnail

    def _check_size(self, content: bytes) -> None:
        """Refuse an image whose header declares too many pixels, before they are decoded."""
        Image = pillow()
        try:
            with Image.open(io.BytesIO(content), formats=FORMATS) as opened:
                width, height = opened.size
        except Image.DecompressionBombError as error:
            raise ImageError("the image", "is too large to be opened safely", "shrink it first") from error
        except Exception:  # `decode` says what is wrong with it
            return
        if width * height > self._max_pixels:
            raise ImageError(
                "the image", f"has {width} x {height} pixels, and {self._max_pixels:,} are allowed", "shrink it first"
            )

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            batch = [await self._queue.get()]
            deadline = loop.time() + self._max_wait
            while len(batch) < self._max_batch:
                try:
                    left = deadline - loop.time()
                    more = self._queue.get_nowait() if left <= 0 else await asyncio.wait_for(self._queue.get(), left)
                    batch.append(more)
                except (TimeoutError, asyncio.QueueEmpty):
                    break
            try:
                features = await loop.run_in_executor(self._encoding, self._encode_batch, [one[0] for one in batch])
            except Exception as error:
                for _, done in batch:
                    if not done.done():
                        done.set_exception(error)
                continue
            self.batches, self.images = self.batches + 1, self.images + len(batch)
            for (_, done), row in zip(batch, features, strict=True):
                if not done.done():
                    done.set_result(row)

    def _encode_batch(self, pixels: list[Any]) -> np.ndarray:
        from zeroshift.encode.encoder import stack_pixels

        return self.encoder.encode_pixels(stack_pixels(pixels)).astype(np.float32)

    async def prototypes(self, classes: Sequence[str]) -> np.ndarray:
        """(K, d) from class names, with the prompts of `zeroshift extract`."""

        def encode() -> np.ndarray:
            from zeroshift.encode.extraction import encode_classes
            from zeroshift.encode.methods import DEFAULT_MODE
            from zeroshift.encode.prompts import Prompts

            prompts = Prompts.named(DEFAULT_MODE)
            texts = encode_classes(self.encoder, prompts.for_classes(list(classes)), templates=prompts.templates)
            return np.asarray(texts.prototypes, np.float32)

        return await asyncio.get_running_loop().run_in_executor(self._encoding, encode)
