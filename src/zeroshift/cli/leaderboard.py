"""`zeroshift leaderboard`: the methods of a comparison ranked, from its records."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from zeroshift.cli import _encoder_options as options
from zeroshift.cli._inputs import split_names
from zeroshift.cli._output_paths import check_outputs
from zeroshift.cli.console import console, print_json, print_warning
from zeroshift.evaluate.leaderboard import DRAWS, NEEDS, Leaderboard, build_leaderboard
from zeroshift.evaluate.protocols import PROTOCOLS, find_protocol
from zeroshift.evaluate.results import collect
from zeroshift.report.compare_tables import check_markdown, write_section
from zeroshift.report.formatting import counted
from zeroshift.report.leaderboard import (
    LEADERBOARD_MARKS,
    leaderboard_markdown,
    leaderboard_record,
    leaderboard_table,
    remarks,
    time_figure,
    write_leaderboard_page,
)
from zeroshift.report.style import save_figure

__all__ = ["LEADERBOARD", "leaderboard", "show_leaderboard"]

LEADERBOARD = "leaderboard.html"

FILTER_PANEL = "Filter"


def leaderboard(
    folders: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="FOLDER", help="Folders that zeroshift compare wrote to.", show_default="zeroshift-compare"
        ),
    ] = None,
    protocol: Annotated[
        str | None,
        typer.Option(
            metavar="EVALUATION",
            help=f"Only runs of this protocol, averaged as it does: {', '.join(PROTOCOLS)}.",
            show_default="runs of a plain comparison, all streams averaged",
            rich_help_panel=FILTER_PANEL,
        ),
    ] = None,
    methods: Annotated[
        str | None,
        typer.Option(
            "--methods", "-m", "--method", metavar="METHOD,...", help="Only these.", rich_help_panel=FILTER_PANEL
        ),
    ] = None,
    groups: Annotated[
        str | None,
        typer.Option(
            metavar="PROTOCOL,...", help="Only online, episodic, transductive, few-shot.", rich_help_panel=FILTER_PANEL
        ),
    ] = None,
    sets: Annotated[
        str | None, typer.Option(metavar="NAME,...", help="Only these sets.", rich_help_panel=FILTER_PANEL)
    ] = None,
    streams: Annotated[
        str | None,
        typer.Option(metavar="STREAM,...", help="Only these streams, such as random.", rich_help_panel=FILTER_PANEL),
    ] = None,
    without: Annotated[
        str | None,
        typer.Option(
            metavar="NEED,...",
            help=f"Leave out methods that need one of: {', '.join(NEEDS)}.",
            rich_help_panel=FILTER_PANEL,
        ),
    ] = None,
    baseline: Annotated[
        str | None,
        typer.Option(
            metavar="METHOD",
            help="Also the difference of every method to this one, with its interval.",
            rich_help_panel=options.OUTPUT_PANEL,
        ),
    ] = None,
    draws: Annotated[
        int,
        typer.Option(metavar="N", help="Bootstrap draws of the intervals.", rich_help_panel=options.OUTPUT_PANEL),
    ] = DRAWS,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            metavar="FOLDER",
            help="Folder for the page.",
            show_default="the first FOLDER",
            rich_help_panel=options.OUTPUT_PANEL,
        ),
    ] = None,
    markdown: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help=f"Write the table to this file, or between its {' and '.join(LEADERBOARD_MARKS)}.",
            rich_help_panel=options.OUTPUT_PANEL,
        ),
    ] = None,
    figure: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write the picture of accuracy and time: .svg or .png.",
            rich_help_panel=options.OUTPUT_PANEL,
        ),
    ] = None,
    force: options.Force = False,
    json: Annotated[
        bool, typer.Option("--json", help="Print everything as JSON.", rich_help_panel=options.OUTPUT_PANEL)
    ] = False,
) -> None:
    """Rank the methods of a comparison: accuracy with its uncertainty, calibration, worst stream, time, memory, needs.

    Reads the records of zeroshift compare and runs nothing. Methods are tied where a paired bootstrap of the samples
    cannot tell them apart.

    For example: zeroshift leaderboard zeroshift-compare --without support,order
    """
    places = folders or [Path("zeroshift-compare")]
    if not folders and not places[0].is_dir():
        raise FileNotFoundError("there is no folder zeroshift-compare here. Fix: zeroshift compare, or name a folder.")
    evaluation = None if protocol is None else find_protocol(protocol)
    if figure is not None and figure.suffix not in (".svg", ".png"):
        raise ValueError(f"--figure must end with .svg or .png; got {figure}. Fix: {figure.with_suffix('.svg')}.")
    page = (places[0] if out is None else out) / LEADERBOARD
    check_outputs(pages=[page], files=[] if figure is None else [figure], force=force)
    selection = {"-m": methods, "--groups": groups, "--sets": sets, "--streams": streams, "--without": without}
    if not force and os.path.exists(page) and (given := [option for option, value in selection.items() if value]):
        raise FileExistsError(
            f"{page} exists, and {given[0]} leaves out part of what it may show. Fix: --out another folder, or pass "
            "--force to replace it."
        )
    if markdown is not None:
        check_markdown(markdown, LEADERBOARD_MARKS)
    found = collect(places, outcomes=True)
    for path in found.damaged:
        print_warning(f"skipped: {path} contains no readable record, or one that was changed after it was written")
    for path in found.newer:
        print_warning(f"skipped: {path} needs a newer zeroshift")
    if found.outdated:
        print_warning(f"skipped: {counted(found.outdated, 'record')} of the same runs by older code")
    board = build_leaderboard(
        found.rows,
        protocol=evaluation,
        methods=_names(methods),
        groups=_names(groups),
        streams=_names(streams),
        sets=_names(sets),
        without=_names(without),
        baseline=baseline,
        draws=draws,
    )
    if figure is not None:
        save_figure(time_figure(board), figure.parent, figure.stem, [figure.suffix])
    show_leaderboard(board, page=page, markdown=markdown, json=json, quiet=False, figure=figure)


def _names(text: str | None) -> list[str]:
    return [] if text is None else split_names(text)


def show_leaderboard(
    board: Leaderboard,
    *,
    page: Path,
    markdown: Path | None,
    json: bool,
    quiet: bool,
    figure: Path | None = None,
) -> None:
    """Write the page and the Markdown, and print the table or JSON."""
    write_leaderboard_page(page, board, command=shlex.join(["zeroshift", *sys.argv[1:]]))
    if markdown is not None:
        write_section(markdown, leaderboard_markdown(board), LEADERBOARD_MARKS)
    if json:
        print_json({**leaderboard_record(board), "page": str(page)})
    elif not quiet:
        screen = console()
        screen.print(leaderboard_table(board))
        screen.print(" ".join(remarks(board)), style="dim")
        for path in (page, markdown, figure):
            if path is not None:
                screen.print(f"written: {path}", soft_wrap=True)
