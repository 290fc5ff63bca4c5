"""`zeroshift results`: the records of any number of folders as one table."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from zeroshift.cli.console import console, print_json, print_warning
from zeroshift.evaluate.keys import one_form
from zeroshift.evaluate.results import check_fields, group, offer, ordered, told_apart, value_of
from zeroshift.evaluate.streams.spec import UNIMPORTANT
from zeroshift.report.formatting import counted
from zeroshift.report.results import ResultRows, results_table, write_csv, write_markdown

__all__ = ["grouped_rows", "results", "run_rows", "warnings_about"]


# What the rows of `zeroshift results --by` have in them that a reader would not guess: runs that should not be summed
# up together, and means over other sets than those of the next row.


ResultsMixedRecord = Mapping[str, Any]

OF_A_SET = ("features", "digest", "n_samples", "n_classes", "dimension")
"""Fields by which sets are meant to be told apart."""

PLAIN = ("stored", "random")
"""Streams that are the same rows in no order of their own: which of them a method is given is its own business."""


def warnings_about(runs: Sequence[ResultsMixedRecord], by: Sequence[str]) -> Iterator[str]:
    """Sentences, none where all is as it seems."""
    heaps: dict[str, list[ResultsMixedRecord]] = {}
    for record in runs:
        heaps.setdefault(repr([value_of(record, name) for name in by]), []).append(record)
    found: dict[str, None] = {}
    for heap in heaps.values():
        jobs = {str(value_of(record, "job")) for record in heap}
        found |= dict.fromkeys([*(["contestant"] if len(jobs) > 1 else []), *told_apart(heap)])
    if found:
        yield f"rows mix runs that differ in {', '.join(found)}; add it to --by, or choose with --where"
    if not set(by).intersection(OF_A_SET):
        yield from _uneven(heaps, by, "sets", _set_of, "features")
    if not any(name.startswith("stream") for name in by):
        yield from _uneven(heaps, by, "streams", _stream_of, "stream.kind")


def _uneven(
    heaps: Mapping[str, list[ResultsMixedRecord]],
    by: Sequence[str],
    what: str,
    of: Callable[[ResultsMixedRecord], str],
    field: str,
) -> Iterator[str]:
    """Whether rows are means over different things, and for two of them which."""
    covered = {name: {of(record): value_of(record, field) for record in heap} for name, heap in heaps.items()}
    first, *others = covered
    for other in others:
        if apart := covered[first].keys() ^ covered[other].keys():
            thing = sorted(str({**covered[first], **covered[other]}[key]) for key in apart)[0]
            has, lacks = (first, other) if any(str(v) == thing for v in covered[first].values()) else (other, first)
            yield (
                f"rows cover different {what}, so their means do not compare: {_called(heaps[has][0], by)} has runs on "
                f"{thing} that {_called(heaps[lacks][0], by)} lacks; choose with --where, or add {field} to --by"
            )
            return


def _called(record: ResultsMixedRecord, by: Sequence[str]) -> str:
    return ", ".join(str(value_of(record, name)) for name in by)


def _set_of(record: ResultsMixedRecord) -> str:
    return str(record.get("digest") or record.get("features"))


def _stream_of(record: ResultsMixedRecord) -> str:
    stream = record.get("stream")
    if not isinstance(stream, Mapping) or stream.get("kind") in PLAIN:
        return ""
    # The sizes of domains belong to the set.
    kept = {name: value for name, value in stream.items() if name not in (*UNIMPORTANT, "domains")}
    return json.dumps(one_form(kept), sort_keys=True)


# The rows of `zeroshift results`: a run each, or a group of runs; values as the records hold them.


Record = dict[str, Any]

BASELINE = "zero_shot_accuracy"

OF_RUNS = ("features", "job", "seed", "accuracy", BASELINE, "gain", "calibration_error")
OF_GROUPS = (
    "runs", "accuracy", "accuracy_low", "accuracy_high", "accuracy_worst", BASELINE, "gain", "gain_low", "gain_high",
    "calibration_error",
)  # fmt: skip


def run_rows(chosen: Sequence[Record], columns: str | None, sort: str | None, *, of: Sequence[Record]) -> ResultRows:
    """A row for each record, with the columns asked for; or else with the usual ones, the zero-shot accuracy of the
    same features among them, and one for whatever else the runs differ in. `of` are all records there are."""
    asked = () if columns is None else tuple(dict.fromkeys(_listed("--columns", columns)))
    check_fields("--columns", asked, of)
    if sort is not None:
        check_fields("--sort", [sort.removeprefix("-")], of)
        chosen = ordered(chosen, sort.removeprefix("-"), descending=sort.startswith("-"))
    apart = () if asked else tuple(told_apart(chosen))
    after = OF_RUNS.index("seed")
    names = asked or (*OF_RUNS[:after], *apart, *OF_RUNS[after:])
    return ResultRows(names, tuple(tuple(value_of(record, name) for name in names) for record in chosen), asked, apart)


def grouped_rows(chosen: Sequence[Record], by: str | None, sort: str | None, *, of: Sequence[Record]) -> ResultRows:
    """A row for the runs that agree in the fields of `by`. Where a row mixes runs that differ in more than the set and
    the seed, a warning says in what."""
    asked = tuple(dict.fromkeys(_listed("--by", by or "")))
    check_fields("--by", asked, of)
    names = tuple(dict.fromkeys([*asked, *OF_GROUPS]))
    runs = [record for record in chosen if value_of(record, "accuracy") is not None]
    if without := len(chosen) - len(runs):
        print_warning(f"{counted(without, 'record')} without an accuracy left out: looks at features, not runs")
    for warning in warnings_about(runs, asked) if runs else ():
        print_warning(warning)
    rows = [
        {
            **dict(zip(asked, heap.of, strict=True)),
            "runs": heap.runs,
            "accuracy": heap.accuracy.mean,
            "accuracy_low": heap.accuracy.low,
            "accuracy_high": heap.accuracy.high,
            "accuracy_worst": heap.worst,
            BASELINE: heap.zero_shot,
            "gain": heap.gain.mean,
            "gain_low": heap.gain.low,
            "gain_high": heap.gain.high,
            "calibration_error": heap.calibration_error,
        }
        for heap in group(runs, asked)
    ]
    if sort is not None:
        wanted = sort.removeprefix("-")
        if wanted not in names:
            near = offer(wanted, names)
            raise ValueError(f"--sort: no column is called {wanted!r}. {near}Fix: one of {', '.join(names)}.")
        # The columns of a group stand in its dictionary under their own names, dots and all.
        order = ordered([{"at": k, "key": row[wanted]} for k, row in enumerate(rows)], "key",
                        descending=sort.startswith("-"))  # fmt: skip
        rows = [rows[place["at"]] for place in order]
    return ResultRows(names, tuple(tuple(row[name] for name in names) for row in rows), asked, n_runs=len(runs))


def _listed(option: str, text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise ValueError(f"{option} names no field; got {text!r}. Fix: such as {option} features,contestant.")
    return names


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
    from zeroshift.cli._output_paths import check_targets
    from zeroshift.evaluate.results import Condition, collect, field_names
    from zeroshift.report.formatting import counted

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
        print_json(results_table(rows).records())
        return
    screen = console()
    if rows.rows:
        screen.print(results_table(rows))
    total, shown = counted(len(found.records), "record"), len(chosen) if rows.n_runs is None else rows.n_runs
    screen.print(total if shown == len(found.records) else f"{shown:,} of {total}", style="dim")
    for target in written:
        screen.print(f"written: {target}", soft_wrap=True)
