"""`zeroshift compare`: all methods, any feature sets, one table; whatever stops it, it goes on where it was."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from zeroshift.cli import encoding_options as options
from zeroshift.cli.console import console, print_json, print_warning

__all__ = ["compare"]

RUNS, PAGE = "runs", "compare.html"

WHAT_PANEL = "What is compared"
SHOWN_PANEL = "What is shown"


def compare(
    features: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FEATURES",
            help="Labelled feature files, folders of them, or pack:NAME.",
            show_default="the bundled packs",
        ),
    ] = None,
    packs: Annotated[
        str | None,
        typer.Option(metavar="NAME,...", help="Bundled packs, or all without views.", rich_help_panel=WHAT_PANEL),
    ] = None,
    methods: Annotated[
        str,
        typer.Option(
            "--methods",
            "-m",
            metavar="NAME,...",
            help="Methods; NAME+support gives labelled samples too, NAME+views the views of each image. "
            "Or all, online, episodic, transductive, few-shot.",
            rich_help_panel=WHAT_PANEL,
        ),
    ] = "all",
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            "-s",
            metavar="METHOD.NAME=VALUE",
            help="A parameter of a method; as often as needed.",
            rich_help_panel=WHAT_PANEL,
        ),
    ] = None,
    orders: Annotated[
        int, typer.Option(help="Random orders of the stream, or draws of samples.", rich_help_panel=WHAT_PANEL)
    ] = 3,
    shots: Annotated[
        int,
        typer.Option(help="Labelled samples of a class for few-shot methods.", rich_help_panel=WHAT_PANEL),
    ] = 4,
    prompt: Annotated[
        str | None,
        typer.Option(help="Prompt mode of the prototypes.", show_default="each set's", rich_help_panel=WHAT_PANEL),
    ] = None,
    normalize: Annotated[
        bool, typer.Option("--normalize", help="Scale rows to unit length first.", rich_help_panel=WHAT_PANEL)
    ] = False,
    encoder: options.EncoderBehind = None,
    revision: options.Revision = None,
    device: options.Device = "auto",
    dtype: options.Dtype = "auto",
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the records and the page.")] = Path(
        "zeroshift-compare"
    ),
    again: Annotated[bool, typer.Option("--again", help="Do also the runs that are recorded.")] = False,
    jobs: Annotated[int, typer.Option(help="Processes. Times are comparable only with 1.")] = 1,
    by_set: Annotated[
        bool, typer.Option("--by-set", help="Also a table for each set.", rich_help_panel=SHOWN_PANEL)
    ] = False,
    markdown: Annotated[
        Path | None,
        typer.Option(
            help="Write the tables to this file, or between its <!-- compare --> and <!-- /compare -->.",
            rich_help_panel=SHOWN_PANEL,
        ),
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print everything as JSON.", rich_help_panel=SHOWN_PANEL)
    ] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="No progress bar and no table.", rich_help_panel=SHOWN_PANEL)
    ] = False,
) -> None:
    """Compare methods on labelled features: accuracy, gain over zero-shot, calibration, time, memory, encoder passes.

    Each run is recorded as it is done: the same command again goes on where it stopped.

    For example: zeroshift compare my-features.safetensors --methods online
    """
    from zeroshift.cli.compare_methods import chosen_contestants
    from zeroshift.cli.compare_runs import run_plan
    from zeroshift.cli.compare_sets import chosen_entries
    from zeroshift.cli.encoder_behind import check_encoder_options, load_behind
    from zeroshift.cli.targets import check_folder
    from zeroshift.evaluate import Ledger, plan, told
    from zeroshift.parameters import Number
    from zeroshift.report.compare_markdown import check_markdown, write_markdown
    from zeroshift.report.compare_page import check_page, write_page
    from zeroshift.report.compare_records import compare_record
    from zeroshift.report.compare_tables import compare_table, legend, remarks, set_tables

    for name, value, least in (("--orders", orders, 1), ("--shots", shots, 1), ("--jobs", jobs, 1)):
        Number(least, integer=True).check(name, value)
    check_encoder_options(encoder, revision=revision, device=device, dtype=dtype)
    # A wrong name is refused before any set is read.
    contestants = chosen_contestants(methods, settings or [], views=True, encoder=encoder is not None)
    if encoder is not None and not any(contestant.tunes_text for contestant in contestants):
        raise ValueError(
            "--encoder is for methods that tune its prompts, and none is compared. Fix: leave it out, or add -m tpt."
        )
    entries = chosen_entries(
        features or [], packs, prompt=prompt, normalize=normalize, names_matter=encoder is not None
    )
    views = any(entry.n_views for entry in entries)
    contestants = chosen_contestants(methods, settings or [], views=views, encoder=encoder is not None)
    behind = load_behind(encoder, revision=revision, device=device, dtype=dtype)
    planned = plan(entries, contestants, orders=orders, shots=shots, encoder=behind)
    for line in told(planned.left_out):
        print_warning(f"left out: {line}")
    if not planned.trials:
        raise ValueError(
            "no method is left to compare. Fix: see the reasons above; --set gives a method what it lacks."
        )
    check_page(out / PAGE)
    check_folder(out, [out / PAGE])
    check_folder(out / RUNS)
    if markdown is not None:
        check_markdown(markdown)

    standings = run_plan(planned, Ledger(out / RUNS), jobs=jobs, again=again, quiet=quiet)
    for failed in standings.failed:
        print_warning(f"failed: {failed.job}: {failed.error}")
    if standings.overall:
        write_page(out / PAGE, standings)
        if markdown is not None:
            write_markdown(markdown, standings)
    said = remarks(standings)
    if json:
        print_json({**compare_record(standings), "remarks": said, "out": str(out), "page": str(out / PAGE)})
    elif not quiet and standings.overall:
        screen = console()
        screen.print(compare_table(standings, screen.width))
        for title, table in set_tables(standings, screen.width) if by_set else ():
            screen.print(title, style="bold")
            screen.print(table)
        screen.print(" ".join([legend(standings, screen.width), *said]), style="dim")
        for path in (out / PAGE, *([markdown] if markdown else [])):
            screen.print(f"written: {path}", soft_wrap=True)
    if standings.failed:
        raise typer.Exit(1)
