"""`extract`: images and class names become a `FeatureSet`. Earlier results are reused; interrupted runs resume."""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from zeroshift.data.image_set import ImageSet
from zeroshift.data.images import ImageError
from zeroshift.encode.encoder import Encoder, ImageEncoder
from zeroshift.encode.extraction.images import (
    Decoder,
    EncodedImages,
    FileDigests,
    PreparedImage,
    default_workers,
    encode_in_shards,
    find_known,
)
from zeroshift.encode.extraction.readable import warn_about_names
from zeroshift.encode.extraction.store import DamagedPartError, FeatureStore, cache_folder, settings_folder
from zeroshift.encode.extraction.text import encode_classes
from zeroshift.encode.prompts.prompts import Prompts
from zeroshift.features import FeatureSet
from zeroshift.features.checks import validate_class_names
from zeroshift.files import TemporaryFolder
from zeroshift.parameters import Choice, Number
from zeroshift.workers import Workers

__all__ = ["Extraction", "Progress", "encode_images", "extract"]

SHARD_BATCHES = 16
"""Default number of batches after which features are written to disk; a killed run loses at most these."""


class Progress(Protocol):
    """Progress callback: `what` is "texts" (counted in classes) or "images", `done` the number since the last call."""

    def __call__(self, what: str, done: int, total: int) -> None: ...


class ImageTransform(Protocol):
    """A transform of images: a corruption, or views."""

    def describe(self) -> dict[str, Any]: ...

    def __call__(self, image: Any, *arguments: Any) -> Any: ...


@dataclass(frozen=True)
class Extraction:
    """A feature set, and a report of how it was made."""

    features: FeatureSet
    skipped: tuple[ImageError, ...]
    """Errors of the images that could not be used; they are not in the set."""
    notes: tuple[tuple[str, str], ...]
    """(image, note) for unusual images, such as animations or images with more than 8 bits; only for images decoded in
    this run."""
    computed: int
    """Number of images that were encoded; the others were in the cache."""
    cut_prompts: Mapping[str, int]
    """For each prompt mode, the number of prompts that were truncated."""
    second: str | None = None
    """Name of the extra features from the second encoder; None without one."""
    second_computed: int = 0
    """Number of images that the second encoder encoded; the others were in the cache."""


def extract(
    images: ImageSet,
    encoder: Encoder,
    prompts: Prompts | Sequence[Prompts],
    *,
    second: ImageEncoder | None = None,
    class_names: Sequence[str] | None = None,
    views: ImageTransform | None = None,
    corruption: ImageTransform | None = None,
    cache: str | os.PathLike[str] | None = None,
    workers: int | None = None,
    on_error: str = "skip",
    storage: str = "float16",
    shard_rows: int | None = None,
    progress: Progress | None = None,
) -> Extraction:
    """Encode the images and the prompts of the class names.

    Parameters
    ----------
    images : the images to encode (`zeroshift.data`).
    prompts : one or several prompt modes; each gives a set of prototypes.
    second : another encoder, for images alone (`load_image_encoder`). Its features of the images, without views, become
        extra features of the set, named after the encoder. Each encoder reads and decodes the images by itself, and has
        its own part of the cache.
    class_names : by default those of the images.
    views : `Views(n)` for augmented views of each image.
    corruption : `Corruption(kind, severity)`, applied to each image before anything else.
    cache : folder in which features are stored by content (`default_cache()` is the usual one). Cached images are not
        decoded again, and new class names or prompts re-run only the text encoder. None stores nothing.
    workers : processes that decode images; None uses the available cores, 0 decodes in this process. A video is always
        decoded in this process.
    on_error : "skip" skips images that cannot be read and lists them in `skipped`; "stop" raises for the first.
    storage : "float16" or "float32", the type of the features in the set; prototypes are float32.
    shard_rows : number of images, counting each view, after which features are written to disk; by default sixteen
        batches.
    """
    _check_types(images, encoder, views=views, corruption=corruption)
    if not isinstance(encoder, Encoder):
        raise TypeError(
            f"encoder must be an encoder of images and text; got {encoder!r:.80}. Fix: it can be the second: second=..."
        )
    if second is not None:
        _check_second(encoder, second)
    _check_settings(images, workers, on_error, storage, shard_rows)
    modes = [prompts] if isinstance(prompts, (Prompts, str)) else list(prompts)
    names, unique_names = _class_names(images, class_names)
    _check_modes(modes, names)
    report = progress or (lambda what, done, total: None)

    texts = {}
    for mode in modes:
        report("texts", 0, len(names))
        texts[mode.mode] = encode_classes(
            encoder,
            mode.for_classes(names),
            templates=mode.templates,
            cache=cache,
            progress=lambda done: report("texts", done, len(names)),
        )
    warn_about_names(names, texts[modes[0].mode].prototypes, encoder.tokenizer)
    settings: dict[str, Any] = {
        "corruption": corruption,
        "cache": cache,
        "workers": workers,
        "on_error": on_error,
        "storage": storage,
        "shard_rows": shard_rows,
        "progress": report,
    }
    encoded = encode_images(images, encoder, views=views, **settings)
    used = images if len(encoded.indices) == len(images) else images.subset(encoded.indices)
    rows, other = encoded.rows, None
    if second is not None:
        other = encode_images(used, second, **settings)
        if len(other.indices) < len(used):  # images that only the second encoder cannot use
            rows, used = rows[other.indices], used.subset(other.indices)
        notes = tuple(dict.fromkeys((*encoded.notes, *other.notes)))
        encoded = encoded._replace(skipped=(*encoded.skipped, *other.skipped), notes=notes)
    features = FeatureSet(
        None if views is not None else rows[:, 0],
        views=rows if views is not None else None,
        prototypes={mode: text.prototypes for mode, text in texts.items()},
        labels=used.labels if class_names is None or tuple(class_names) == images.class_names else None,
        class_names=unique_names,
        logit_scale=encoder.logit_scale,
        default_prompt=modes[0].mode,
        sample_names=[used.images.name(i) for i in range(len(used))],
        provenance={
            "made_by": "zeroshift extract",
            "images": {"name": images.name, **images.provenance},
            "file_list_hash": used.hash(),
            "skipped": [error.name for error in encoded.skipped],
            "encoder": {**encoder.describe(), "logit_bias": encoder.logit_bias},
            "preprocessing": encoder.describe_preprocessing(),
            "prompts": {
                mode.mode: {**mode.describe(), "hash": mode.hash(names), "cut": texts[mode.mode].n_cut}
                for mode in modes
            },
            **_describe_transforms(views=views, corruption=corruption),
        },
    )
    cut = {mode: text.n_cut for mode, text in texts.items()}
    extraction = Extraction(features, encoded.skipped, encoded.notes, encoded.computed, cut)
    if second is None or other is None:
        return extraction
    name = extra_name(second)
    about = {"encoder": second.describe(), "preprocessing": second.describe_preprocessing()}
    combined = features.with_extra(name, other.rows[:, 0], about)
    return replace(extraction, features=combined, second=name, second_computed=other.computed)


def extra_name(encoder: ImageEncoder) -> str:
    """The name of extra features from this encoder: of a hub id OWNER/NAME the name.

    >>> from types import SimpleNamespace
    >>> [extra_name(SimpleNamespace(source=one)) for one in ("facebook/dinov2-base", "open_clip:ViT-B-32/laion2b")]
    ['dinov2-base', 'ViT-B-32-laion2b']
    """
    _, prefix, model = encoder.source.rpartition(":")
    name = model if prefix else model.rpartition("/")[2]
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name)[:100].lstrip("._-") or encoder.family


def encode_images(
    images: ImageSet,
    encoder: ImageEncoder,
    *,
    views: ImageTransform | None = None,
    corruption: ImageTransform | None = None,
    cache: str | os.PathLike[str] | None = None,
    workers: int | None = None,
    on_error: str = "skip",
    storage: str = "float16",
    shard_rows: int | None = None,
    progress: Progress | None = None,
) -> EncodedImages:
    """Encode only the images, as in `extract`: (N, V, d) unit rows, V = 1 without views."""
    _check_types(images, encoder, views=views, corruption=corruption)
    _check_settings(images, workers, on_error, storage, shard_rows)
    n_views = 1 if views is None else int(views.describe()["n_views"])
    settings = {
        "encoder": encoder.key(),
        "preprocessing": encoder.describe_preprocessing(),
        "decoding": images.images.decoding_options(),
        "storage": storage,
        **_describe_transforms(views=views, corruption=corruption),
    }
    folder = cache_folder(cache)

    def prepare(indices: Sequence[int], store: FeatureStore) -> Generator[PreparedImage, None, None]:
        left = deque(indices)
        # An encoder that is not loaded yet is loaded for the first image that must be encoded, and not before.
        while left and not encoder.is_loaded and (known := find_known(images.images, left[0], store)) is not None:
            left.popleft()
            yield known
        if left:
            count = default_workers(len(left)) if workers is None else workers
            if getattr(images.images, "sequential", False):
                count = 0
            decoder = Decoder(images.images, encoder.preprocessing, corruption, views)
            with Workers(decoder, count, doing="decodes images") as decoders:
                yield from decoders.map(list(left))

    with (
        TemporaryFolder() as temporary,  # without a cache, features are still written to disk
        closing(FileDigests(folder)) as file_digests,
    ):
        store_folder = settings_folder(folder or Path(temporary), "images", settings)
        while True:
            try:
                return encode_in_shards(
                    images.images,
                    encoder,
                    prepare,
                    FeatureStore(store_folder),
                    file_digests,
                    shard_images=max(1, (shard_rows or SHARD_BATCHES * encoder.batch_size) // n_views),
                    storage=np.dtype(storage),
                    stop=on_error == "stop",
                    progress=(lambda done: progress("images", done, len(images))) if progress else (lambda done: None),
                )
            except DamagedPartError:
                continue  # it was deleted from the store, so its images are now computed again


def _check_types(images: Any, encoder: Any, **transforms: Any) -> None:
    """Refuse arguments of other types."""
    if not isinstance(images, ImageSet):
        raise TypeError(
            f"images must be an ImageSet; got {type(images).__name__}. Fix: zeroshift.data.open_images(folder)."
        )
    if not isinstance(encoder, ImageEncoder):
        raise TypeError(f"encoder must be an Encoder; got {encoder!r:.80}. Fix: encode.load_encoder('composed').")
    for name, fix in (("views", "Views(64)"), ("corruption", "Corruption('fog', severity=5)")):
        if transforms[name] is not None and not hasattr(transforms[name], "describe"):
            raise TypeError(
                f"{name} must be None or, for example, {fix}; got {transforms[name]!r:.80}. Fix: {name}={fix}."
            )


def _check_second(encoder: Encoder, second: Any) -> None:
    if not isinstance(second, ImageEncoder):
        raise TypeError(
            f"second must be an encoder of images; got {second!r:.80}. "
            "Fix: encode.load_image_encoder('facebook/dinov2-base')."
        )
    if second.key() == encoder.key():
        raise ValueError(
            f"second is {second.source}, the first encoder itself, which would add nothing. Fix: another encoder."
        )


def _check_settings(images: ImageSet, workers: int | None, on_error: str, storage: str, shard_rows: int | None) -> None:
    """Validate the settings before anything is computed."""
    Choice(("skip", "stop")).check("on_error", on_error)
    Choice(("float16", "float32")).check("storage", storage)
    if shard_rows is not None:
        Number(1, integer=True).check("shard_rows", shard_rows)
    if workers is not None:
        Number(0, integer=True).check("workers", workers)
    if not len(images):
        raise ValueError(f"{images.name} has no images; at least one is needed.")


def _describe_transforms(**transforms: ImageTransform | None) -> dict[str, Any]:
    return {name: transform.describe() for name, transform in transforms.items() if transform is not None}


def _class_names(images: ImageSet, given: Sequence[str] | None) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The class names used in prompts, and the unique class names of the feature set."""
    if given is not None and tuple(given) != images.class_names:
        names = validate_class_names(given, len(given))
        return names, names
    if images.class_names is None:
        raise ValueError(f"{images.name} has no class names. Fix: pass class_names (--classes cat,dog,horse).")
    return images.class_names, images.unique_class_names()


def _check_modes(modes: Sequence[Any], names: Sequence[str]) -> None:
    if not modes:
        raise ValueError("prompts is empty; at least one prompt mode is needed.")
    for mode in modes:
        if not isinstance(mode, Prompts):
            raise TypeError(f"prompts must be of the class Prompts; got {mode!r:.80}. Fix: Prompts.named('vanilla').")
    names_of_modes = [mode.mode for mode in modes]
    if len(set(names_of_modes)) < len(names_of_modes):
        raise ValueError(f"prompts must differ in their mode; got {', '.join(names_of_modes)}. Fix: keep one of each.")
    for mode in modes:
        mode.count(names)  # raises for class names without descriptions, before anything is computed
