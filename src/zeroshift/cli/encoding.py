"""The work that `extract` and `classify` share: options checked, the encoder loaded, images and prompts encoded."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zeroshift.cli.console import console, print_warning
from zeroshift.cli.progress import progress_bar
from zeroshift.data.image_set import ImageSet
from zeroshift.encode.encoder import Encoder
from zeroshift.encode.extraction import Extraction, default_cache, extract
from zeroshift.encode.prompts import Prompts
from zeroshift.encode.registry import DEFAULT_ENCODER, load
from zeroshift.parameters import Choice

__all__ = ["EncodingOptions", "run_extraction", "tell_images"]

SHOWN = 5
"""Images named one by one before the rest is counted."""

STRONGEST = 5
"""The severity of published numbers."""

IMAGENET_C = 224
"""Pixels a side of its images."""


@dataclass(frozen=True)
class EncodingOptions:
    """How to encode, as the command line has it."""

    encoder: str | None = None
    revision: str | None = None
    device: str = "auto"
    dtype: str = "auto"
    batch_size: int | None = None
    workers: int | None = None
    cache: Path | None = None
    no_cache: bool = False
    on_error: str = "skip"
    views: int | None = None
    augmix: bool = False
    corruption: str | None = None
    severity: int | None = None
    made_for: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.cache is not None and self.no_cache:
            raise ValueError("--cache and --no-cache contradict each other. Fix: give one.")
        if self.augmix and self.views is None:
            raise ValueError("--augmix says how views are made, and none are asked for. Fix: add --views 64.")
        for option, value in (("--severity", self.severity), ("--made-for", self.made_for)):
            if value is not None and self.corruption is None:
                raise ValueError(f"{option} is that of a corruption, and none is asked for. Fix: add --corruption fog.")
        if self.revision is not None and self.encoder is not None and _is_local(self.encoder):
            raise ValueError(f"--revision is for models of the hub; {self.encoder} is none. Fix: leave it out.")
        Choice(("skip", "stop")).check("--on-error", self.on_error)

    @property
    def strength(self) -> int:
        return STRONGEST if self.severity is None else self.severity

    @property
    def kept_in(self) -> Path | None:
        return None if self.no_cache else self.cache or default_cache()

    def load_encoder(self) -> Encoder:
        source = DEFAULT_ENCODER if self.encoder is None else self.encoder
        with console(stderr=True).status(f"loading {source}"):
            return load(
                source,
                device=self.device,
                dtype=self.dtype,
                revision=self.revision,
                batch_size=self.batch_size,
                cache=self.kept_in,
            )

    def alterations(self, images: ImageSet) -> dict[str, Any]:
        """Views, and the corruption unless the images on the disk are corrupted already."""
        from zeroshift.data.corruptions import Corruption, FramedCorruption
        from zeroshift.encode.views import Views

        made: dict[str, Any] = {"views": None, "corruption": None}
        if self.views is not None:
            made["views"] = Views(self.views, augmix=self.augmix, seed=self.seed)
        if self.corruption is not None and "corruption" not in images.provenance:
            size = IMAGENET_C if self.made_for is None else self.made_for
            made["corruption"] = FramedCorruption(Corruption(self.corruption, self.strength, self.seed, made_for=size))
        return made


def _is_local(encoder: str) -> bool:
    return encoder == "composed" or os.path.exists(encoder.removeprefix("albef:"))


def run_extraction(
    images: ImageSet, prompts: Sequence[Prompts], options: EncodingOptions, *, storage: str, quiet: bool
) -> Extraction:
    """Encode with a bar on the terminal; Ctrl-C leaves what is done in the cache."""
    alterations = options.alterations(images)
    encoder = options.load_encoder()
    with progress_bar("images", len(images), quiet=quiet, unit="images") as advance:

        def on_step(what: str, done: int, total: int) -> None:
            advance(done if what == "images" else 0, "class names" if what == "texts" else "images")

        return extract(
            images,
            encoder,
            prompts,
            **alterations,
            cache=options.kept_in,
            workers=options.workers,
            on_error=options.on_error,
            storage=storage,
            progress=on_step,
        )


def tell_images(extraction: Extraction) -> None:
    """Name the images that were left out or read in an unusual way; the first few, then their number."""
    skipped = [str(error) for error in extraction.skipped]
    notes = [f"{name}: {note}" for name, note in extraction.notes]
    for lines, verb in ((skipped, "left out"), (notes, "read with a remark")):
        for line in lines[:SHOWN]:
            print_warning(line)
        if len(lines) > SHOWN:
            print_warning(f"and {len(lines) - SHOWN} more images {verb}; --json lists them all")
