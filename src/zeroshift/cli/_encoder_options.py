"""Options of the commands that use an encoder, and the extraction that `extract`, `classify` and `experiment` share."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from zeroshift.cli._output_paths import check_packages
from zeroshift.cli.console import console, print_warning
from zeroshift.cli.progress import ProgressBar, progress_bar
from zeroshift.data import corruptions
from zeroshift.data.image_set import ImageSet
from zeroshift.distributed import check_executor
from zeroshift.encode.encoder import Encoder, ImageEncoder
from zeroshift.encode.extraction import Extraction, default_cache, extract
from zeroshift.encode.families.composed import FITTING, SentencePrototypes
from zeroshift.encode.prompts import Prompts
from zeroshift.encode.recorded import EncoderChangedError, RecordedImageEncoder, load_when_needed
from zeroshift.encode.registry import DEFAULT_ENCODER
from zeroshift.encode.views import Views as ViewMaker
from zeroshift.evaluate.encoder_ref import EncoderRef
from zeroshift.parameters import LARGEST_SIZE, Choice

__all__ = [
    "MOST_PROCESSES",
    "MOST_SEED",
    "Augmix",
    "BatchSize",
    "Cache",
    "ClassNames",
    "Corruption",
    "Data",
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
    "On",
    "OnError",
    "PromptMode",
    "PromptModes",
    "Quiet",
    "RawCsv",
    "Revision",
    "SecondEncoder",
    "Seed",
    "Severity",
    "Template",
    "Templates",
    "Views",
    "Workers",
    "check_encoder_options",
    "check_on",
    "load_encoder_ref",
    "run_extraction",
    "warn_about_images",
]

SOURCE_PANEL = "Input"
TEXT_PANEL = "Classes and prompts"
MODEL_PANEL = "Encoder"
IMAGE_PANEL = "Changes to the images"
RUN_PANEL = "Execution"
OUTPUT_PANEL = "Output"

AUTO = "auto"

MOST_PROCESSES = 256
MOST_IMAGES = 65_536
MOST_VIEWS = 4096
MOST_SEED = int(LARGEST_SIZE)
"""Largest values of options: a number with too many zeros is refused, and not tried."""

EncoderChoice = Annotated[
    str | None,
    typer.Option(
        "--encoder", "-e", metavar="ENCODER",
        help="A hub id, a model's folder, or composed: see `zeroshift encoders`.",
        show_default="openai/clip-vit-base-patch16", rich_help_panel=MODEL_PANEL,
    ),
]  # fmt: skip
SecondEncoder = Annotated[
    str | None,
    typer.Option(
        "--second-encoder", metavar="ENCODER",
        help="Another encoder for the same images, which needs no text: a hub id (facebook/dinov2-base), a folder, or "
        "efficientnet-lite0.",
        rich_help_panel=MODEL_PANEL,
    ),
]  # fmt: skip
FeatureEncoder = Annotated[
    str | None,
    typer.Option(
        "--encoder", "-e", metavar="ENCODER",
        help="The encoder FEATURES come from, for methods that tune its prompts (tpt).", rich_help_panel=MODEL_PANEL,
    ),
]  # fmt: skip
Revision = Annotated[
    str | None,
    typer.Option(
        metavar="REVISION", help="Branch, tag or commit of the hub's repository.", rich_help_panel=MODEL_PANEL
    ),
]
Device = Annotated[
    str,
    typer.Option(metavar="DEVICE", help="Where the encoder runs: auto, cpu, cuda or mps.", rich_help_panel=MODEL_PANEL),
]
Dtype = Annotated[
    str,
    typer.Option(
        metavar="DTYPE", help="Precision of the encoder: auto, float32, float16 or bfloat16.",
        rich_help_panel=MODEL_PANEL,
    ),
]  # fmt: skip
BatchSize = Annotated[
    int | None,
    typer.Option(
        metavar="N", min=1, max=MOST_IMAGES, help="Images per batch; halved when memory runs out.",
        show_default="the encoder's", rich_help_panel=MODEL_PANEL,
    ),
]  # fmt: skip

ClassNames = Annotated[
    str | None,
    typer.Option(
        "--classes", "-c", "--class-names", metavar="NAMES",
        help="cat,dog,horse, or a text file with one name per line.", rich_help_panel=TEXT_PANEL,
    ),
]  # fmt: skip
PromptModes = Annotated[
    str | None,
    typer.Option(
        "--prompts", "--prompt", metavar="MODE,...",
        help="Prompt modes: see `zeroshift prompts`; the first is the set's default.",
        show_default="ensemble", rich_help_panel=TEXT_PANEL,
    ),
]  # fmt: skip
PromptMode = Annotated[
    str | None,
    typer.Option(
        "--prompts", "--prompt", metavar="MODE", help="Prompt mode: see `zeroshift prompts`.",
        show_default="ensemble", rich_help_panel=TEXT_PANEL,
    ),
]  # fmt: skip
Template = Annotated[
    str | None,
    typer.Option(
        metavar="TEMPLATE",
        help="Template for the modes custom and descriptions, such as 'a photo of a {}.'",
        rich_help_panel=TEXT_PANEL,
    ),
]
Templates = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="Your own templates: a file with one per line, or a JSON list.",
        rich_help_panel=TEXT_PANEL,
    ),
]  # fmt: skip
Descriptions = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="JSON file: sentences by class name.", rich_help_panel=TEXT_PANEL),
]

Labelled = Annotated[
    bool | None,
    typer.Option(
        "--labelled/--unlabelled", help="Whether the names of sub-folders are classes.", show_default="detected",
        rich_help_panel=SOURCE_PANEL,
    ),
]  # fmt: skip

Data = Annotated[
    Path | None,
    typer.Option(
        "--data", metavar="FOLDER", help="Folder that contains the data sets, or that a table's paths start from.",
        rich_help_panel=SOURCE_PANEL,
    ),
]  # fmt: skip

Views = Annotated[
    int | None,
    typer.Option(
        metavar="N", min=2, max=MOST_VIEWS, help="Views per image, the image itself included.",
        rich_help_panel=IMAGE_PANEL,
    ),
]  # fmt: skip
Augmix = Annotated[bool, typer.Option("--augmix", help="Make views with AugMix.", rich_help_panel=IMAGE_PANEL)]
Corruption = Annotated[
    str | None,
    typer.Option(
        "--corruption", "--kind", metavar="KIND", help="One of ImageNet-C's fifteen corruptions, such as fog.",
        rich_help_panel=IMAGE_PANEL,
    ),
]  # fmt: skip
Severity = Annotated[
    int | None,
    typer.Option(
        metavar="1-5", min=1, max=5, help="Severity of the corruption.", show_default="5", rich_help_panel=IMAGE_PANEL
    ),
]
MadeFor = Annotated[
    int | None,
    typer.Option(
        metavar="224|32", help="Image size the severities are made for: 224 (ImageNet-C) or 32 (CIFAR-10-C).",
        show_default="224",
        rich_help_panel=IMAGE_PANEL,
    ),
]  # fmt: skip
Seed = Annotated[
    int,
    typer.Option(metavar="N", min=0, max=MOST_SEED, help="Seed of views and corruption.", rich_help_panel=IMAGE_PANEL),
]

Workers = Annotated[
    int | None,
    typer.Option(
        metavar="N", min=0, max=MOST_PROCESSES, help="Processes that decode images.", show_default="cores - 1",
        rich_help_panel=RUN_PANEL,
    ),
]  # fmt: skip
On = Annotated[
    str | None,
    typer.Option(
        "--on", metavar="local|ray|ADDRESS",
        help="Where the work is done: local:N, processes of this machine; ray, the cluster of this machine; or "
        "ray://HOST:PORT.",
        rich_help_panel=RUN_PANEL,
    ),
]  # fmt: skip
Cache = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER", help="Folder of the feature cache.", show_default="~/.cache/zeroshift",
        rich_help_panel=RUN_PANEL,
    ),
]  # fmt: skip
NoCache = Annotated[bool, typer.Option("--no-cache", help="Do not use the cache.", rich_help_panel=RUN_PANEL)]
OnError = Annotated[
    str,
    typer.Option(metavar="skip|stop", help="What to do with images that cannot be read.", rich_help_panel=RUN_PANEL),
]
Force = Annotated[bool, typer.Option("--force", help="Replace files that exist.", rich_help_panel=OUTPUT_PANEL)]
RawCsv = Annotated[
    bool,
    typer.Option(
        "--raw-csv", help="Write names to .csv as they are, even those that a spreadsheet would compute as formulas.",
        rich_help_panel=OUTPUT_PANEL,
    ),
]  # fmt: skip
Json = Annotated[bool, typer.Option("--json", help="Print the summary as JSON.", rich_help_panel=OUTPUT_PANEL)]
Quiet = Annotated[
    bool, typer.Option("--quiet", "-q", help="No progress bar and no table.", rich_help_panel=OUTPUT_PANEL)
]


MOST_WARNINGS = 5
"""Images named one by one; the rest are counted."""

DEFAULT_SEVERITY = 5
"""The severity of published results."""

IMAGENET_C_SIZE = 224
"""Width and height of its images in pixels."""


@dataclass(frozen=True)
class EncodingOptions:
    """How images and prompts are encoded, from the options of a command."""

    encoder: str | None = None
    second_encoder: str | None = None
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
            raise ValueError("--augmix needs --views. Fix: add --views 64.")
        for option, value in (("--severity", self.severity), ("--made-for", self.made_for)):
            if value is not None and self.corruption is None:
                raise ValueError(f"{option} needs --corruption. Fix: add --corruption fog.")
        if self.revision is not None and self.encoder is not None and _is_local(self.encoder):
            raise ValueError(f"--revision is for models of the hub; {self.encoder} is not one. Fix: leave it out.")
        Choice(("skip", "stop")).check("--on-error", self.on_error)

    @property
    def severity_or_default(self) -> int:
        return DEFAULT_SEVERITY if self.severity is None else self.severity

    @property
    def cache_folder(self) -> Path | None:
        return None if self.no_cache else self.cache or default_cache()

    def load_encoder(self) -> Encoder:
        """The encoder, loaded when it is needed if the cache has a record of it."""
        source = DEFAULT_ENCODER if self.encoder is None else self.encoder
        encoder = self._load(source, revision=self.revision)
        assert isinstance(encoder, Encoder)
        return encoder

    def load_images_only(self) -> ImageEncoder:
        """As `load_encoder`, for an encoder that need not read text."""
        return self._load(self.encoder or DEFAULT_ENCODER, revision=self.revision, images_only=True)

    def load_second(self) -> ImageEncoder | None:
        return None if self.second_encoder is None else self._load(self.second_encoder, images_only=True)

    def _load(self, source: str, **options: Any) -> ImageEncoder:
        with console(stderr=True).status(f"loading {source}"):
            return load_when_needed(
                source,
                device=self.device,
                dtype=self.dtype,
                batch_size=self.batch_size,
                cache=self.cache_folder,
                **options,
            )

    def image_changes(self, images: ImageSet) -> dict[str, Any]:
        """Views, and the corruption unless the images on the disk are already corrupted."""
        changes: dict[str, Any] = {"views": None, "corruption": None}
        if self.views is not None:
            changes["views"] = ViewMaker(self.views, augmix=self.augmix, seed=self.seed)
        if self.corruption is not None and "corruption" not in images.provenance:
            size = IMAGENET_C_SIZE if self.made_for is None else self.made_for
            made = corruptions.Corruption(self.corruption, self.severity_or_default, self.seed, made_for=size)
            changes["corruption"] = corruptions.CroppedCorruption(made)
        return changes


def _is_local(encoder: str) -> bool:
    return encoder == "composed" or os.path.exists(encoder.removeprefix("albef:"))


def run_extraction(
    images: ImageSet,
    prompts: Sequence[Prompts],
    options: EncodingOptions,
    *,
    quiet: bool,
    storage: str = "float16",
    encoder: Encoder | None = None,
    label: str = "images",
) -> Extraction:
    """Encode with a progress bar; Ctrl-C leaves what is done in the cache. `encoder` is loaded if it is not given."""
    changes = options.image_changes(images)
    loaded = options.load_encoder() if encoder is None else encoder
    second = options.load_second()
    texts = "class names" if label == "images" else f"{label}: class names"
    with progress_bar(label, len(images) * (1 if second is None else 2), quiet=quiet, unit="images") as bar:

        def on_step(what: str, done: int, total: int) -> None:
            bar(done if what == "images" else 0, texts if what == "texts" else label)

        while True:
            for one in (loaded, second):
                if one is not None:
                    _report_slow_steps(one, bar, quiet=quiet)
            try:
                return extract(
                    images,
                    loaded,
                    prompts,
                    second=second,
                    **changes,
                    cache=options.cache_folder,
                    workers=options.workers,
                    on_error=options.on_error,
                    storage=storage,
                    progress=on_step,
                )
            except EncoderChangedError as changed:
                print_warning(str(changed).split(" Fix:")[0] + "; it is encoded again")
                if changed.recorded is second:
                    second = changed.encoder
                else:
                    loaded = cast("Encoder", changed.encoder)


def _report_slow_steps(encoder: ImageEncoder, bar: ProgressBar, *, quiet: bool) -> None:
    """Say when the encoder is loaded after all, and show a bar of its own while the composed encoder fits its map."""
    if isinstance(encoder, RecordedImageEncoder):
        encoder.on_load = lambda: bar(0, f"loading {encoder.source}")
    if not isinstance(encoder, SentencePrototypes):
        return
    advance: Callable[[int], None] | None = None

    def on_fit(what: str, done: int, total: int) -> None:
        nonlocal advance
        if done == 0:
            once = "done once, then read" if what == FITTING else "later read"
            stored = "" if encoder.cache is None else f"; {once} from the cache"
            if not quiet and not console(stderr=True).is_terminal:
                typer.echo(f"{what}: {total:,} sentences{stored}", err=True)
            advance = bar.add_line(f"{what}{stored}", total, "sentences")
        elif advance is not None:
            advance(done)

    encoder.fit_progress = on_fit


def warn_about_images(extraction: Extraction) -> None:
    """Name the first few images that were skipped or read with a note, and count the rest."""
    skipped = [str(error) for error in extraction.skipped]
    notes = [f"{name}: {note}" for name, note in extraction.notes]
    for lines, verb in ((skipped, "skipped"), (notes, "read with a note")):
        for line in lines[:MOST_WARNINGS]:
            print_warning(line)
        if len(lines) > MOST_WARNINGS:
            print_warning(f"and {len(lines) - MOST_WARNINGS} more images {verb}; --json lists them all")


def check_encoder_options(encoder: str | None, *, revision: str | None, device: str, dtype: str) -> None:
    """Refuse options of an encoder if none is named."""
    given = {"--revision": revision is not None, "--device": device != AUTO, "--dtype": dtype != AUTO}
    without_encoder = [option for option, is_given in given.items() if is_given]
    if encoder is None and without_encoder:
        raise ValueError(f"{without_encoder[0]} needs an encoder. Fix: add --encoder SOURCE.")


def load_encoder_ref(encoder: str | None, *, revision: str | None, device: str, dtype: str) -> EncoderRef | None:
    """The encoder that features come from, loaded; None if none is named."""
    if encoder is None:
        return None
    with console(stderr=True).status(f"loading {encoder}"):
        return EncoderRef.named(encoder, device=device, dtype=dtype, revision=revision)


def check_on(on: str | None, *, jobs: bool = False) -> None:
    """Refuse another text than that of an executor, before anything is read; `jobs` says that --jobs is given too."""
    if on is None:
        return
    check_executor("--on", on)
    if on.startswith("ray"):
        check_packages(("ray", "ray"))
    if on.startswith("local:") and not int(on.removeprefix("local:")):
        raise ValueError(f"--on {on} has no processes. Fix: local:1.")
    if jobs:
        raise ValueError(f"--on {on} and --jobs both say how many processes work. Fix: leave out --jobs.")
