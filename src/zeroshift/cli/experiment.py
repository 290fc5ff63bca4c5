"""`zeroshift experiment`: the paper's experiments by name, on packs, feature files or data sets on the disk."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from zeroshift.cli import encoding_options as options
from zeroshift.cli.console import console, print_json, print_warning

__all__ = ["experiment"]

DATA_PANEL = "Data sets on the disk"
SHOWN_PANEL = "What is written"

LIST = "list"


def experiment(
    names: Annotated[
        str | None, typer.Argument(metavar="NAME,...|all", help="Experiments; list shows them.", show_default=False)
    ] = None,
    features: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[FEATURES]...",
            help="Labelled feature files, folders of them, or pack:NAME.",
            show_default="the bundled packs",
        ),
    ] = None,
    packs: Annotated[str | None, typer.Option(metavar="NAME,...", help="Bundled packs, or all without views.")] = None,
    normalize: Annotated[bool, typer.Option("--normalize", help="Scale rows of files to unit length first.")] = False,
    orders: Annotated[int, typer.Option(help="Random orders of the stream, or draws of samples.")] = 3,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for records, features and report.html.")] = Path(
        "zeroshift-experiments"
    ),
    jobs: Annotated[
        int | None,
        typer.Option(help="Processes; runs that are timed are done alone.", show_default="the cores, at most 4"),
    ] = None,
    again: Annotated[bool, typer.Option("--again", help="Do also the runs that are recorded.")] = False,
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="ROOT",
            help="Folder the data sets lie below: see `zeroshift data check`.",
            rich_help_panel=DATA_PANEL,
        ),
    ] = None,
    data_sets: Annotated[
        str | None,
        typer.Option(metavar="ID,...", help="Of those.", show_default="all found", rich_help_panel=DATA_PANEL),
    ] = None,
    severities: Annotated[
        str | None,
        typer.Option(metavar="N,...", help="Of ImageNet-C.", show_default="all found", rich_help_panel=DATA_PANEL),
    ] = None,
    encoder: Annotated[
        list[str] | None,
        typer.Option(
            "--encoder",
            "-e",
            help="See `zeroshift encoders`; several times to set them side by side.",
            show_default="openai/clip-vit-base-patch16",
            rich_help_panel=DATA_PANEL,
        ),
    ] = None,
    prompts: Annotated[
        str | None,
        typer.Option(
            metavar="MODE,...",
            help="See `zeroshift prompts`; the first is what methods start from.",
            show_default="ensemble,vanilla,clip_template",
            rich_help_panel=DATA_PANEL,
        ),
    ] = None,
    descriptions: Annotated[
        Path | None,
        typer.Option(
            help="JSON file of sentences by class name, or a folder with the files of several data sets.",
            rich_help_panel=DATA_PANEL,
        ),
    ] = None,
    device: options.Device = "auto",
    dtype: options.Dtype = "auto",
    batch_size: options.BatchSize = None,
    workers: options.Workers = None,
    cache: options.Cache = None,
    no_cache: options.NoCache = False,
    figures: Annotated[
        Path | None, typer.Option(help="Folder for the figures, as SVG and PNG.", rich_help_panel=SHOWN_PANEL)
    ] = None,
    markdown: Annotated[Path | None, typer.Option(help="File for all of it.", rich_help_panel=SHOWN_PANEL)] = None,
    latex: Annotated[Path | None, typer.Option(help="Folder, a file a table.", rich_help_panel=SHOWN_PANEL)] = None,
    csv: Annotated[Path | None, typer.Option(help="Folder, a file a finding.", rich_help_panel=SHOWN_PANEL)] = None,
    paper: Annotated[
        bool, typer.Option("--paper", help="Print the paper's own tables too.", rich_help_panel=SHOWN_PANEL)
    ] = False,
    json: Annotated[
        bool, typer.Option("--json", help="Print everything as JSON.", rich_help_panel=SHOWN_PANEL)
    ] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="No progress and no tables.", rich_help_panel=SHOWN_PANEL)
    ] = False,
    open_report: Annotated[bool, typer.Option("--open", help="Open the report.", rich_help_panel=SHOWN_PANEL)] = False,
    list_them: Annotated[bool, typer.Option("--list", help="List the experiments and stop.")] = False,
) -> None:
    """Do experiments of the paper: each prints its table in the paper's shape; one HTML report holds them all.

    Each run is recorded as it is done: the same command again goes on where it stopped.

    For example: zeroshift experiment ablation,input-order --packs cifar10,cifar10c_fog_5
    """
    from zeroshift.cli.experiment_list import print_experiments

    if list_them or names == LIST:
        if features:
            raise ValueError(
                f"{LIST} shows all experiments and takes nothing else; got {features[0]!r}. Fix: zeroshift experiment "
                f"{LIST}, or the name of an experiment in its place."
            )
        print_experiments(as_json=json)
        return
    from zeroshift.cli.experiment_data import AUTO, DataSets
    from zeroshift.cli.experiment_names import chosen_experiments, retyped
    from zeroshift.cli.experiment_outputs import Outputs
    from zeroshift.cli.experiment_runs import RUNS, processes, run_investigation
    from zeroshift.cli.experiment_sets import chosen_suite
    from zeroshift.cli.signals import ending_on_signals
    from zeroshift.evaluate import Ledger
    from zeroshift.experiments import Investigation, Options
    from zeroshift.experiments.parts.experiment import MOST_ORDERS
    from zeroshift.parameters import Number

    sources = features or []
    Number(1, MOST_ORDERS, integer=True).check("--orders", orders)
    chosen = chosen_experiments(names, sources)
    count = processes(jobs)
    outputs = Outputs(out, figures=figures, markdown=markdown, latex=latex, csv=csv)
    on_disk = DataSets.asked(
        data, data_sets=data_sets, severities=severities, encoders=encoder or [], prompts=prompts,
        descriptions=descriptions, device=device, dtype=dtype, batch_size=batch_size, workers=workers, cache=cache,
        no_cache=no_cache,
    )  # fmt: skip
    outputs.check()
    command = retyped(
        {
            None: [names or "all", *sources], "--packs": packs, "--normalize": normalize, "--data": data,
            "--data-sets": data_sets, "--severities": severities, "--encoder": encoder or [], "--prompts": prompts,
            "--descriptions": descriptions, "--device": device if device != AUTO else None,
            "--dtype": dtype if dtype != AUTO else None, "--orders": orders if orders != Options().orders else None,
        }
    )  # fmt: skip
    with ending_on_signals():
        suite = chosen_suite(sources, packs, on_disk, out=out, normalize=normalize, quiet=quiet)
        investigation = Investigation.of(chosen, suite, Options(orders=orders))
        outcomes = run_investigation(investigation, Ledger(out / RUNS), jobs=count, again=again, quiet=quiet)
        chapters = investigation.chapters(outcomes)
        failed = list(dict.fromkeys(line for chapter in chapters for line in chapter.failed))
        for line in failed:
            print_warning(f"failed: {line}")
        written = outputs.write(chapters, suite, command=command, quiet=quiet)
    if json:
        print_json({**outputs.record(chapters, suite), "command": command, "written": list(map(str, written))})
    elif not quiet:
        outputs.show(chapters, written, paper=paper)
    else:
        console().print(f"report: {outputs.report}", soft_wrap=True)
    if open_report:
        typer.launch(outputs.report.resolve().as_uri())
    if failed:
        raise typer.Exit(1)
