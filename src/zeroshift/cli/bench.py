"""`zeroshift bench`: how fast the engines are here, beside the definition and beside the bare matrix products."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from zeroshift.cli.console import console, print_json, print_warning

__all__ = ["bench"]

SIZE_PANEL = "What is measured"
WHERE_PANEL = "Where"


def bench(
    quick: Annotated[bool, typer.Option("--quick", help="Small sizes: a minute or two.")] = False,
    full: Annotated[bool, typer.Option("--full", help="Every size of the grid: long.")] = False,
    classes: Annotated[
        str | None, typer.Option(metavar="K,...", help="Numbers of classes.", rich_help_panel=SIZE_PANEL)
    ] = None,
    dimensions: Annotated[
        str | None, typer.Option(metavar="D,...", help="Dimensions.", rich_help_panel=SIZE_PANEL)
    ] = None,
    samples: Annotated[
        str | None, typer.Option(metavar="N,...", help="Lengths of the stream.", rich_help_panel=SIZE_PANEL)
    ] = None,
    on: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FEATURES", help="Real features instead: a file or pack:NAME.", rich_help_panel=SIZE_PANEL
        ),
    ] = None,
    engines: Annotated[
        str | None,
        typer.Option(metavar="NAME,...", help="Engines beside direct.", show_default="all", rich_help_panel=SIZE_PANEL),
    ] = None,
    steps: Annotated[int, typer.Option(help="Sampled steps at each point.", rich_help_panel=SIZE_PANEL)] = 3,
    repeats: Annotated[int, typer.Option(help="Runs of which the median counts.", rich_help_panel=SIZE_PANEL)] = 3,
    memory: Annotated[bool, typer.Option(help="Also peak memory.", rich_help_panel=SIZE_PANEL)] = True,
    library: Annotated[str, typer.Option(help="numpy or torch.", rich_help_panel=WHERE_PANEL)] = "numpy",
    device: Annotated[str, typer.Option(help="cpu or cuda.", rich_help_panel=WHERE_PANEL)] = "cpu",
    threads: Annotated[
        int | None,
        typer.Option(help="Threads of every product.", show_default="the library's", rich_help_panel=WHERE_PANEL),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="JSON file to write to, and to go on with.", show_default=False)
    ] = None,
    again: Annotated[bool, typer.Option("--again", help="Measure also what the file holds.")] = False,
    figures: Annotated[Path | None, typer.Option(help="Draw growth into this folder, as PNG and SVG.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace figures that exist.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the results as JSON.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar and no table.")] = False,
) -> None:
    """Time and memory of every engine, as ratios to the definition and to the bare matrix products.

    For example: zeroshift bench --classes 10,100 --dimensions 256 --samples 1000 --out bench.json
    """
    from zeroshift.benchmarks.bench import read_cells, run
    from zeroshift.benchmarks.figure import figure_paths, write_figures
    from zeroshift.benchmarks.tables import LEGEND, bench_tables, growth_table
    from zeroshift.benchmarks.words import warnings
    from zeroshift.cli.benching import checked_where, chosen_cells, progress
    from zeroshift.cli.targets import check_folder, check_targets

    where = checked_where(library, device, threads)
    cells, problems = chosen_cells(
        where, quick=quick, full=full, classes=classes, dimensions=dimensions, samples=samples, sources=on or [],
        engines=engines, steps=steps, repeats=repeats, memory=memory,
    )  # fmt: skip
    if out is not None:
        check_targets([out], inputs=[Path(source) for source in on or []], force=True)
        read_cells(out)
    drawings = [] if figures is None else figure_paths(figures)
    for path in drawings:
        if os.path.exists(path) and not force:
            raise FileExistsError(f"{path} exists. Fix: pass --force to replace it, or --figures another folder.")
    if figures is not None:
        check_folder(figures, drawings)

    with progress(cells, quiet=quiet) as on_step:
        record = run(cells, out=out, again=again, problems=problems, progress=on_step)
    if figures is not None:
        write_figures(figures, record["growth"])
    for warning in warnings(record["cells"]):
        print_warning(warning)
    if json:
        print_json({**record, "out": None if out is None else str(out), "figures": [str(path) for path in drawings]})
    elif not quiet:
        screen = console()
        for table in bench_tables(record["cells"]):
            screen.print(table)
        screen.print(growth_table(record["growth"]))
        screen.print(LEGEND, style="dim")
        for path in drawings if out is None else [out, *drawings]:
            screen.print(f"written: {path}", soft_wrap=True)
