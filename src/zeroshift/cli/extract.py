"""`zeroshift extract`: images and class names in, one file of features out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from zeroshift.cli import _encoder_options as options
from zeroshift.cli._encoder_options import EncodingOptions, check_on, run_extraction, warn_about_images
from zeroshift.cli._image_shards import has_image_shards, run_image_shards
from zeroshift.cli._inputs import load_images
from zeroshift.cli._output_paths import check_output_files, check_space
from zeroshift.cli._prompt_options import make_prompts
from zeroshift.cli._shards import PANEL as SHARDS_PANEL
from zeroshift.cli._shards import OnBadShard
from zeroshift.cli.console import console, print_json, print_warning
from zeroshift.encode.extraction import Extraction
from zeroshift.encode.sharded import IMAGES_PER_SHARD
from zeroshift.parameters import Choice
from zeroshift.report.formatting import counted, percent
from zeroshift.report.tables import ReportTable, summary_table

__all__ = ["extract"]

ROW_BYTES = {"float16": 1024, "float32": 2048}
"""Of features with 512 dimensions: a rough estimate of the file's size per image."""


def extract(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE",
            help="A folder, a .csv or .parquet table, an .npy array, a data set, or webdataset tars (a .tar file, a "
            "folder or URL of them).",
        ),
    ],
    out: Annotated[
        str,
        typer.Option(
            "--out",
            "-o",
            metavar="FILE",
            help="The .safetensors file to write; for tars or with --on, a folder.",
            rich_help_panel=options.OUTPUT_PANEL,
        ),
    ],
    data: options.Data = None,
    split: Annotated[
        str | None,
        typer.Option(
            metavar="train|val|test",
            help="Part of a data set.",
            show_default="test",
            rich_help_panel=options.SOURCE_PANEL,
        ),
    ] = None,
    labelled: options.Labelled = None,
    labels: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Labels of an .npy array (.npy).", rich_help_panel=options.SOURCE_PANEL),
    ] = None,
    classes: options.ClassNames = None,
    prompts: options.PromptModes = None,
    template: options.Template = None,
    templates: options.Templates = None,
    descriptions: options.Descriptions = None,
    encoder: options.EncoderChoice = None,
    second_encoder: options.SecondEncoder = None,
    revision: options.Revision = None,
    device: options.Device = "auto",
    dtype: options.Dtype = "auto",
    batch_size: options.BatchSize = None,
    views: options.Views = None,
    augmix: options.Augmix = False,
    corruption: options.Corruption = None,
    severity: options.Severity = None,
    made_for: options.MadeFor = None,
    seed: options.Seed = 0,
    workers: options.Workers = None,
    cache: options.Cache = None,
    no_cache: options.NoCache = False,
    on_error: options.OnError = "skip",
    on: options.On = None,
    on_bad_shard: OnBadShard = "raise",
    images_per_shard: Annotated[
        int,
        typer.Option(
            "--images-per-shard",
            metavar="N",
            min=1,
            help="With --on, images of a folder that become one file.",
            rich_help_panel=SHARDS_PANEL,
        ),
    ] = IMAGES_PER_SHARD,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="For shards: print what is left to do, and stop.", rich_help_panel=SHARDS_PANEL),
    ] = False,
    storage: Annotated[
        str,
        typer.Option(
            metavar="float16|float32",
            help="Precision of the features in the file.",
            rich_help_panel=options.OUTPUT_PANEL,
        ),
    ] = "float16",
    force: options.Force = False,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Encode images and class names into one file that every other command takes.

    Encoded images are cached: an interrupted run resumes, and prompts or classes can be added later. Images in tars
    become a folder in the layout of clip-retrieval, one file per tar; a run resumes after the last of them.

    For example: zeroshift extract photos/ --classes cat,dog --encoder composed --out features.safetensors
    """
    Choice(("float16", "float32")).check("--storage", storage)
    if on is not None or has_image_shards(source):
        check_on(on)
        Choice(("raise", "skip")).check("--on-bad-shard", on_bad_shard)
        run_image_shards(
            source, out,
            EncodingOptions(
                encoder=encoder, revision=revision, device=device, dtype=dtype, batch_size=batch_size, workers=workers,
                cache=cache, no_cache=no_cache, on_error=on_error,
            ),
            on=on, on_bad_shard=on_bad_shard, images_per_shard=images_per_shard, dry_run=dry_run, classes=classes,
            prompts=prompts, template=template, templates=templates, storage=storage, json=json, quiet=quiet,
            others={
                "--data": data, "--split": split, "--labelled": labelled is not None, "--labels": labels,
                "--descriptions": descriptions, "--second-encoder": second_encoder, "--views": views,
                "--augmix": augmix, "--corruption": corruption,
            },
        )  # fmt: skip
        return
    target = Path(out)
    if target.suffix != ".safetensors":
        raise ValueError(
            f"--out must end in .safetensors; got {out}. Fix: {out.removesuffix(target.suffix)}.safetensors."
        )
    inputs = [Path(given) for given in (source, classes, templates, descriptions) if given is not None]
    check_output_files([target], inputs=inputs, force=force)
    encoding = EncodingOptions(
        encoder=encoder, second_encoder=second_encoder, revision=revision, device=device, dtype=dtype,
        batch_size=batch_size, workers=workers, cache=cache, no_cache=no_cache, on_error=on_error, views=views,
        augmix=augmix, corruption=corruption, severity=severity, made_for=made_for, seed=seed,
    )  # fmt: skip
    images = load_images(
        source, classes=classes, root=data, split=split, corruption=corruption, severity=encoding.severity_or_default,
        labelled=labelled, labels=labels,
    )  # fmt: skip
    check_space(target, len(images) * (views or 1) * ROW_BYTES[storage])
    chosen_prompts = make_prompts(prompts, images, template=template, templates=templates, descriptions=descriptions)
    extraction = run_extraction(images, chosen_prompts, encoding, storage=storage, quiet=quiet)
    extraction.features.save(target)
    for hint in extraction.features.hints():
        print_warning(f"{source}: {hint}")
    if json:
        print_json(_record(extraction, target))
        return
    warn_about_images(extraction)
    if not quiet:
        console().print(_table(extraction, target))


def _record(extraction: Extraction, out: Path) -> dict[str, Any]:
    return {
        "out": str(out),
        **extraction.features.summary(),
        "computed": extraction.computed,
        "second": extraction.second,
        "second_computed": extraction.second_computed,
        "skipped": [{"image": error.name, "why": error.problem, "fix": error.fix} for error in extraction.skipped],
        "notes": [{"image": name, "note": note} for name, note in extraction.notes],
        "cut_prompts": dict(extraction.cut_prompts),
    }


def _table(extraction: Extraction, out: Path) -> ReportTable:
    features = extraction.features
    encoder = features.provenance["encoder"]
    count, computed = features.n_samples, extraction.computed
    entries = {
        "images": f"{count}, of which {computed} had to be encoded" if computed < count else str(count),
        "classes": str(features.n_classes),
        "encoder": f"{encoder['source']} ({encoder['family']}), d = {features.dimension}",
        "prompts": ", ".join(features.prompts),
    }
    if extraction.second is not None:
        count, name = extraction.second_computed, extraction.second
        encoded = f"; {count} images had to be encoded" if count < features.n_samples else ""
        entries["second encoder"] = f"{name}, d = {features.extra[name].shape[1]}{encoded}"
    if features.n_views:
        entries["views"] = f"{features.n_views} per image"
    if extraction.skipped:
        entries["skipped"] = counted(len(extraction.skipped), "image") + " that cannot be read"
    if features.labels is not None:
        entries["zero-shot"] = f"{percent(features.zero_shot_accuracy())}% ({features.default_prompt})"
    entries["features"] = str(out)
    return summary_table(entries)
