"""Options that every command with an encoder has, each said once."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from zeroshift.cli.console import console, print_warning
from zeroshift.cli.progress import progress_bar
from zeroshift.data.image_set import ImageSet
from zeroshift.encode.encoder import Encoder
from zeroshift.encode.extraction import Extraction, default_cache, extract
from zeroshift.encode.prompts import Prompts
from zeroshift.encode.registry import DEFAULT_ENCODER, load
from zeroshift.features import FeatureSet
from zeroshift.methods import MethodInfo
from zeroshift.methods._shared.prompt_tuned import PromptTuned
from zeroshift.parameters import Choice

if TYPE_CHECKING:
    from zeroshift.evaluate import EncoderRef

__all__ = [
    "Augmix",
    "BatchSize",
    "Cache",
    "ClassNames",
    "Corruption",
    "Descriptions",
    "Device",
    "Dtype",
    "EncoderChoice",
    "EncodingOptions",
    "FeatureEncoder",
    "Force",
    "Json",
    "Labelled",
    "MadeFor",
    "NoCache",
    "OnError",
    "PromptModes",
    "Quiet",
    "Revision",
    "Seed",
    "Severity",
    "Template",
    "Templates",
    "Views",
    "Workers",
    "check_encoder_options",
    "check_models",
    "first_words",
    "load_behind",
    "models_for",
    "run_extraction",
    "tell_images",
]

SOURCE_PANEL = "What is read"
TEXT_PANEL = "What is said of the classes"
MODEL_PANEL = "The encoder"
IMAGE_PANEL = "What is done to the images"
RUN_PANEL = "How it runs"

EncoderChoice = Annotated[
    str | None,
    typer.Option(
        "--encoder", "-e", help="A hub id, a model's folder, or composed: see `zeroshift encoders`.",
        show_default="openai/clip-vit-base-patch16", rich_help_panel=MODEL_PANEL,
    ),
]  # fmt: skip
FeatureEncoder = Annotated[
    str | None,
    typer.Option(
        "--encoder", "-e", metavar="SOURCE",
        help="The one FEATURES come from, for methods that tune its prompts (tpt).", rich_help_panel=MODEL_PANEL,
    ),
]  # fmt: skip
Revision = Annotated[
    str | None, typer.Option(help="Branch, tag or commit of the hub's repository.", rich_help_panel=MODEL_PANEL)
]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda, mps.", rich_help_panel=MODEL_PANEL)]
Dtype = Annotated[str, typer.Option(help="auto, float32, float16, bfloat16.", rich_help_panel=MODEL_PANEL)]
BatchSize = Annotated[
    int | None,
    typer.Option(
        min=1, help="Pictures at a time; halved when memory runs out.", show_default="the encoder's",
        rich_help_panel=MODEL_PANEL,
    ),
]  # fmt: skip

ClassNames = Annotated[
    str | None,
    typer.Option(
        "--classes", "-c", metavar="NAMES", help="cat,dog,horse, or a text file with one name a line.",
        rich_help_panel=TEXT_PANEL,
    ),
]  # fmt: skip
PromptModes = Annotated[
    str | None,
    typer.Option(
        "--prompts", metavar="MODE,...", help="See `zeroshift prompts`; the first is the set's default.",
        show_default="ensemble", rich_help_panel=TEXT_PANEL,
    ),
]  # fmt: skip
Template = Annotated[
    str | None,
    typer.Option(help="The one template of the modes custom and descriptions.", rich_help_panel=TEXT_PANEL),
]
Templates = Annotated[
    Path | None,
    typer.Option(help="Templates of your own: a file with one a line, or a JSON list.", rich_help_panel=TEXT_PANEL),
]
Descriptions = Annotated[
    Path | None, typer.Option(help="JSON file: sentences by class name.", rich_help_panel=TEXT_PANEL)
]

Labelled = Annotated[
    bool | None,
    typer.Option(
        "--labelled/--unlabelled", help="Whether sub-folders are classes.", show_default="as it looks",
        rich_help_panel=SOURCE_PANEL,
    ),
]  # fmt: skip

Views = Annotated[
    int | None,
    typer.Option(min=2, help="Augmented views of each image, itself included.", rich_help_panel=IMAGE_PANEL),
]
Augmix = Annotated[bool, typer.Option("--augmix", help="Views by AugMix.", rich_help_panel=IMAGE_PANEL)]
Corruption = Annotated[
    str | None, typer.Option(metavar="KIND", help="One of ImageNet-C's fifteen.", rich_help_panel=IMAGE_PANEL)
]
Severity = Annotated[
    int | None,
    typer.Option(min=1, max=5, help="Of the corruption.", show_default="5", rich_help_panel=IMAGE_PANEL),
]
MadeFor = Annotated[
    int | None,
    typer.Option(
        help="Pixels a side the corruption is made for: 224 (ImageNet-C) or 32 (CIFAR-10-C).", show_default="224",
        rich_help_panel=IMAGE_PANEL,
    ),
]  # fmt: skip
Seed = Annotated[int, typer.Option(min=0, help="Of views and corruption.", rich_help_panel=IMAGE_PANEL)]

Workers = Annotated[
    int | None,
    typer.Option(min=0, help="Processes that decode.", show_default="cores - 1", rich_help_panel=RUN_PANEL),
]
Cache = Annotated[
    Path | None,
    typer.Option(help="Folder where features are kept.", show_default="~/.cache/zeroshift", rich_help_panel=RUN_PANEL),
]
NoCache = Annotated[bool, typer.Option("--no-cache", help="Keep nothing.", rich_help_panel=RUN_PANEL)]
OnError = Annotated[str, typer.Option(help="Images that cannot be read: skip or stop.", rich_help_panel=RUN_PANEL)]
Force = Annotated[bool, typer.Option("--force", help="Replace files that exist.")]
Json = Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar and no table.")]


# The work that `extract` and `classify` share: options checked, the encoder loaded, images and prompts encoded.


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
        from zeroshift.data.corruptions import Corruption, CroppedCorruption
        from zeroshift.encode.views import Views

        made: dict[str, Any] = {"views": None, "corruption": None}
        if self.views is not None:
            made["views"] = Views(self.views, augmix=self.augmix, seed=self.seed)
        if self.corruption is not None and "corruption" not in images.provenance:
            size = IMAGENET_C if self.made_for is None else self.made_for
            made["corruption"] = CroppedCorruption(Corruption(self.corruption, self.strength, self.seed, made_for=size))
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


# `--encoder` beside features: the encoder they come from, for methods that tune its prompts.


AUTO = "auto"
TEXT, VISION = "text", "vision"


def check_encoder_options(encoder: str | None, *, revision: str | None, device: str, dtype: str) -> None:
    """Refuse options of an encoder where none is named."""
    said = {"--revision": revision is not None, "--device": device != AUTO, "--dtype": dtype != AUTO}
    alone = [option for option, given in said.items() if given]
    if encoder is None and alone:
        raise ValueError(f"{alone[0]} is that of an encoder, and none is named. Fix: add --encoder SOURCE.")


def load_behind(encoder: str | None, *, revision: str | None, device: str, dtype: str) -> EncoderRef | None:
    """The encoder, loaded; None where none is named."""
    if encoder is None:
        return None
    from zeroshift.evaluate import EncoderRef

    with console(stderr=True).status(f"loading {encoder}"):
        return EncoderRef.named(encoder, device=device, dtype=dtype, revision=revision)


def check_models(info: MethodInfo, encoder: str | None, prompt: str | None) -> None:
    """Refuse a method without the encoder it computes with, an encoder without a use, and prompts it would not take."""
    models = [model for model in info.cls.model_parameters if model in info.needs]
    if VISION in models:
        raise ValueError(
            f"{info.name} looks at images through the encoder, and features are no images. "
            f"Fix: in Python, zeroshift.encode.make_method({info.name!r}, encoder, class_names, ...), for images."
        )
    if TEXT in models and encoder is None:
        raise ValueError(
            f"{info.name} tunes the prompts of the encoder the features come from. Fix: --encoder SOURCE, that encoder."
        )
    if TEXT not in models and encoder is not None:
        raise ValueError(f"--encoder: {info.name} takes features alone. Fix: leave it out.")
    own = first_words(info)
    if own is not None and prompt is not None:
        raise ValueError(f"--prompt {prompt}: {info.name} begins with words of its own, {own!r}. Fix: leave it out.")


def models_for(info: MethodInfo, behind: EncoderRef | None, features: FeatureSet, source: str) -> dict[str, Any]:
    """The models the method is made with, from an encoder that fits the features."""
    if behind is None:
        return {}
    from zeroshift.evaluate import MethodSpec
    from zeroshift.evaluate.encoder_ref import check_fit

    check_fit(source, features, behind, [first_words(info) or PromptTuned.words])
    return {TEXT: behind.text(features.class_names, MethodSpec(info.name).words)}


def first_words(info: MethodInfo) -> str | None:
    """The words whose text features are a method's first classifier; None for one that begins with the prototypes."""
    from zeroshift.evaluate import MethodSpec

    spec = MethodSpec(info.name)
    return spec.words if spec.begins_with_words else None
