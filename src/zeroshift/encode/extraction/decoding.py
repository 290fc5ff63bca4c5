"""Everything that happens to an image before the encoder sees it; done by other processes, beside the encoder."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from zeroshift.data.images import ImageError, ImageSource
from zeroshift.encode.extraction.store import digest_of
from zeroshift.encode.preprocessing import Pixels, Preprocessing

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["Decoder", "Picture", "default_workers"]

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
            image, note = self.images.open_from(content, index)
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
