"""`zeroshift classify`: a folder of images and class names in, labels out. The first thing to try."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from zeroshift import methods
from zeroshift.cli import _encoder_options as options
from zeroshift.cli._encoder_options import EncodingOptions, run_extraction
from zeroshift.cli._method_options import Start
from zeroshift.cli.console import console, print_json
from zeroshift.data.image_set import ImageSet
from zeroshift.encode.extraction import Extraction
from zeroshift.encode.prompts import Prompts
from zeroshift.evaluate import Comparison, compare, zero_shot_baseline
from zeroshift.evaluate.metrics.reject import reject_scores
from zeroshift.parameters import Model
from zeroshift.report.contact_sheet import write_contact_sheet
from zeroshift.report.formatting import counted, method_label, percent, points
from zeroshift.report.predictions import write_classifications
from zeroshift.report.tables import ReportTable, summary_table

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["Classified", "classify", "classify_images", "method_name", "sheet_path", "typed"]


# The work of `zeroshift classify` once everything has been checked: encode, adapt, write, sum up.


DEFAULT_METHODS = {"online": "anchored_mixture_online", "transductive": "anchored_mixture_transductive"}
"""Ahead of ADAPT on average, better calibrated, and losing less on a few images or a few of the classes: README."""

LABELLED_BY = {"folder": "the names of the sub-folders", "table": "the table's labels", "catalogue": "its labels"}
"""Where the true labels are from, by the source of the images, for readers who never gave any."""


def method_name(name: str | None, *, online: bool, transductive: bool) -> str:
    """The method asked for by `--method`, `--online` and `--transductive`, or the default; refused where they disagree.

    >>> method_name(None, online=False, transductive=False), method_name(None, online=True, transductive=False)
    ('anchored_mixture_transductive', 'anchored_mixture_online')
    """
    if online and transductive:
        raise ValueError("--online and --transductive are two ways of learning. Fix: give one.")
    way = "online" if online else "transductive"
    if name is None:
        return DEFAULT_METHODS[way]
    info = methods.get(name)
    if (online or transductive) and info.protocol != way:
        raise ValueError(
            f"--{way} and --method {name} contradict each other: {name} is {info.protocol}. Fix: leave out --{way}."
        )
    # What is a number can be said with --set; what is left are arrays, models and views.
    numbers = {known for known, allowed in info.cls.constraints.items() if not isinstance(allowed, Model)}
    missing = [need for need in info.needs if need != "prototypes" and need not in numbers]
    if missing:
        raise ValueError(
            f"--method {name} needs {' and '.join(missing)}, and classify has the images and the names of the classes "
            "alone. Fix: `zeroshift extract` and then `zeroshift adapt`, which take what it needs; or another method."
        )
    return name


def check_complete(start: Start) -> None:
    """Refuse, before anything is encoded, a method whose numbers without defaults were not set."""
    for parameter in start.info.parameters:
        if parameter.required and parameter.name not in {"prototypes", *start.parameters}:
            raise ValueError(
                f"--method {start.info.name} needs {parameter.name} ({parameter.allowed}), which has no default. "
                f"Fix: --set {parameter.name}=VALUE."
            )


def typed(source: str, *, switches: Sequence[str], options: Sequence[tuple[str, object]]) -> str:
    """What to type to get the same labels again; `options` that were not given have None as value."""
    parts = ["zeroshift", "classify", source, *switches]
    for option, value in options:
        if value is not None:
            parts += [option, str(value)]
    return shlex.join(parts)


def sheet_path(out: Path, sheet: Path | None) -> Path:
    return out.with_suffix(".html") if sheet is None else sheet


@dataclass(frozen=True)
class Classified:
    """What `zeroshift classify` says at the end."""

    comparison: Comparison
    extraction: Extraction
    out: Path
    page: Path | None

    def counts(self) -> dict[str, int]:
        names = self.comparison.features.class_names
        found = Counter(self.comparison.results[-1].predictions.tolist())
        return {name: found[k] for k, name in enumerate(names)}

    def record(self) -> dict[str, Any]:
        features, result = self.comparison.features, self.comparison.results[-1]
        return {
            "images": features.n_samples,
            "classes": list(features.class_names),
            "encoder": features.provenance["encoder"],
            "method": result.method,
            "changed": self.comparison.changed(result),
            "counts": self.counts(),
            "accuracy": result.accuracy,
            "zero_shot_accuracy": self.comparison.baseline.accuracy,
            "computed": self.extraction.computed,
            "skipped": [{"image": error.name, "why": error.problem} for error in self.extraction.skipped],
            "notes": [{"image": name, "note": note} for name, note in self.extraction.notes],
            "out": str(self.out),
            "sheet": None if self.page is None else str(self.page),
        }

    def table(self) -> ReportTable:
        features, result = self.comparison.features, self.comparison.results[-1]
        changed = self.comparison.changed(result)
        entries = {
            "images": str(features.n_samples),
            "found": ", ".join(f"{count} {name}" for name, count in self.counts().items()),
            "method": f"{method_label(result.method)} ({result.method})",
            "changed": f"{changed} of {features.n_samples} labels differ from zero-shot",
        }
        if result.accuracy is not None:
            gain = points(self.comparison.gain(result))
            entries["accuracy"] = (
                f"{percent(result.accuracy)}%, zero-shot {percent(self.comparison.baseline.accuracy)}% ({gain}), "
                f"by {LABELLED_BY[features.provenance['images']['source']]}"
            )
        if self.extraction.skipped:
            entries["left out"] = counted(len(self.extraction.skipped), "image") + " that cannot be read"
        entries["predictions"] = str(self.out)
        if self.page is not None:
            entries["to look at"] = str(self.page)
        return summary_table(entries)


def classify_images(
    images: ImageSet,
    prompts: Sequence[Prompts],
    options: EncodingOptions,
    start: Start,
    *,
    out: Path,
    page: Path | None,
    command: str,
    quiet: bool,
) -> Classified:
    """Encode the images, run zero-shot and the method, write the predictions and the page, which cites `command`."""
    extraction = run_extraction(images, prompts, options, storage="float16", quiet=quiet)
    features = extraction.features
    method = start.method(features, None)
    comparison = compare(features, [zero_shot_baseline(method, features), method], name=images.name)
    rejected = reject_scores(features)
    write_classifications(out, comparison, rejected)
    if page is not None:
        # By name, because images that could not be read are not among the features.
        places = {images.images.name(i): i for i in range(len(images))}

        def open_image(row: int) -> Image:
            assert features.sample_names is not None
            return images.images.open(places[features.sample_names[row]]).image

        write_contact_sheet(page, comparison, rejected, open_image, title=images.name, command=command)
    return Classified(comparison, extraction, out, page)


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
    encoder: options.EncoderChoice = None,
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
    from zeroshift.cli._encoder_options import EncodingOptions, tell_images
    from zeroshift.cli._inputs import load_images
    from zeroshift.cli._method_options import Start
    from zeroshift.cli._output_paths import check_targets
    from zeroshift.cli._prompt_options import chosen_prompts
    from zeroshift.report.contact_sheet import check_contact_sheet_target
    from zeroshift.report.predictions import check_classifications_format

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
