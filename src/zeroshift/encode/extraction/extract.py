"""Images and class names to a `FeatureSet`: only what no earlier run has computed, and nothing lost when stopped."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol

import numpy as np

from zeroshift.data.image_set import ImageSet
from zeroshift.data.images import ImageError
from zeroshift.encode.encoder import Encoder
from zeroshift.encode.extraction.images import Contents, Decoder, Outcome, default_workers, encode_shards
from zeroshift.encode.extraction.store import DamagedPartError, FeatureStore, as_folder, keyed_folder
from zeroshift.encode.extraction.text import encode_classes
from zeroshift.encode.prompts.prompts import Prompts
from zeroshift.features import FeatureSet
from zeroshift.features.checks import validate_class_names
from zeroshift.parameters import Choice, Number
from zeroshift.workers import Workers

__all__ = ["Extraction", "Progress", "encode_images", "extract"]

SHARD_BATCHES = 16
"""Batches after which features are put on the disk, unless told otherwise: what a killed run has to do again."""


class Progress(Protocol):
    """Told as work is done: "texts" are classes, "images" are images; `total` of them there are."""

    def __call__(self, what: str, done: int, total: int) -> None: ...


class Alteration(Protocol):
    """What is done to every picture first (a corruption), or makes several of it (views)."""

    def describe(self) -> dict[str, Any]: ...

    def __call__(self, image: Any, *arguments: Any) -> Any: ...


@dataclass(frozen=True)
class Extraction:
    """A feature set, and what there is to say about how it was made."""

    features: FeatureSet
    skipped: tuple[ImageError, ...]
    """Images that could not be used; they are not in the set."""
    notes: tuple[tuple[str, str], ...]
    """(image, what was done to it) where that is out of the ordinary: the first frame taken, more bits than 8. Of
    images that were decoded now; of those known from an earlier run it was said then."""
    computed: int
    """Images the encoder had to look at; the others were known."""
    cut_prompts: Mapping[str, int]
    """For each prompt mode, how many prompts were longer than the model reads."""


def extract(
    images: ImageSet,
    encoder: Encoder,
    prompts: Prompts | Sequence[Prompts],
    *,
    class_names: Sequence[str] | None = None,
    views: Alteration | None = None,
    corruption: Alteration | None = None,
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
    images : what to encode (`zeroshift.data`).
    prompts : one way or several of putting class names into words; each becomes a prompt mode of the set.
    class_names : by default the images' own.
    views : `Views(n)` for augmented views of each image.
    corruption : `Corruption(kind, severity)`, applied to each image before anything else.
    cache : folder in which features are kept by content (`default_cache()` is the usual one). Images known there are
        not even decoded, and new class names or prompts re-run the text side alone. None keeps nothing.
    workers : processes that decode beside the encoder; None for the cores there are, 0 for none.
    on_error : "skip" leaves out images that cannot be read and lists them in `skipped`; "stop" raises for the first.
    storage : "float16" or "float32", of the features in the set; prototypes are float32.
    shard_rows : pictures, each view counted, after which features are put on the disk; by default sixteen batches.
    """
    _check_kinds(images, encoder, views=views, corruption=corruption)
    _check_settings(images, workers, on_error, storage, shard_rows)
    modes = [prompts] if isinstance(prompts, (Prompts, str)) else list(prompts)
    names, shown = _class_names(images, class_names)
    _check_modes(modes, names)
    told = progress or (lambda what, done, total: None)

    texts = {}
    for mode in modes:
        told("texts", 0, len(names))
        texts[mode.mode] = encode_classes(
            encoder,
            mode.for_classes(names),
            templates=mode.templates,
            cache=cache,
            progress=lambda done: told("texts", done, len(names)),
        )
    outcome = encode_images(
        images,
        encoder,
        views=views,
        corruption=corruption,
        cache=cache,
        workers=workers,
        on_error=on_error,
        storage=storage,
        shard_rows=shard_rows,
        progress=told,
    )
    kept = images if len(outcome.indices) == len(images) else images.subset(outcome.indices)
    rows = outcome.rows
    features = FeatureSet(
        None if views is not None else rows[:, 0],
        views=rows if views is not None else None,
        prototypes={mode: text.prototypes for mode, text in texts.items()},
        labels=kept.labels if class_names is None or tuple(class_names) == images.class_names else None,
        class_names=shown,
        logit_scale=encoder.logit_scale,
        default_prompt=modes[0].mode,
        sample_names=[kept.images.name(i) for i in range(len(kept))],
        provenance={
            "made_by": "zeroshift extract",
            "images": {"name": images.name, **images.provenance},
            "file_list_hash": kept.hash(),
            "skipped": [error.name for error in outcome.skipped],
            "encoder": {**encoder.describe(), "logit_bias": encoder.logit_bias},
            "preprocessing": encoder.preprocessing.describe(),
            "prompts": {
                mode.mode: {**mode.describe(), "hash": mode.hash(names), "cut": texts[mode.mode].n_cut}
                for mode in modes
            },
            **_described(views=views, corruption=corruption),
        },
    )
    cut = {mode: text.n_cut for mode, text in texts.items()}
    return Extraction(features, outcome.skipped, outcome.notes, outcome.computed, cut)


def encode_images(
    images: ImageSet,
    encoder: Encoder,
    *,
    views: Alteration | None = None,
    corruption: Alteration | None = None,
    cache: str | os.PathLike[str] | None = None,
    workers: int | None = None,
    on_error: str = "skip",
    storage: str = "float16",
    shard_rows: int | None = None,
    progress: Progress | None = None,
) -> Outcome:
    """The image side of `extract` alone: (N, V, d) rows of unit length, V = 1 without views."""
    _check_kinds(images, encoder, views=views, corruption=corruption)
    _check_settings(images, workers, on_error, storage, shard_rows)
    n_views = 1 if views is None else int(views.describe()["n_views"])
    settings = {
        "encoder": encoder.key(),
        "preprocessing": encoder.preprocessing.describe(),
        "decoding": images.images.decoding_options(),
        "storage": storage,
        **_described(views=views, corruption=corruption),
    }
    kept_in = as_folder(cache)
    count = default_workers(len(images)) if workers is None else workers
    decoder = Decoder(images.images, encoder.preprocessing, corruption, views)
    with (
        TemporaryDirectory() as temporary,  # where nothing is to be kept, the parts still need a place
        closing(Contents(kept_in)) as contents,
        Workers(decoder, count, doing="decodes images") as decoders,
    ):
        folder = keyed_folder(kept_in or Path(temporary), "images", settings)
        while True:
            try:
                return encode_shards(
                    images.images,
                    encoder,
                    decoders.map,
                    FeatureStore(folder),
                    contents,
                    shard_images=max(1, (shard_rows or SHARD_BATCHES * encoder.batch_size) // n_views),
                    storage=np.dtype(storage),
                    stop=on_error == "stop",
                    progress=(lambda done: progress("images", done, len(images))) if progress else (lambda done: None),
                )
            except DamagedPartError:
                continue  # it is gone from the store, so that this time its images are computed


def _check_kinds(images: Any, encoder: Any, **alterations: Any) -> None:
    """Refuse what is of another kind by its name, and not by an attribute it lacks."""
    if not isinstance(images, ImageSet):
        raise TypeError(
            f"images must be an ImageSet; got {type(images).__name__}. Fix: zeroshift.data.open_images(folder)."
        )
    if not isinstance(encoder, Encoder):
        raise TypeError(f"encoder must be an Encoder; got {encoder!r:.80}. Fix: encode.load_encoder('composed').")
    for name, fix in (("views", "Views(64)"), ("corruption", "Corruption('fog', severity=5)")):
        if alterations[name] is not None and not hasattr(alterations[name], "describe"):
            raise TypeError(f"{name} must be None or such as {fix}; got {alterations[name]!r:.80}. Fix: {name}={fix}.")


def _check_settings(images: ImageSet, workers: int | None, on_error: str, storage: str, shard_rows: int | None) -> None:
    """Before anything is computed."""
    Choice(("skip", "stop")).check("on_error", on_error)
    Choice(("float16", "float32")).check("storage", storage)
    if shard_rows is not None:
        Number(1, integer=True).check("shard_rows", shard_rows)
    if workers is not None:
        Number(0, integer=True).check("workers", workers)
    if not len(images):
        raise ValueError(f"{images.name} has no images; at least one is needed.")


def _described(**alterations: Alteration | None) -> dict[str, Any]:
    return {name: alteration.describe() for name, alteration in alterations.items() if alteration is not None}


def _class_names(images: ImageSet, given: Sequence[str] | None) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What prompts say of each class, and what the set calls it, which must differ from class to class."""
    if given is not None and tuple(given) != images.class_names:
        names = validate_class_names(given, len(given))
        return names, names
    if images.class_names is None:
        raise ValueError(
            f"{images.name} does not say what its classes are. Fix: give class_names (--classes cat,dog,horse)."
        )
    return images.class_names, images.unique_class_names()


def _check_modes(modes: Sequence[Any], names: Sequence[str]) -> None:
    if not modes:
        raise ValueError("prompts is empty; at least one way of putting the classes into words is needed.")
    for mode in modes:
        if not isinstance(mode, Prompts):
            raise TypeError(f"prompts must be of the class Prompts; got {mode!r:.80}. Fix: Prompts.named('vanilla').")
    called = [mode.mode for mode in modes]
    if len(set(called)) < len(called):
        raise ValueError(f"prompts must differ in their mode; got {', '.join(called)}. Fix: keep one of each.")
    for mode in modes:
        mode.count(names)  # refuses class names that have no descriptions, before anything is computed
