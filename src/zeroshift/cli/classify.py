"""`zeroshift classify`: a folder of images and class names in, labels out. The first thing to try."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from zeroshift.cli import encoding_options as options
from zeroshift.cli.console import console, print_json

__all__ = ["classify"]


def classify(
    source: Annotated[
        str, typer.Argument(metavar="FOLDER", help="Images: a folder, a .csv or .parquet table, or an .npy array.")
    ],
    classes: options.ClassNames = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="Predictions: a .csv or .parquet file.")] = Path(
        "predictions.csv"
    ),
    sheet: Annotated[
        Path | None,
        typer.Option(help="HTML page of the most changed and least certain images.", show_default="beside --out"),
    ] = None,
    no_sheet: Annotated[bool, typer.Option("--no-sheet", help="Write no page.")] = False,
    method: Annotated[
        str | None,
        typer.Option("--method", "-m", help="See `zeroshift methods`.", show_default="anchored_mixture_transductive"),
    ] = None,
    online: Annotated[bool, typer.Option("--online", help="Learn image by image, in the order of the files.")] = False,
    transductive: Annotated[
        bool, typer.Option("--transductive", help="Learn from all images at once; the default.")
    ] = False,
    labelled: options.Labelled = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", "-s", metavar="NAME=VALUE", help="A parameter of the method; as often as needed."),
    ] = None,
    prompts: options.PromptModes = None,
    template: options.Template = None,
    templates: options.Templates = None,
    descriptions: options.Descriptions = None,
    encoder: options.Encoder = None,
    revision: options.Revision = None,
    device: options.Device = "auto",
    dtype: options.Dtype = "auto",
    batch_size: options.BatchSize = None,
    workers: options.Workers = None,
    cache: options.Cache = None,
    no_cache: options.NoCache = False,
    on_error: options.OnError = "skip",
    force: options.Force = False,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Classify images by the names of the classes, adapted to these very images, without a single label.

    For example: zeroshift classify photos/ --classes cat,dog,horse --out predictions.csv
    """
    from zeroshift.cli.classifying import check_complete, classify_images, method_name, sheet_path, typed
    from zeroshift.cli.encoding import EncodingOptions, tell_images
    from zeroshift.cli.image_sources import load_images
    from zeroshift.cli.prompting import chosen_prompts
    from zeroshift.cli.starting import Start
    from zeroshift.cli.targets import check_targets
    from zeroshift.report.classifications import check_classifications_format
    from zeroshift.report.contact_sheet import check_contact_sheet_target

    chosen_method = method_name(method, online=online, transductive=transductive)
    if sheet is not None and no_sheet:
        raise ValueError("--sheet and --no-sheet contradict each other. Fix: give one.")
    check_classifications_format(out)
    page = None if no_sheet else sheet_path(out, sheet)
    read = [Path(given) for given in (source, classes, templates, descriptions) if given is not None]
    check_targets([out], inputs=read, force=force)
    if page is not None:
        check_targets([out, page], inputs=read, force=True)  # a page of ours may be replaced
        check_contact_sheet_target(page)
    start = Start.checked(chosen_method, settings or [], None)
    check_complete(start)
    chosen = EncodingOptions(
        encoder=encoder, revision=revision, device=device, dtype=dtype, batch_size=batch_size, workers=workers,
        cache=cache, no_cache=no_cache, on_error=on_error,
    )  # fmt: skip
    images = load_images(source, classes=classes, labelled=labelled)
    asked = chosen_prompts(prompts, images, template=template, templates=templates, descriptions=descriptions)
    if len(asked) > 1:
        raise ValueError(f"classify takes one way of prompting; got {len(asked)}. Fix: one mode, or --templates alone.")
    switches = [*(["--online"] if online else []), *(["--unlabelled"] if labelled is False else [])]
    deciding = [
        ("--method", method), ("--classes", classes), ("--prompts", prompts), ("--template", template),
        ("--templates", templates), ("--descriptions", descriptions), ("--encoder", encoder), ("--revision", revision),
        *(("--set", setting) for setting in settings or []),
    ]  # fmt: skip
    command = typed(source, switches=switches, options=deciding)
    done = classify_images(images, asked, chosen, start, out=out, page=page, command=command, quiet=quiet)
    if json:
        print_json(done.record())
        return
    tell_images(done.extraction)
    if not quiet:
        console().print(done.table())
