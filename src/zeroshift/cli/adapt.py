"""`zeroshift adapt`: features in, predictions out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from zeroshift.cli import _encoder_options as options
from zeroshift.cli.console import console, print_json, print_warning
from zeroshift.cli.progress import progress_bar
from zeroshift.evaluate import Comparison, StreamStep, compare, zero_shot_baseline
from zeroshift.features import FeatureSet
from zeroshift.method import Method
from zeroshift.report.formatting import counted, percent, points, setting
from zeroshift.report.predictions import write_predictions

if TYPE_CHECKING:
    from zeroshift.report.tables import ReportTable

__all__ = ["Summary", "adapt", "run_and_write"]


# The work of `zeroshift adapt` once everything has been checked: run, write, sum up.


SHOWN_SETUP = 0.01
"""Seconds of set-up worth a line: what a few-shot method needs to fit and to search."""


@dataclass(frozen=True)
class Summary:
    """What `zeroshift adapt` says at the end."""

    comparison: Comparison
    method: Method
    given: Mapping[str, Path | str | None]
    """The files it was given beside the features, the preset and the encoder; None where there was none."""
    setup_seconds: float
    out: Path
    saved_state: Path | None
    n_views: int = 0
    """Views of each image it was given; 0 where it saw the images alone."""
    words: str | None = None
    """Those it tunes, which zero-shot beside it has too, whatever the prompts of the set; None where it tunes none."""

    @property
    def chosen(self) -> dict[str, Any] | None:
        """Parameters the method found itself; None for one that does not say."""
        found = getattr(self.method, "chosen", None)
        return found if isinstance(found, dict) else None

    def record(self) -> dict[str, Any]:
        from zeroshift.report.comparisons import comparison_record

        record = comparison_record(self.comparison)
        zero_shot, adapted = record.pop("methods")
        return {
            "features": record.pop("name"),
            **record,
            **adapted,
            "setup_seconds": self.setup_seconds,
            "chosen": self.chosen,
            **{name: None if value is None else str(value) for name, value in self.given.items()},
            "n_views": self.n_views,
            "words": self.words,
            "zero_shot_accuracy": zero_shot["accuracy"],
            "out": str(self.out),
            "saved_state": None if self.saved_state is None else str(self.saved_state),
        }

    def table(self) -> ReportTable:
        from zeroshift.report.tables import summary_table

        result = self.comparison.results[-1]
        n_samples = self.comparison.features.n_samples
        sizes = f"{counted(n_samples, 'sample')}, {counted(self.comparison.features.n_classes, 'class', 'classes')}"
        entries = {"features": f"{self.comparison.name}: {sizes}", "method": result.method}
        if self.n_views:
            entries["views"] = f"{self.n_views} of each image"
        if self.chosen:
            entries["chosen"] = ", ".join(f"{name}={setting(value)}" for name, value in self.chosen.items())
        if result.accuracy is not None:
            entries["accuracy"] = f"{percent(result.accuracy)}%"
            own = "" if self.words is None else f', of its own words "{self.words}"'
            entries["zero-shot"] = f"{percent(self.comparison.baseline.accuracy)}%{own}"
            entries["gain"] = f"{points(self.comparison.gain(result))} points"
        changed = self.comparison.changed(result)
        entries["changed"] = f"{changed} of {n_samples} predictions differ from zero-shot"
        entries["seconds"] = f"{result.run.seconds:.2f} ({n_samples / max(result.run.seconds, 1e-9):,.0f} samples/s)"
        if self.setup_seconds > SHOWN_SETUP:
            entries["set-up"] = f"{self.setup_seconds:.2f} seconds before"
        entries["predictions"] = str(self.out)
        if self.saved_state is not None:
            entries["state"] = str(self.saved_state)
        return summary_table(entries)


def run_and_write(
    features: FeatureSet,
    method: Method,
    *,
    name: str,
    out: Path,
    save_state: Path | None,
    quiet: bool,
    views: bool = False,
) -> Comparison:
    """Run zero-shot and `method`, then write, where wanted, the state and last the predictions."""
    counted = method.protocol != "transductive"
    with progress_bar(method.name, features.n_samples, quiet=quiet, counted=counted) as advance:

        def on_step(running: Method, step: StreamStep) -> None:
            if running is method:
                advance(step.stop - step.start, method.name)

        both = [zero_shot_baseline(method, features), method]
        comparison = compare(features, both, name=name, progress=on_step, views=views)
    # The state first: predictions can be made again from it, but predictions without it would look like a whole run.
    if save_state is not None:
        method.save(save_state)
    write_predictions(out, comparison)
    return comparison


LACKS_PANEL = "What the file lacks"
BESIDE_PANEL = "What some methods take beside (feature files of the same encoder)"
STATE_PANEL = "What was learned"


def adapt(
    features: Annotated[
        str, typer.Argument(metavar="FEATURES", help="A .safetensors, .npz or .npy file, or pack:NAME.")
    ],
    out: Annotated[
        Path, typer.Option("--out", "-o", help="Predictions: a .csv, .parquet or .npz file.", show_default=False)
    ],
    method: Annotated[
        str | None, typer.Option("--method", "-m", help="See `zeroshift methods`.", show_default="adapt_online")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", "-s", metavar="NAME=VALUE", help="A parameter of the method; as often as needed."),
    ] = None,
    preset: Annotated[
        str | None, typer.Option(metavar="DATASET", help="The authors' own parameters for this data set.")
    ] = None,
    prompt: Annotated[
        str | None, typer.Option(help="Prompt mode of the prototypes.", show_default="the file's")
    ] = None,
    normalize: Annotated[bool, typer.Option("--normalize", help="Scale rows to unit length first.")] = False,
    prototypes: Annotated[
        Path | None, typer.Option(help="Text features of the classes, (K, d) .npy.", rich_help_panel=LACKS_PANEL)
    ] = None,
    labels: Annotated[
        Path | None, typer.Option(help="Class indices, .npy; only to count.", rich_help_panel=LACKS_PANEL)
    ] = None,
    class_names: Annotated[
        Path | None, typer.Option(help="Text file, one name a line.", rich_help_panel=LACKS_PANEL)
    ] = None,
    logit_scale: Annotated[
        float | None,
        typer.Option(help="The encoder's temperature.", show_default="100", rich_help_panel=LACKS_PANEL),
    ] = None,
    support: Annotated[
        Path | None, typer.Option(help="Labelled features, for few-shot methods.", rich_help_panel=BESIDE_PANEL)
    ] = None,
    validation: Annotated[
        Path | None,
        typer.Option(help="Labelled features, to choose parameters by.", rich_help_panel=BESIDE_PANEL),
    ] = None,
    unlabelled: Annotated[
        Path | None, typer.Option(help="Features a graph is made of (zlap_inductive).", rich_help_panel=BESIDE_PANEL)
    ] = None,
    views: Annotated[
        bool,
        typer.Option(
            "--views",
            help="Give the method the views of each image; one that needs them has them anyway.",
            rich_help_panel=BESIDE_PANEL,
        ),
    ] = False,
    encoder: options.FeatureEncoder = None,
    revision: options.Revision = None,
    device: options.Device = "auto",
    dtype: options.Dtype = "auto",
    state_in: Annotated[
        Path | None, typer.Option(help="Go on from this saved state.", rich_help_panel=STATE_PANEL)
    ] = None,
    save_state: Annotated[
        Path | None, typer.Option(help="Save the state at the end here.", rich_help_panel=STATE_PANEL)
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace files that exist.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar and no table.")] = False,
) -> None:
    """Adapt a method to features, in order, and write its predictions beside those of zero-shot.

    For example: zeroshift adapt pack:cifar10 --set bank_size=8 --out predictions.csv
    """
    from time import perf_counter

    from zeroshift.cli._encoder_options import check_encoder_options, check_models, first_words, load_behind, models_for
    from zeroshift.cli._extra_inputs import ELSEWHERE, Beside, check_views, gives_views
    from zeroshift.cli._inputs import is_pack, load_features
    from zeroshift.cli._method_options import Start
    from zeroshift.cli._output_paths import check_targets
    from zeroshift.report.predictions import check_format

    check_format(out)
    given = (prototypes, labels, class_names, support, validation, unlabelled)
    inputs = [Path(features), *(path for path in given if path is not None)]
    # The state may be saved over the one it came from: that is how a stream goes on day after day.
    check_targets([out, *([save_state] if save_state else [])], inputs=inputs, force=force)
    check_targets([out], inputs=[state_in] if state_in else [], force=force)
    check_encoder_options(encoder, revision=revision, device=device, dtype=dtype)
    start = Start.checked(method, settings or [], state_in, logit_scale, preset, ELSEWHERE)
    samples = Beside.checked(start.info, support=support, validation=validation, unlabelled=unlabelled, state=state_in)
    seen = gives_views(start.info, asked=views)
    check_models(start.info, encoder, prompt)
    beside = {"prototypes": prototypes, "labels": labels, "class_names": class_names, "logit_scale": logit_scale}
    loaded = load_features(features, normalize=normalize, beside=beside)
    if seen:
        check_views(start.info, loaded, features)
    arrays = samples.arrays(loaded, normalize=normalize)
    behind = load_behind(encoder, revision=revision, device=device, dtype=dtype)
    models = models_for(start.info, behind, loaded, features)
    began = perf_counter()
    made = start.method(loaded, prompt, arrays, models)
    setup = perf_counter() - began
    # The labels of bundled packs were checked when they were made; a hint that they may be wrong would mislead.
    for hint in [] if is_pack(features) else loaded.hints(prompt):
        print_warning(f"{features}: {hint}")
    comparison = run_and_write(loaded, made, name=features, out=out, save_state=save_state, quiet=quiet, views=views)
    given_with = {"support": support, "validation": validation, "unlabelled": unlabelled, "preset": preset}
    given_with["encoder"] = encoder
    words = first_words(start.info) if models else None
    summary = Summary(comparison, made, given_with, setup, out, save_state, loaded.n_views if seen else 0, words)
    if json:
        print_json(summary.record())
    elif not quiet:
        console().print(summary.table())
