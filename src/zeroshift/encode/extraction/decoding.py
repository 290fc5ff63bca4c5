"""Everything that happens to an image before the encoder sees it; done by other processes, beside the encoder."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from zeroshift.data.images import ImageError, ImageSource
from zeroshift.encode.extraction.store import digest_of
from zeroshift.encode.preprocessing import Pixels, Preprocessing

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
        # What is random about an image is drawn from its content: not from its place, nor from who decodes it when.
        if self.corruption is not None:
            try:
                image = self.corruption(image, digest)
            except ValueError as error:  # most of all, a picture too small for it
                what = f"cannot be corrupted ({error})"
                return Picture(index, digest, error=ImageError(self.images.name(index), what, "leave it out"))
        if self.views is not None:
            pixels = self.views(image, self.preprocessing, digest)
        else:
            pixels = tuple(array[None] for array in self.preprocessing(image))
        return Picture(index, digest, pixels, note)


def default_workers(count: int) -> int:
    """None for a few images; else the cores beside the encoder's own, sixteen at most."""
    return 0 if count <= FEW else max(1, min(16, (os.cpu_count() or 2) - 1))
