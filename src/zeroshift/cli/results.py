"""`zeroshift results`: the records of any number of folders as one table."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from zeroshift.cli.console import console, print_json, print_warning

__all__ = ["results"]

WHICH_PANEL = "Which runs"
SHOWN_PANEL = "What is shown"


def results(
    folders: Annotated[
        list[Path],
        typer.Argument(
            metavar="FOLDER...", help="Folders that compare or experiment wrote to, or copies of their runs."
        ),
    ],
    where: Annotated[
        list[str] | None,
        typer.Option(
            "--where",
            "-w",
            metavar="NAME=VALUE",
            help="Only runs of which this holds; also !=, and in quotes < > <= >=. As often as needed.",
            rich_help_panel=WHICH_PANEL,
        ),
    ] = None,
    by: Annotated[
        str | None,
        typer.Option(
            metavar="NAME,...", help="A row for all runs that agree in these fields.", rich_help_panel=SHOWN_PANEL
        ),
    ] = None,
    columns: Annotated[
        str | None, typer.Option(metavar="NAME,...", help="Fields to show of each run.", rich_help_panel=SHOWN_PANEL)
    ] = None,
    sort: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="By this column; -NAME for the greatest first.", rich_help_panel=SHOWN_PANEL),
    ] = None,
    csv: Annotated[Path | None, typer.Option(help="Also write the table to this file.")] = None,
    markdown: Annotated[Path | None, typer.Option(help="Also write the table to this file.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace files that exist.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the rows as JSON.")] = False,
    fields: Annotated[bool, typer.Option("--fields", help="List the fields of the records and stop.")] = False,
) -> None:
    """Merge the records of runs, choose among them and sum them up.

    A run that lies in several folders counts once, the newest; so does one that older code did too. Fields go by their
    names in the records, settings too: settings.alpha. Accuracies are fractions of one there, gains are points.

    For example: zeroshift results zeroshift-experiments --where contestant=tda --by features
    """
    from zeroshift.cli.results_rows import grouped_rows, run_rows
    from zeroshift.cli.results_table import results_table, write_csv, write_markdown
    from zeroshift.cli.targets import check_targets
    from zeroshift.evaluate.results import collect, field_names
    from zeroshift.evaluate.results_where import Condition
    from zeroshift.report.words import counted

    conditions = [Condition.parse(text) for text in where or []]
    for option, target in (("csv", csv), ("md", markdown)):
        if target is not None and target.is_dir():
            fix = target / f"results.{option}"
            raise ValueError(f"{target} is a folder; the name of a file is needed. Fix: {fix}.")
    check_targets([path for path in (csv, markdown) if path is not None], inputs=[], force=force)
    if by is not None and columns is not None:
        raise ValueError("--by has columns of its own; got --columns too. Fix: leave out one of them.")
    found = collect(folders)
    for paths, why in ((found.damaged, "holds no record that can be read"), (found.newer, "needs a newer zeroshift")):
        for path in paths:
            print_warning(f"left out: {path} {why}")
    if found.outdated:
        print_warning(f"left out: {counted(found.outdated, 'record')} of other code that did the same work before")
    if not found.records:
        named = ", ".join(map(str, folders))
        raise ValueError(f"no records of runs in {named}. Fix: a folder that compare or experiment wrote to.")
    if fields:
        names = field_names(found.records)
        if json:
            print_json(names)
        else:
            console().print("\n".join(names), soft_wrap=True)
        return
    for condition in conditions:
        condition.check(found.records)
    chosen = list(found.records)
    for place, condition in enumerate(conditions):
        left = [record for record in chosen if condition.holds(record)]
        if chosen and not left:
            print_warning(condition.why_none(chosen, conditions[:place]))
        chosen = left
    make = run_rows if by is None else grouped_rows
    rows = make(chosen, columns if by is None else by, sort, of=found.records)
    writers = {csv: write_csv, markdown: write_markdown}
    written = [target for target in (csv, markdown) if target is not None and rows.rows]
    if not rows.rows and (csv or markdown):
        print_warning("no run is left, so no file is written")
    for target in written:
        writers[target](target, rows)
    if json:
        print_json(rows.records())
        return
    screen = console()
    if rows.rows:
        screen.print(results_table(rows, screen.width))
    total, shown = counted(len(found.records), "record"), len(chosen) if rows.summed is None else rows.summed
    screen.print(total if shown == len(found.records) else f"{shown:,} of {total}", style="dim")
    for target in written:
        screen.print(f"written: {target}", soft_wrap=True)
