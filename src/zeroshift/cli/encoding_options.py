"""Options that every command with an encoder has, each said once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = [
    "Augmix", "BatchSize", "Cache", "ClassNames", "Corruption", "Descriptions", "Device", "Dtype", "Encoder",
    "EncoderBehind", "Force", "Json", "Labelled", "MadeFor", "NoCache", "OnError", "PromptModes", "Quiet",
    "Revision", "Seed", "Severity", "Template", "Templates", "Views", "Workers",
]  # fmt: skip

SOURCE_PANEL = "What is read"
TEXT_PANEL = "What is said of the classes"
MODEL_PANEL = "The encoder"
IMAGE_PANEL = "What is done to the images"
RUN_PANEL = "How it runs"

Encoder = Annotated[
    str | None,
    typer.Option(
        "--encoder", "-e", help="A hub id, a model's folder, or composed: see `zeroshift encoders`.",
        show_default="openai/clip-vit-base-patch16", rich_help_panel=MODEL_PANEL,
    ),
]  # fmt: skip
EncoderBehind = Annotated[
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
