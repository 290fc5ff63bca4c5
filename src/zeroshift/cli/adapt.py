"""`zeroshift adapt`: features in, predictions out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from zeroshift.cli import encoding_options as options
from zeroshift.cli.console import console, print_json, print_warning

__all__ = ["adapt"]

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
    encoder: options.EncoderBehind = None,
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

    from zeroshift.cli.adapting import Summary, run_and_write
    from zeroshift.cli.beside import ELSEWHERE, Beside
    from zeroshift.cli.encoder_behind import check_encoder_options, check_models, first_words, load_behind, models_for
    from zeroshift.cli.sources import is_pack, load_features
    from zeroshift.cli.starting import Start
    from zeroshift.cli.targets import check_targets
    from zeroshift.cli.views_given import check_views, gives_views
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
