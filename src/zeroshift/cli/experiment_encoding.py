"""Encoders side by side: each loaded once, whatever number of data sets it is to see."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zeroshift.cli.encoding import EncodingOptions, tell_images
from zeroshift.cli.progress import progress_bar
from zeroshift.data.image_set import ImageSet
from zeroshift.encode.encoder import Encoder
from zeroshift.encode.extraction import Extraction, extract
from zeroshift.encode.prompts import Prompts
from zeroshift.encode.registry import DEFAULT_ENCODER

__all__ = ["Encoding", "slugs"]

STORAGE = "float16"


@dataclass(frozen=True)
class Encoding:
    names: tuple[str, ...]
    options: tuple[EncodingOptions, ...]

    @classmethod
    def of(cls, encoders: Sequence[str], **options: Any) -> Encoding:
        names = tuple(dict.fromkeys(encoders or [DEFAULT_ENCODER]))
        return cls(names, tuple(EncodingOptions(encoder=name, **options) for name in names))

    def encoders(self) -> Iterator[tuple[str, Encoder]]:
        """(slug, encoder), all loaded before the first is used: a name misspelt is not found out hours later."""
        loaded = [options.load_encoder() for options in self.options]
        yield from zip(slugs(self.names), loaded, strict=True)

    def extract(self, images: ImageSet, encoder: Encoder, prompts: Sequence[Prompts], *, quiet: bool) -> Extraction:
        options = self.options[0]
        with progress_bar(images.name, len(images), quiet=quiet, unit="images") as advance:

            def on_step(what: str, done: int, total: int) -> None:
                advance(done if what == "images" else 0, f"{images.name}{': class names' if what == 'texts' else ''}")

            extraction = extract(
                images,
                encoder,
                prompts,
                cache=options.kept_in,
                workers=options.workers,
                on_error=options.on_error,
                storage=STORAGE,
                progress=on_step,
            )
        tell_images(extraction)
        return extraction


def slugs(names: Sequence[str]) -> list[str]:
    """A word for file names for each encoder: the last part of its name, or the whole where two end alike.

    >>> slugs(["openai/clip-vit-base-patch16", "composed"]), slugs(["a/clip", "b/clip"])
    (['clip-vit-base-patch16', 'composed'], ['a-clip', 'b-clip'])
    """
    short = [_word(Path(name.rstrip("/")).name) for name in names]
    if len(set(short)) == len(short):
        return short
    whole = [_word(name) for name in names]
    return whole if len(set(whole)) == len(whole) else [f"{word}-{place}" for place, word in enumerate(whole, 1)]


def _word(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._]+", "-", name).strip("-.") or "encoder"
