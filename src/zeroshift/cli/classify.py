"""`zeroshift classify`: a folder of images and class names in, labels out. The command to try first."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from zeroshift import methods
from zeroshift.cli import _encoder_options as options
from zeroshift.cli import _stream_options as streams
from zeroshift.cli._encoder_options import EncodingOptions, run_extraction, warn_about_images
from zeroshift.cli._extra_inputs import check_takes_second
from zeroshift.cli._inputs import load_images
from zeroshift.cli._method_options import METHOD_PANEL, MethodOptions, Online, Settings, Transductive, choose_method
from zeroshift.cli._output_paths import check_output_files
from zeroshift.cli._prediction_options import PerClass, PredictionOptions, RejectAbove, TopK
from zeroshift.cli._prediction_summary import PredictionSummary
from zeroshift.cli._prompt_options import make_prompts
from zeroshift.cli._stream_options import FrameSequence, StreamOptions, StreamSummary
from zeroshift.cli.console import console, print_json
from zeroshift.cli.progress import progress_bar
from zeroshift.data.image_set import ImageSet
from zeroshift.encode.extraction import Extraction
from zeroshift.encode.prompts import Prompts
from zeroshift.evaluate import compare, zero_shot_baseline
from zeroshift.methods.inputs import OTHER, PYTHON_ONLY, SECOND, SETTING, feature_source, missing_input, resolve_inputs
from zeroshift.report.contact_sheet import MAX_IMAGES, THUMBS, check_contact_sheet_target, write_contact_sheet
from zeroshift.report.formatting import counted
from zeroshift.report.tables import ReportTable, summary_table
from zeroshift.report.timeline import write_segments

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["classify"]


def classify(
    source: Annotated[
        str,
        typer.Argument(
            metavar="IMAGES",
            help="A folder, an image, a .csv or .parquet table of paths, an .npy array, a data set or, with --stream, "
            "a video.",
        ),
    ],
    classes: options.ClassNames = None,
    out: Annotated[
        Path,
        typer.Option(
            "--out",
            "-o",
            metavar="FILE",
            help="Predictions: a .csv, .parquet or .npz file.",
            rich_help_panel=options.OUTPUT_PANEL,
        ),
    ] = Path("predictions.csv"),
    sheet: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="HTML page of the images by class.",
            show_default="next to --out",
            rich_help_panel=options.OUTPUT_PANEL,
        ),
    ] = None,
    no_sheet: Annotated[
        bool, typer.Option("--no-sheet", help="Write no page.", rich_help_panel=options.OUTPUT_PANEL)
    ] = False,
    method: Annotated[
        str | None,
        typer.Option(
            "--method",
            "-m",
            metavar="METHOD",
            help="Name of a method: see `zeroshift methods`.",
            show_default="anchored_mixture_transductive; the online mixture with --stream",
            rich_help_panel=METHOD_PANEL,
        ),
    ] = None,
    online: Online = False,
    transductive: Transductive = False,
    stream: streams.Stream = False,
    lag: streams.Lag = None,
    fps: streams.Fps = None,
    every: streams.Every = None,
    start: streams.Start = None,
    end: streams.End = None,
    labelled: options.Labelled = None,
    data: options.Data = None,
    settings: Settings = None,
    prompts: options.PromptMode = None,
    template: options.Template = None,
    templates: options.Templates = None,
    descriptions: options.Descriptions = None,
    encoder: options.EncoderChoice = None,
    second_encoder: options.SecondEncoder = None,
    revision: options.Revision = None,
    device: options.Device = "auto",
    dtype: options.Dtype = "auto",
    batch_size: options.BatchSize = None,
    workers: options.Workers = None,
    cache: options.Cache = None,
    no_cache: options.NoCache = False,
    on_error: options.OnError = "skip",
    reject_above: RejectAbove = None,
    top_k: TopK = None,
    per_class: PerClass = False,
    raw_csv: options.RawCsv = False,
    force: options.Force = False,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Classify images from class names alone, with a classifier that adapts to these images without labels.

    For example: zeroshift classify photos/ --classes cat,dog,horse --out predictions.csv
    """
    streaming = StreamOptions.parse(
        stream, out, transductive=transductive, lag=lag, fps=fps, every=every, start=start, end=end
    )
    is_online = online or (stream and method is None)
    name = choose_method(method, online=is_online, transductive=transductive)
    chosen_method = MethodOptions.parse(name, settings or [])
    if streaming is not None:
        chosen_method = streaming.check_method(chosen_method)
    held = {*chosen_method.parameters, *([SECOND] if second_encoder is not None else [])}
    if missing := missing_input(chosen_method.info, held, hints=CLASSIFY_HINTS):
        raise ValueError(f"--method {chosen_method.info.name} {missing}.")
    if second_encoder is not None:
        check_takes_second(chosen_method.info, "--second-encoder")
    if sheet is not None and no_sheet:
        raise ValueError("--sheet and --no-sheet contradict each other. Fix: give one.")
    written = PredictionOptions.parse(out, reject_above=reject_above, top_k=top_k, per_class=per_class, raw_csv=raw_csv)
    page = None if no_sheet else sheet or out.with_suffix(".html")
    inputs = [Path(given) for given in (source, classes, templates, descriptions) if given is not None]
    tables = [out] if streaming is None else [out, streaming.segments]
    check_output_files(tables, inputs=inputs, force=force)
    if page is not None:
        check_output_files([*tables, page], inputs=inputs, force=True)  # a page that zeroshift wrote may be replaced
        check_contact_sheet_target(page)
    encoding = EncodingOptions(
        encoder=encoder, second_encoder=second_encoder, revision=revision, device=device, dtype=dtype,
        batch_size=batch_size, workers=workers, cache=cache, no_cache=no_cache, on_error=on_error,
    )  # fmt: skip
    given: dict[str, Any] = {"classes": classes, "labelled": labelled, "root": data}
    sequence = None if streaming is None else streaming.load(source, **given)
    images = load_images(source, **given) if sequence is None else sequence.images
    chosen_prompts = make_prompts(prompts, images, template=template, templates=templates, descriptions=descriptions)
    if len(chosen_prompts) > 1:
        raise ValueError(
            f"classify takes one prompt mode; got {len(chosen_prompts)}. Fix: one mode, or --templates alone."
        )
    written.check_size(images.n_classes, len(images))
    command = format_command(
        source,
        switches=[
            *(["--online"] if online else []), *(["--stream"] if stream else []),
            *(["--unlabelled"] if labelled is False else []),
        ],
        options=[
            ("--lag", lag), ("--fps", fps), ("--every", every), ("--start", start), ("--end", end),
            ("--method", method), ("--classes", classes), ("--data", data), ("--prompts", prompts),
            ("--template", template), ("--templates", templates), ("--descriptions", descriptions),
            ("--encoder", encoder), ("--second-encoder", second_encoder), ("--revision", revision),
            ("--reject-above", reject_above),
            *(("--set", setting) for setting in settings or []),
        ],
    )  # fmt: skip
    summary = _classify_images(
        images, chosen_prompts, encoding, chosen_method, written=written, page=page, command=command, quiet=quiet,
        names_given=classes is not None, sequence=sequence,
    )  # fmt: skip
    if json:
        print_json(summary.record())
        return
    warn_about_images(summary.extraction)
    if not quiet:
        console().print(summary.table())
        if summary.stream is not None:
            console().print(summary.stream.table())


CLASSIFY_HINTS = {
    SECOND: "--second-encoder ENCODER",
    SETTING: "--set {name}=VALUE",
    **{name: f"{fix}; or another method" for name, fix in PYTHON_ONLY.items()},
    OTHER: "`zeroshift extract`, then `zeroshift adapt`, which takes it; or another method",
}


def format_command(source: str, *, switches: Sequence[str], options: Sequence[tuple[str, object]]) -> str:
    """The command that gives the same labels again; `options` that were not given have the value None."""
    parts = ["zeroshift", "classify", source, *switches]
    for option, value in options:
        if value is not None:
            parts += [option, str(value)]
    return shlex.join(parts)


def _classify_images(
    images: ImageSet,
    prompts: Sequence[Prompts],
    encoding: EncodingOptions,
    chosen: MethodOptions,
    *,
    written: PredictionOptions,
    page: Path | None,
    command: str,
    quiet: bool,
    names_given: bool,
    sequence: FrameSequence | None,
) -> ClassifySummary:
    """Encode the images, run zero-shot and the method, write the predictions and the page, which shows `command`."""
    label = "images" if sequence is None else "frames"
    extraction = run_extraction(images, prompts, encoding, quiet=quiet, label=label)
    features = extraction.features
    arguments = resolve_inputs(chosen.info, chosen.parameters, feature_source(features), hints=CLASSIFY_HINTS)
    method = methods.create(chosen.info.name, **arguments)
    if sequence is None:
        both = [zero_shot_baseline(method, features), method]
        comparison = compare(features, both, name=images.name, second=extraction.second)
        rejects, stream, seconds = written.rejects(method, comparison), None, None
    else:
        comparison, answers = sequence.classify(method, features, second=extraction.second)
        rejects = written.rejects(method, comparison, in_sequence=True)
        stream = StreamSummary(sequence, sequence.timeline(comparison, rejects), answers)
        seconds = stream.timeline.times if stream.timeline.in_seconds else None
    written.write(comparison, rejects, seconds=seconds)
    if stream is not None:
        write_segments(stream.segments, stream.timeline, raw_csv=written.raw_csv)
    if page is not None:
        # By name, because images that could not be read are not among the features.
        index = {images.images.name(i): i for i in range(len(images))}

        with progress_bar("page", min(features.n_samples, MAX_IMAGES), quiet=quiet, unit=label) as advance:

            def open_image(row: int) -> Image:
                assert features.sample_names is not None
                advance(1, "page")
                return images.images.open_reduced(index[features.sample_names[row]], THUMBS[0]).image

            timeline = None if stream is None else stream.timeline
            write_contact_sheet(
                page, comparison, rejects, open_image, title=images.name, command=command, timeline=timeline
            )
    return ClassifySummary(
        comparison=comparison, method=method, out=written.out, rejects=rejects, extraction=extraction, page=page,
        names_given=names_given, stream=stream, second=extraction.second,
    )  # fmt: skip


LABEL_SOURCES = {"folder": "the names of the sub-folders", "table": "the table's labels", "catalogue": "its labels"}
"""Where true labels come from, by the source of the images: users may not know that they gave any."""

SHOWN_CLASSES = 10
"""Classes whose images are counted in the table; the record has all."""


@dataclass(frozen=True, kw_only=True)
class ClassifySummary(PredictionSummary):
    """The result, as a table and as a record."""

    extraction: Extraction
    page: Path | None
    names_given: bool
    """Whether the user named the classes; otherwise the source of the images does."""
    stream: StreamSummary | None
    """What is reported in addition for frames in the order of time."""

    def record(self) -> dict[str, Any]:
        return {
            **super().record(),
            "computed": self.extraction.computed,
            "second": self.second,
            "skipped": [{"image": error.name, "why": error.problem} for error in self.extraction.skipped],
            "notes": [{"image": name, "note": note} for name, note in self.extraction.notes],
            "sheet": None if self.page is None else str(self.page),
            **({} if self.stream is None else self.stream.record()),
        }

    def table(self) -> ReportTable:
        label_source = LABEL_SOURCES.get(self.comparison.features.provenance["images"]["source"], "its own")
        classes = "" if self.names_given else f", which are {label_source}; --classes names others"
        what = "image" if self.stream is None else "frame"
        entries = {
            f"{what}s": f"{self.size(what)}{classes}",
            **({} if self.stream is None else self.stream.entries()),
            "found": self._found(),
            **self.classifier_entries(),
            **self.result_entries(f", by {label_source}"),
        }
        if self.extraction.skipped:
            entries["skipped"] = counted(len(self.extraction.skipped), "image") + " that cannot be read"
        entries["predictions"] = str(self.out)
        if self.stream is not None:
            entries["segments"] = str(self.stream.segments)
        if self.page is not None:
            entries["page"] = str(self.page)
        return summary_table(entries | self.warning_entries())

    def _found(self) -> str:
        """Images per predicted class, in the order of the classes; of many classes, the most frequent ones."""
        counts = self.counts()
        if self.rejects.count:
            counts[self.rejected_label] = self.rejects.count
        if len(counts) <= SHOWN_CLASSES:
            return ", ".join(f"{count} {name}" for name, count in counts.items() if count)
        often = sorted(counts.items(), key=lambda item: -item[1])[:SHOWN_CLASSES]
        shown = ", ".join(f"{count} {name}" for name, count in often if count)
        rest = sum(counts.values()) - sum(count for _, count in often)
        return f"{shown}, {rest:,} of other classes" if rest else shown
