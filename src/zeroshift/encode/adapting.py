"""`adapt_images`: from pictures to answers, one after the other, through an encoder and a method made for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from zeroshift.arrays import Array
from zeroshift.data.decoding import decode
from zeroshift.encode.encoder import Encoder, stacked
from zeroshift.encode.extraction.store import digest_of
from zeroshift.encode.pictures import as_picture
from zeroshift.encode.preprocessing import Pixels
from zeroshift.encode.views import Views
from zeroshift.method import Method
from zeroshift.parameters import Number
from zeroshift.view_method import ViewMethod

if TYPE_CHECKING:
    from PIL.Image import Image

    Picture: TypeAlias = Image | np.ndarray | str | Path
    Generate: TypeAlias = Callable[[Image], Sequence[Image]]

__all__ = ["adapt_images"]


def adapt_images(
    method: Method,
    encoder: Encoder,
    images: Iterable[Picture],
    *,
    views: Views | None = None,
    generate: Generate | None = None,
    batch_size: int | None = None,
) -> Iterator[Array]:
    """The probabilities (K,) of one picture after the other, learned from as the method does: a generator.

    Nothing happens until it is asked for an answer, and no picture is opened before its turn. A transductive method
    needs all of them before the first answer; only their features are kept.

    Parameters
    ----------
    method : made for `encoder`, as by `make_method`.
    images : paths, pillow images, (H, W, 3) arrays of bytes; any iterable.
    views : how views are made, for methods that learn from several. None makes 64 for a method that needs them and one
        for others. A picture's views depend on its content and the seed alone: they are those of `extract`.
    generate : makes more views of a picture, as DiffTPT wants them: from an RGB pillow image, a list of images. They
        come behind the others, preprocessed as pictures are, without random crops.
    batch_size : pictures encoded together, which is faster, and learned from in one call; None is the method's own
        batch size, for most methods 1. A transductive method is given all in one call, and they are encoded so.
    """
    plan = _Plan(method, encoder, views, generate)
    if isinstance(images, (str, bytes, Path, Mapping)) or not isinstance(images, Iterable):
        raise TypeError(f"images must be several, in a list; got one {type(images).__name__}. Fix: [image].")
    together = method.protocol == "transductive"
    if batch_size is None:
        batch_size = encoder.batch_size if together else getattr(method, "batch_size", None) or 1
    size = int(Number(1, integer=True).check("batch_size", batch_size))
    return plan.answers_together(images, size) if together else plan.answers(images, size)


class _Plan:
    """What is made of a picture, and which call of the method it is given to; refused where they do not fit."""

    def __init__(self, method: Method, encoder: Encoder, views: Views | None, generate: Generate | None) -> None:
        _check_fit(method, encoder)
        several = isinstance(method, ViewMethod)
        for name, value in (("views", views), ("generate", generate)):
            if value is not None and not several:
                raise ValueError(f"{name} cannot be given to {method.name}, which takes one view. Fix: leave it out.")
        if views is not None and not isinstance(views, Views):
            raise TypeError(f"views must be Views; got {type(views).__name__}. Fix: zeroshift.encode.Views(64).")
        if generate is not None and not callable(generate):
            raise TypeError(
                f"generate must be a function from an image to images; got {type(generate).__name__}. "
                "Fix: generate=lambda image: [...]."
            )
        self.method, self.encoder, self.generate = method, encoder, generate
        self.views = Views() if views is None and "views" in method.needs else views
        sides = (getattr(method, name, None) for name in ("vision", *method.model_parameters))
        self.raw = getattr(method, "takes_images", False) and any(side is not None for side in sides)

    def answers(self, images: Iterable[Picture], size: int) -> Iterator[Array]:
        left = iter(images)
        while batch := list(islice(left, size)):
            yield from self._told(self._seen(batch))

    def answers_together(self, images: Iterable[Picture], size: int) -> Iterator[Array]:
        left = iter(images)
        parts = []
        while batch := list(islice(left, size)):
            parts.append(self._seen(batch))
        if parts:
            _check_as_many(part[0] for part in parts)
            yield from self._told(np.concatenate(parts))

    def _told(self, seen: np.ndarray) -> Array:
        if self.views is not None or self.generate is not None:
            assert isinstance(self.method, ViewMethod)  # as was checked
            return self.method.adapt_views(seen)
        return self.method.adapt(seen)

    def _seen(self, batch: Sequence[Picture]) -> np.ndarray:
        """Features (B, d), or of views (B, V, d), or pixels of either for a method with an image side of its own."""
        if self.views is None and self.generate is None:
            pixels = stacked([self.encoder.preprocessing(_opened(image)[0]) for image in batch])
            return self._single(pixels) if self.raw else self.encoder.encode_pixels(pixels)
        # One picture's views at a time: those of a batch together would be gigabytes.
        made = (self._views(image) for image in batch)
        seen = [self._single(pixels) if self.raw else self.encoder.encode_pixels(pixels) for pixels in made]
        _check_as_many(seen)
        return np.stack(seen)

    def _views(self, image: Picture) -> Pixels:
        picture, key = _opened(image)
        preprocessing = self.encoder.preprocessing
        crops = (self.views or Views(1))(picture, preprocessing, key)
        if self.generate is None:
            return crops
        made = self.generate(picture)
        if isinstance(made, (str, bytes)) or not isinstance(made, Iterable):
            raise TypeError(
                f"generate must answer with a list of images; got {type(made).__name__}. Fix: [image], or [] for none."
            )
        others = [preprocessing(_opened(one)[0]) for one in made]
        if not others:
            return crops
        # With AugMix, crops are no bytes but numbers between 0 and 255, which bytes are, too.
        return tuple(
            np.concatenate([crop, other.astype(crop.dtype)]) for crop, other in zip(crops, stacked(others), strict=True)
        )

    def _single(self, pixels: Pixels) -> np.ndarray:
        if len(pixels) != 1:
            raise ValueError(
                f"{self.method.name} takes images as one array, and the family {self.encoder.family!r} makes "
                f"{len(pixels)} of each. Fix: an encoder whose images have one size."
            )
        return pixels[0]


def _opened(image: Picture) -> tuple[Image, bytes]:
    """The picture in RGB, and a digest of what it is: of a file's bytes, as for `extract`, or else of its pixels."""
    if isinstance(image, (str, Path)) and Path(image).is_file():
        content = Path(image).read_bytes()
        return decode(content, str(image)).image, digest_of(content)
    picture = as_picture(image)
    content = image.tobytes() if isinstance(image, np.ndarray) else picture.tobytes()
    return picture, digest_of(content)


def _check_fit(method: Method, encoder: Encoder) -> None:
    if not isinstance(method, Method):
        raise TypeError(
            f"method must be a method of zeroshift.methods; got {type(method).__name__}. Fix: make_method(name, ...)."
        )
    if not isinstance(encoder, Encoder):
        raise TypeError(
            f"encoder must be a loaded encoder; got {type(encoder).__name__}. Fix: zeroshift.encode.load_encoder(...)."
        )
    if method.dimension != encoder.dimension:
        raise ValueError(
            f"method has prototypes of d = {method.dimension}, the encoder gives d = {encoder.dimension}. "
            "Fix: make_method(name, encoder, class_names)."
        )
    for name in method.model_parameters:
        side = getattr(method, name)
        whose = None if side is None else side.identity.get("encoder")
        if whose is not None and whose != encoder.key():
            raise ValueError(
                f"{name} of {method.name} was made of another encoder ({whose}) than the one given ({encoder.key()}). "
                "Fix: make_method(name, encoder, class_names)."
            )


def _check_as_many(several: Iterable[np.ndarray]) -> None:
    counts = sorted({len(one) for one in several})
    if len(counts) > 1:
        raise ValueError(
            f"pictures that are learned from together need as many views each; generate made from {counts[0]} to "
            f"{counts[-1]} in all. Fix: batch_size=1, or as many of every picture."
        )
