"""`zeroshift results`: the records of any number of folders as one table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from zeroshift.cli import _encoder_options as options
from zeroshift.cli._inputs import split_names
from zeroshift.cli._output_paths import check_output_files
from zeroshift.cli.console import console, print_json, print_warning
from zeroshift.evaluate.results import (
    Condition,
    Row,
    check_fields,
    collect,
    differing_fields,
    field_names,
    group_rows,
    sort_rows,
    summarize_group,
)
from zeroshift.report.formatting import counted
from zeroshift.report.results import ResultRows, results_table, write_csv, write_markdown
from zeroshift.suggest import did_you_mean

__all__ = ["results"]

RUN_COLUMNS = ("features", "job", "seed", "accuracy", "zero_shot_accuracy", "gain", "calibration_error")

PLAIN_STREAMS = ("stored", "random")
"""Kinds of streams that hold all rows of a set; which of them a run has depends on the method."""


def _run_table(rows: Sequence[Row], columns: str | None, sort: str | None, *, known: Sequence[Row]) -> ResultRows:
    """One row per record, with the requested columns; by default the usual ones and every field the runs differ in."""
    requested = () if columns is None else tuple(dict.fromkeys(_field_names("--columns", columns)))
    check_fields("--columns", requested, known)
    if sort is not None:
        check_fields("--sort", [sort.removeprefix("-")], known)
        rows = sort_rows(rows, sort.removeprefix("-"), descending=sort.startswith("-"))
    differing = () if requested else tuple(differing_fields(rows))
    seed = RUN_COLUMNS.index("seed")
    names = requested or (*RUN_COLUMNS[:seed], *differing, *RUN_COLUMNS[seed:])
    return ResultRows(names, tuple(tuple(row.get(name) for name in names) for row in rows), requested, differing)


def _group_table(rows: Sequence[Row], by: str, sort: str | None, *, known: Sequence[Row]) -> ResultRows:
    """One row per group of runs with equal fields `by`, and warnings where the rows do not compare."""
    requested = tuple(dict.fromkeys(_field_names("--by", by)))
    check_fields("--by", requested, known)
    groups = group_rows(rows, requested)
    n_runs = sum(map(len, groups))
    if without := len(rows) - n_runs:
        print_warning(f"{counted(without, 'record')} without an accuracy skipped: analyses, not runs")
    for warning in _group_warnings(groups, requested):
        print_warning(warning)
    table: list[Row] = [
        {**{name: group[0].get(name) for name in requested}, **summarize_group(group)} for group in groups
    ]
    names = tuple(table[0]) if table else requested
    if sort is not None:
        wanted = sort.removeprefix("-")
        if table and wanted not in names:
            raise ValueError(
                f"--sort: no column is called {wanted!r}. {did_you_mean(wanted, names)}Fix: one of {', '.join(names)}."
            )
        table = sort_rows(table, wanted, descending=sort.startswith("-"))
    return ResultRows(names, tuple(tuple(row[name] for name in names) for row in table), requested, n_runs=n_runs)


def _group_warnings(groups: Sequence[Sequence[Row]], by: Sequence[str]) -> Iterator[str]:
    mixed: dict[str, None] = {}
    for group in groups:
        several = len({row["job"] for row in group}) > 1
        mixed |= dict.fromkeys([*(["contestant"] if several else []), *differing_fields(group)])
    if mixed:
        yield f"rows mix runs that differ in {', '.join(mixed)}; add it to --by, or choose with --where"
    if not {"features", "digest"} & set(by) and _covers_differ(groups, _set_of):
        yield "rows cover different sets, so their means do not compare; choose with --where, or add features to --by"
    if not any(name.startswith("stream") for name in by) and _covers_differ(groups, _stream_of):
        yield (
            "rows cover different streams, so their means do not compare; choose with --where, or add stream.kind to "
            "--by"
        )


def _covers_differ(groups: Sequence[Sequence[Row]], key: Any) -> bool:
    return len({frozenset(key(row) for row in group) for group in groups}) > 1


def _set_of(row: Row) -> str:
    return str(row.get("digest") or row["features"])


def _stream_of(row: Row) -> str:
    """The kind and parameters of the stream; the sizes of domains belong to the set."""
    if row.get("stream.kind") in (None, *PLAIN_STREAMS):
        return ""
    ignored = ("stream.domains", "stream.names")
    return str([(name, row[name]) for name in row if name.startswith("stream.") and name not in ignored])


def _field_names(option: str, text: str) -> list[str]:
    names = split_names(text)
    if not names:
        raise ValueError(f"{option} names no field; got {text!r}. Fix: for example {option} features,contestant.")
    return names


WHICH_PANEL = "Filter"
SHOWN_PANEL = "Table"


def results(
    folders: Annotated[
        list[Path],
        typer.Argument(metavar="FOLDER", help="Folders that compare or experiment wrote to, or copies of their runs."),
    ],
    where: Annotated[
        list[str] | None,
        typer.Option(
            "--where",
            "-w",
            metavar="FIELD=VALUE",
            help="Keep only matching runs; also !=, and in quotes < > <= >=. May be repeated.",
            rich_help_panel=WHICH_PANEL,
        ),
    ] = None,
    by: Annotated[
        str | None,
        typer.Option(
            metavar="FIELD,...",
            help="One row per group of runs with equal values of these fields.",
            rich_help_panel=SHOWN_PANEL,
        ),
    ] = None,
    columns: Annotated[
        str | None, typer.Option(metavar="FIELD,...", help="Fields to show for each run.", rich_help_panel=SHOWN_PANEL)
    ] = None,
    sort: Annotated[
        str | None,
        typer.Option(
            metavar="FIELD", help="Sort by this column; -FIELD sorts in descending order.", rich_help_panel=SHOWN_PANEL
        ),
    ] = None,
    fields: Annotated[
        bool, typer.Option("--fields", help="List the fields of the records and exit.", rich_help_panel=SHOWN_PANEL)
    ] = False,
    csv: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Also write the table as CSV.", rich_help_panel=options.OUTPUT_PANEL),
    ] = None,
    markdown: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Also write the table as Markdown.", rich_help_panel=options.OUTPUT_PANEL),
    ] = None,
    raw_csv: options.RawCsv = False,
    force: options.Force = False,
    json: Annotated[
        bool, typer.Option("--json", help="Print the rows as JSON.", rich_help_panel=options.OUTPUT_PANEL)
    ] = False,
) -> None:
    """Merge, filter and summarise the records of runs.

    Of several records of the same run the newest counts. Fields have their names from the records, with dots for nested
    ones: settings.alpha. Accuracies are fractions (0.5), gains are percentage points.

    For example: zeroshift results zeroshift-experiments --where contestant=tda --by features
    """
    conditions = [Condition.parse(text) for text in where or []]
    for option, target in (("csv", csv), ("md", markdown)):
        if target is not None and target.is_dir():
            fix = target / f"results.{option}"
            raise ValueError(f"{target} is a folder; the name of a file is needed. Fix: {fix}.")
    check_output_files([path for path in (csv, markdown) if path is not None], inputs=[], force=force)
    if by is not None and columns is not None:
        raise ValueError("--by has columns of its own; got --columns too. Fix: leave out one of them.")
    found = collect(folders)
    damaged = "contains no readable record, or one that was changed after it was written"
    for paths, why in ((found.damaged, damaged), (found.newer, "needs a newer zeroshift")):
        for path in paths:
            print_warning(f"skipped: {path} {why}")
    if found.outdated:
        print_warning(f"skipped: {counted(found.outdated, 'record')} of the same runs by older code")
    if found.unverified:
        print_warning(f"not verified: {counted(found.unverified, 'record')} of an earlier version, without a checksum")
    if not found.rows:
        named = ", ".join(map(str, folders))
        raise ValueError(f"no records of runs in {named}. Fix: a folder that compare or experiment wrote to.")
    if fields:
        names = field_names(found.rows)
        if json:
            print_json(names)
        else:
            console().print("\n".join(names), soft_wrap=True)
        return
    check_fields("--where", [condition.name for condition in conditions], found.rows)
    chosen = list(found.rows)
    for condition in conditions:
        kept = [row for row in chosen if condition.holds(row)]
        if chosen and not kept:
            print_warning(condition.explain_no_match(chosen))
        chosen = kept
    if by is None:
        table = _run_table(chosen, columns, sort, known=found.rows)
    else:
        table = _group_table(chosen, by, sort, known=found.rows)
    written = [target for target in (csv, markdown) if target is not None and table.rows]
    if not table.rows and (csv or markdown):
        print_warning("no run is left, so no file is written")
    for target in written:
        if target is csv:
            write_csv(target, table, raw=raw_csv)
        else:
            write_markdown(target, table)
    if json:
        print_json(results_table(table).records())
        return
    screen = console()
    if table.rows:
        screen.print(results_table(table))
    total, shown = counted(len(found.rows), "record"), len(chosen) if table.n_runs is None else table.n_runs
    screen.print(total if shown == len(found.rows) else f"{shown:,} of {total}", style="dim")
    for target in written:
        screen.print(f"written: {target}", soft_wrap=True)
