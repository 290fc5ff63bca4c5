"""`zeroshift adapt`: features in, predictions out."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any

import typer

from zeroshift import methods
from zeroshift.cli import _encoder_options as options
from zeroshift.cli._encoder_options import check_encoder_options
from zeroshift.cli._extra_inputs import OPTION_HINTS, ExtraInputs, add_second
from zeroshift.cli._inputs import (
    FeaturesKey,
    LabelsKey,
    PrototypesKey,
    check_exists,
    is_feature_file,
    is_pack,
    load_features,
    stores_logit_scale,
)
from zeroshift.cli._method_options import METHOD_PANEL, MethodOptions, Online, Settings, Transductive, choose_method
from zeroshift.cli._output_paths import check_output_files
from zeroshift.cli._prediction_options import PerClass, PredictionOptions, RejectAbove, TopK
from zeroshift.cli._prediction_summary import PredictionSummary
from zeroshift.cli._shards import (
    Column,
    DryRun,
    Exact,
    ExchangeEvery,
    FitRows,
    Metadata,
    OnBadShard,
    Replicas,
    ShardOptions,
    TaskRows,
    is_sharded,
)
from zeroshift.cli.console import console, print_json, print_warning
from zeroshift.cli.progress import progress_bar
from zeroshift.encode.prompts.user_text import without_blanks
from zeroshift.evaluate import StreamStep, compare, zero_shot_baseline
from zeroshift.features.checks import validate_class_names
from zeroshift.method import Method
from zeroshift.methods.inputs import SECOND, TEXT, resolve_inputs
from zeroshift.report.formatting import format_setting
from zeroshift.report.tables import ReportTable, summary_table

__all__ = ["adapt"]

MISSING_PANEL = "Missing from the file"
EXTRA_PANEL = "Additional inputs (feature files of the same encoder)"
SECOND_PANEL = "Additional inputs (another encoder)"
STATE_PANEL = "Saved state"


def adapt(
    features: Annotated[
        str,
        typer.Argument(
            metavar="FEATURES",
            help="A .safetensors, .npz, .npy or .pt file, pack:NAME, or a folder or URL of features in many files.",
        ),
    ],
    out: Annotated[
        str,
        typer.Option(
            "--out",
            "-o",
            metavar="FILE",
            help="Predictions: a .csv, .parquet or .npz file; of features in many files, a folder.",
            rich_help_panel=options.OUTPUT_PANEL,
        ),
    ],
    method: Annotated[
        str | None,
        typer.Option(
            "--method",
            "-m",
            metavar="METHOD",
            help="Name of a method: see `zeroshift methods`. With --state-in, the method of the state.",
            show_default="anchored_mixture_transductive, or anchored_mixture_online with --save-state",
            rich_help_panel=METHOD_PANEL,
        ),
    ] = None,
    online: Online = False,
    transductive: Transductive = False,
    settings: Settings = None,
    preset: Annotated[
        str | None,
        typer.Option(
            metavar="PRESET", help="The authors' own parameters for this data set.", rich_help_panel=METHOD_PANEL
        ),
    ] = None,
    prompt: Annotated[
        str | None,
        typer.Option(
            "--prompt",
            "--prompts",
            metavar="MODE",
            help="Prompt mode of the prototypes.",
            show_default="the file's",
            rich_help_panel=options.SOURCE_PANEL,
        ),
    ] = None,
    normalize: Annotated[
        bool,
        typer.Option("--normalize", help="Scale rows to unit length first.", rich_help_panel=options.SOURCE_PANEL),
    ] = False,
    prototypes: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Text features of the classes, (K, d), .npy or .pt.", rich_help_panel=MISSING_PANEL
        ),
    ] = None,
    labels: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Labels (.npy or .pt), used only to compute accuracy.", rich_help_panel=MISSING_PANEL
        ),
    ] = None,
    classes: Annotated[
        str | None,
        typer.Option(
            "--classes",
            "-c",
            "--class-names",
            metavar="NAMES",
            help="cat,dog,horse, or a text file with one name per line.",
            rich_help_panel=MISSING_PANEL,
        ),
    ] = None,
    logit_scale: Annotated[
        float | None,
        typer.Option(
            metavar="NUMBER",
            help="The encoder's logit scale (inverse temperature).",
            show_default="the file's, or 100",
            rich_help_panel=MISSING_PANEL,
        ),
    ] = None,
    features_key: FeaturesKey = None,
    prototypes_key: PrototypesKey = None,
    labels_key: LabelsKey = None,
    support: Annotated[
        Path | None,
        typer.Option(metavar="FEATURES", help="Labelled features, for few-shot methods.", rich_help_panel=EXTRA_PANEL),
    ] = None,
    validation: Annotated[
        Path | None,
        typer.Option(
            metavar="FEATURES", help="Labelled features, to choose parameters by.", rich_help_panel=EXTRA_PANEL
        ),
    ] = None,
    unlabelled: Annotated[
        Path | None,
        typer.Option(metavar="FEATURES", help="Unlabelled features (zlap_inductive).", rich_help_panel=EXTRA_PANEL),
    ] = None,
    views: Annotated[
        bool,
        typer.Option(
            "--views",
            help="Give the views of each image to a method that takes them optionally.",
            rich_help_panel=EXTRA_PANEL,
        ),
    ] = False,
    second: Annotated[
        str | None,
        typer.Option(
            "--second",
            metavar="FEATURES|NAME",
            help="Features of the same images from another encoder, for methods that take them: a feature file, or the "
            "name of extra features in FEATURES.",
            rich_help_panel=SECOND_PANEL,
        ),
    ] = None,
    encoder: options.FeatureEncoder = None,
    revision: options.Revision = None,
    device: options.Device = "auto",
    dtype: options.Dtype = "auto",
    state_in: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Resume from this state.", rich_help_panel=STATE_PANEL)
    ] = None,
    save_state: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Save the state of an online method here.", rich_help_panel=STATE_PANEL),
    ] = None,
    on: options.On = None,
    fit_rows: FitRows = None,
    exact: Exact = False,
    task_rows: TaskRows = None,
    on_bad_shard: OnBadShard = "raise",
    column: Column = None,
    replicas: Replicas = None,
    exchange_every: ExchangeEvery = None,
    metadata: Metadata = None,
    dry_run: DryRun = False,
    reject_above: RejectAbove = None,
    top_k: TopK = None,
    per_class: PerClass = False,
    raw_csv: options.RawCsv = False,
    force: options.Force = False,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Adapt a method to features and write its predictions next to those of zero-shot.

    The default method learns from the whole set at once; with --online or --save-state, row by row as stored.

    For example: zeroshift adapt pack:cifar10 --out predictions.csv
    """
    in_shards = ShardOptions(
        on, fit_rows, exact, task_rows, on_bad_shard, column, replicas, exchange_every, metadata, dry_run
    )  # fmt: skip
    if is_sharded(features) or in_shards.are_given:
        name = choose_method(method, online=online, transductive=transductive, saves_state=save_state is not None)
        in_shards.run(
            features, out,
            MethodOptions.parse(name, settings or [], logit_scale=logit_scale, preset=preset, hints=OPTION_HINTS),
            prototypes=prototypes, logit_scale=logit_scale, classes=classes, normalize=normalize, device=device,
            json=json, quiet=quiet, force=force, labels=labels, reject_above=reject_above, top_k=top_k,
            per_class=per_class,
            others={
                "--prompt": prompt, "--support": support, "--validation": validation,
                "--unlabelled": unlabelled, "--views": views, "--second": second, "--encoder": encoder,
                "--revision": revision, "--dtype": dtype != options.AUTO, "--state-in": state_in,
                "--save-state": save_state, "--raw-csv": raw_csv, "--features-key": features_key,
                "--prototypes-key": prototypes_key, "--labels-key": labels_key,
            },
        )  # fmt: skip
        return
    if not is_pack(features):
        check_exists(features)
    target = Path(out)
    written = PredictionOptions.parse(
        target, reject_above=reject_above, top_k=top_k, per_class=per_class, raw_csv=raw_csv
    )
    files = {"support": support, "validation": validation, "unlabelled": unlabelled}
    second_file = Path(second) if second is not None and is_feature_file(second) else None
    class_names = None if classes is None else _file_or_list(classes)
    names_file = class_names if isinstance(class_names, Path) else None
    read = (Path(features), prototypes, labels, names_file, second_file, *files.values())
    inputs = [path for path in read if path is not None]
    # The state may be saved over the one it came from: that is how a stream is resumed day after day.
    check_output_files([target, *([save_state] if save_state else [])], inputs=inputs, force=force)
    check_output_files([target], inputs=[state_in] if state_in else [], force=force)
    check_encoder_options(encoder, revision=revision, device=device, dtype=dtype)
    if state_in is None:
        name = choose_method(method, online=online, transductive=transductive, saves_state=save_state is not None)
        chosen = MethodOptions.parse(name, settings or [], logit_scale=logit_scale, preset=preset, hints=OPTION_HINTS)
    else:
        chosen = MethodOptions.parse_resumed(
            state_in, method, settings or [], transductive=transductive, logit_scale=logit_scale, preset=preset,
            hints=OPTION_HINTS,
        )  # fmt: skip
    extra = ExtraInputs.check(
        chosen, files, views=views, second=second, prompt=prompt, encoder=encoder, revision=revision, device=device,
        dtype=dtype,
    )  # fmt: skip
    keys = {"features_key": features_key, "prototypes_key": prototypes_key, "labels_key": labels_key}
    loaded = load_features(
        features, normalize=normalize, prototypes=prototypes, labels=labels, class_names=class_names,
        logit_scale=logit_scale, **keys,
    )  # fmt: skip
    written.check_size(loaded.n_classes, loaded.n_samples)
    second_name = None
    if second is not None:
        loaded, second_name = add_second(loaded, second, normalize=normalize)
    source = extra.source(loaded, features, prompt, normalize=normalize)
    if state_in is None:
        arguments = resolve_inputs(
            chosen.info, chosen.parameters, source, requested=extra.requested, hints=OPTION_HINTS
        )
        began = perf_counter()
        made = methods.create(chosen.info.name, **arguments)
    else:
        models = {TEXT: source[TEXT]()} if TEXT in source else {}
        began = perf_counter()
        made = chosen.resume(loaded, prompt, models)
    setup = perf_counter() - began
    # The labels of bundled packs were checked when the packs were made; a hint that they may be wrong would mislead.
    for hint in [] if is_pack(features) else loaded.hints(prompt):
        print_warning(f"{features}: {hint}")
    # A file that names its classes says which rows are the prototypes, and so does --classes.
    unnamed = class_names is None and loaded.class_names == validate_class_names(None, loaded.n_classes)
    if state_in is None and unnamed and loaded.n_classes > loaded.n_samples:
        print_warning(
            f"there are more prototypes ({loaded.n_classes:,} in {prototypes or features}) than samples "
            f"({loaded.n_samples:,} in {features}): check that the two {'files' if prototypes else 'arrays'} are not "
            "swapped"
        )
    with progress_bar(made.name, loaded.n_samples, quiet=quiet, counted=made.protocol != "transductive") as advance:

        def on_step(running: Method, step: StreamStep) -> None:
            if running is made:
                advance(step.stop - step.start, made.name)

        both = [zero_shot_baseline(made, loaded), made]
        comparison = compare(loaded, both, name=features, progress=on_step, views=views, second=second_name)
    # The state first: predictions can be made again from it, while predictions without it look like a complete run.
    if save_state is not None:
        made.save(save_state)
    rejects = written.rejects(made, comparison)
    written.write(comparison, rejects)
    scale_given = logit_scale is not None or "logit_scale" in chosen.parameters
    scale_saved = state_in is not None and hasattr(made, "logit_scale")
    summary = AdaptSummary(
        comparison,
        made,
        target,
        rejects,
        prompt=prompt,
        own_prompt=extra.own_prompt if encoder is not None else None,
        scale_assumed=not scale_given
        and not scale_saved
        and not stores_logit_scale(features, named_keys=any(keys.values())),
        second=second_name,
        given={**files, "second": second, "preset": preset, "text_encoder": encoder},
        setup_seconds=setup,
        saved_state=save_state,
        n_views=loaded.n_views if extra.uses_views else 0,
    )
    if json:
        print_json(summary.record())
    elif not quiet:
        console().print(summary.table())


def _file_or_list(names: str) -> Path | list[str]:
    """Class names: a list with commas unless that is a file. A file may repeat a name, as ImageNet's lists do.

    >>> _file_or_list("cat, dog")
    ['cat', 'dog']
    """
    if "," not in names or os.path.exists(names):
        return Path(names)
    return without_blanks(names.split(","), "--classes")


SHOWN_SETUP = 0.1
"""Least seconds of set-up that are shown: what a few-shot method needs to fit and to search."""


@dataclass(frozen=True)
class AdaptSummary(PredictionSummary):
    """The result, as a table and as a record."""

    given: Mapping[str, Path | str | None] = field(default_factory=dict)
    """Additional input files, preset and encoder; None for those not given."""
    setup_seconds: float = 0.0
    saved_state: Path | None = None
    n_views: int = 0
    """Views per image that the method was given; 0 if it was given the images alone."""

    @property
    def chosen(self) -> dict[str, Any] | None:
        """Parameters that the method chose itself; None for a method that chooses none."""
        found = getattr(self.method, "chosen", None)
        return found if isinstance(found, dict) else None

    def record(self) -> dict[str, Any]:
        return {
            **super().record(),
            "setup_seconds": self.setup_seconds,
            "chosen": self.chosen,
            **{name: None if value is None else str(value) for name, value in self.given.items()},
            "n_views": self.n_views,
            "saved_state": None if self.saved_state is None else str(self.saved_state),
        }

    def table(self) -> ReportTable:
        result, n_samples = self.comparison.results[-1], self.comparison.features.n_samples
        entries = {"features": self.size("sample"), **self.classifier_entries()}
        if self.second is None and SECOND in self.method.takes and (extra := self.comparison.features.extra):
            entries["extra features"] = (
                f"{', '.join(extra)}: not used; --second {next(iter(extra))} gives it to the method"
            )
        if self.n_views:
            entries["views"] = f"{self.n_views} per image"
        if self.chosen:
            entries["chosen"] = ", ".join(f"{name}={format_setting(value)}" for name, value in self.chosen.items())
        entries |= self.result_entries()
        if self.method.protocol == "online" and result.accuracy is not None:
            entries["order"] = "as stored; `zeroshift compare` shuffles the rows, so its accuracies differ"
        entries["seconds"] = f"{result.run.seconds:.2f} ({n_samples / max(result.run.seconds, 1e-9):,.0f} samples/s)"
        if self.setup_seconds > SHOWN_SETUP:
            entries["set-up"] = f"{self.setup_seconds:.2f} seconds before the run"
        entries["predictions"] = str(self.out)
        if self.saved_state is not None:
            entries["state"] = str(self.saved_state)
        return summary_table(entries | self.warning_entries())
