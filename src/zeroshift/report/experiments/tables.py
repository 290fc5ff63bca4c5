"""Findings of experiments as tables: on the terminal, and as files of LaTeX, CSV and JSON."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass
from functools import singledispatch
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from zeroshift import __version__
from zeroshift.experiments import Chapter, Member, Suite
from zeroshift.experiments._shared.findings import (
    Bars,
    Cell,
    Column,
    Confusion,
    Finding,
    HeatMaps,
    Lines,
    Regions,
    Reliability,
    Remark,
    Row,
    Table,
    Value,
)
from zeroshift.experiments._shared.suite import TASKS
from zeroshift.files import atomic_path
from zeroshift.report.experiments.headlines import chapter_heading, finding_title
from zeroshift.report.formatting import DECIMALS, format_number, one_line, without_backticks
from zeroshift.report.tables import ReportCell, ReportColumn, ReportRow, ReportTable, write_csv_lines

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

__all__ = [
    "chapters_record",
    "finding_name",
    "formatted_table",
    "make_folder",
    "named_findings",
    "print_chapters",
    "sets_table",
    "task_name",
    "write_csv",
    "write_latex",
]

PAPER_DECIMALS = 2
"""Decimals where published numbers are shown next to ours: as many as the paper prints."""

CSV_UNITS = {"percent": " (fraction)", "points": " (points)", "seconds": " (seconds)", "bytes": " (bytes)"}
"""What follows the title of a column in CSV."""

REMARK_STARTS = {"note": ("", ""), "data": ("Data: ", "cyan"), "warning": ("Warning: ", "yellow")}
"""How a remark of each kind starts, and its colour."""

Sheet = list[list[Any]]
"""All lines of a CSV file, the first is the heading."""


def formatted_table(table: Table) -> ReportTable:
    """All cells as they are read; after each column with published numbers, a column of these.

    >>> from zeroshift.experiments._shared.findings import Row
    >>> columns = (Column("method", "text"), Column("accuracy"))
    >>> formatted = formatted_table(Table("t", "T", columns, (Row(("zero-shot", Value(0.785, 0.779, 0.79))),)))
    >>> [str(cell) for cell in formatted.rows[0].cells]
    ['zero-shot', '78.5 (77.9 to 79.0)']
    >>> formatted = formatted_table(Table("t", "T", columns, (Row(("zero-shot", Value(0.785, paper=0.6873))),)))
    >>> [column.title for column in formatted.columns], [str(cell) for cell in formatted.rows[0].cells]
    (['method', 'accuracy', 'paper'], ['zero-shot', '78.50', '68.73'])
    """
    for row in table.rows:
        if len(row.cells) != len(table.columns):
            raise ValueError(
                f"table {table.name!r}: the row {row.cells[:1]} has {len(row.cells)} cells; the table has "
                f"{len(table.columns)} columns. Fix: a cell for each column, None where there is nothing."
            )
    columns: list[ReportColumn] = []
    lines: list[list[ReportCell]] = [[] for _ in table.rows]
    for place, column in enumerate(table.columns):
        cells = [row.cells[place] for row in table.rows]
        published = [cell.paper if isinstance(cell, Value) else None for cell in cells]
        has_published = any(number is not None for number in published)
        decimals = PAPER_DECIMALS if has_published or table.reference else DECIMALS
        columns.append(_formatted_column(column))
        columns += [_formatted_column(column, is_reference=True)] if has_published else []
        for line, cell, number in zip(lines, cells, published, strict=True):
            line.append(_formatted_cell(cell, column, decimals))
            if has_published:
                line.append(_formatted_cell(None if number is None else Value(number), column, decimals))
    groups = [one_line(row.group) for row in table.rows]
    rows = (
        ReportRow(tuple(line), group, group != before, row.strong)
        for row, line, group, before in zip(table.rows, lines, groups, ["", *groups], strict=False)
    )
    notes = tuple(without_backticks(one_line(note)) for note in table.notes)
    return ReportTable(tuple(columns), tuple(rows), title=finding_title(table), notes=notes)


def _formatted_column(column: Column, *, is_reference: bool = False) -> ReportColumn:
    name = one_line(f"{column.title}{CSV_UNITS.get(column.unit, '')}")
    return ReportColumn(
        title="paper" if is_reference else one_line(column.title),
        name=f"{name} paper" if is_reference else name,
        detail="" if is_reference else one_line(column.detail),
        unit=column.unit,
        is_right=column.unit != "text",
        is_signed=column.unit == "points",
        is_reference=is_reference,
    )


def _formatted_cell(cell: Cell, column: Column, decimals: int) -> ReportCell:
    if cell is None:
        return ReportCell()
    if isinstance(cell, str):
        return ReportCell(one_line(cell), cell)
    low, high = (None if end is None else format_number(end, column.unit, decimals) for end in (cell.low, cell.high))
    reach = f"{low} to {high}" if low and high else f"from {low}" if low else f"up to {high}" if high else ""
    text = format_number(cell.value, column.unit, decimals)
    return ReportCell(text, cell.value, cell.low, cell.high, reach, is_number=True, is_best=cell.best)


def sets_table(suite: Suite) -> Table:
    """One row per set: what it is, its size, and whether it is the paper's own data."""
    columns = (
        Column("set", "text"),
        Column("samples", "count"),
        Column("classes", "count"),
        Column("what it is", "text"),
        Column("task", "text"),
        Column("encoder, prompts", "text"),
        Column("the paper's data", "text"),
    )
    return Table("sets", "The sets", columns, tuple(Row(_set_cells(member)) for member in suite.members))


def _set_cells(member: Member) -> tuple[Cell, ...]:
    dataset = member.dataset
    sizes = Value(dataset.n_samples), Value(dataset.n_classes)
    is_papers = "yes" if member.from_paper else "no"
    return (dataset.name, *sizes, dataset.title, task_name(member), f"{member.encoder}, {dataset.prompt}", is_papers)


def task_name(member: Member) -> str:
    """The task of a set as the paper calls it, or as we do.

    >>> from zeroshift.data import packs
    >>> task_name(Member.of("fog", packs.load("cifar10c_fog_5")))
    'Task 2: corruption'
    """
    task = next(task for task in TASKS if task.id == member.task)
    return f"{task.paper}: {task.title}" if task.paper else task.title


def finding_name(chapter: Chapter, finding: Finding) -> str:
    """The name of a finding among those of all experiments: "bank-size-sweep"."""
    return f"{chapter.experiment.name}-{getattr(finding, 'name', 'remark')}"


def named_findings(chapters: Sequence[Chapter]) -> Iterator[tuple[str, Finding]]:
    """(name, finding) of all findings but remarks; names are unique."""
    taken: set[str] = set()
    for chapter in chapters:
        for finding in chapter.findings:
            if isinstance(finding, Remark):
                continue
            name = finding_name(chapter, finding)
            if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name):
                raise ValueError(
                    f"a finding is called {name!r}, which cannot be the name of a file. "
                    "Fix: lower-case letters, digits and single hyphens only."
                )
            if name in taken:
                raise ValueError(f"two findings are called {name!r}. Fix: give one of them another name.")
            taken.add(name)
            yield name, finding


def make_folder(path: str | os.PathLike[str]) -> Path:
    """The folder, created where it does not exist."""
    folder = Path(path)
    if folder.exists() and not folder.is_dir():
        raise NotADirectoryError(f"{path} is a file; a folder is needed, for one file per table. Fix: name another.")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def print_chapters(console: Console, chapters: Sequence[Chapter], *, width: int, paper: bool = False) -> None:
    """Every chapter, at most `width` characters wide; the paper's own tables only with `paper`."""
    from rich.text import Text

    def paragraph(text: Text) -> None:
        console.print(text, width=width)
        console.print()

    for chapter in chapters:
        experiment = chapter.experiment
        where = f" ({one_line(experiment.where)} of the paper)" if experiment.where else ""
        console.print(Text.assemble((chapter_heading(chapter), "bold"), (where, "dim")), width=width)
        paragraph(Text(one_line(experiment.question), style="italic"))
        figures = []
        for finding in chapter.findings:
            if isinstance(finding, Remark):
                start, colour = REMARK_STARTS[finding.kind]
                paragraph(Text.assemble((start, f"bold {colour}"), (without_backticks(one_line(finding.text)), colour)))
            elif not isinstance(finding, Table):
                figures.append(finding_title(finding))
            elif paper or not finding.reference:
                console.print(formatted_table(finding), width=width)
                console.print()
        if figures:
            paragraph(Text.assemble(("Figures in the report: ", "dim"), "; ".join(figures), "."))
        for failed in chapter.failed:
            paragraph(Text.assemble(("Failed: ", "bold red"), (one_line(failed), "red")))


def write_latex(folder: str | os.PathLike[str], chapters: Sequence[Chapter]) -> list[Path]:
    """One file per table, EXPERIMENT-NAME.tex, for \\input in a paper; existing files of these names are replaced."""
    tables = [(name, table) for name, table in named_findings(chapters) if isinstance(table, Table)]
    target = make_folder(folder)
    paths = []
    for name, table in tables:
        paths.append(target / f"{name}.tex")
        with atomic_path(paths[-1]) as temporary:
            temporary.write_text(formatted_table(table).latex(name), encoding="utf-8", newline="\n")
    return paths


def write_csv(folder: str | os.PathLike[str], chapters: Sequence[Chapter], *, raw: bool = False) -> list[Path]:
    """EXPERIMENT-NAME.csv for each table and for the data of each figure, numbers at full precision.

    A figure of several matrices gets a file per matrix, EXPERIMENT-NAME-1.csv and so on. Existing files of these names
    are replaced.
    """
    sheets = [
        (f"{name}{ending}.csv", sheet)
        for name, finding in named_findings(chapters)
        for ending, sheet in _sheets(finding)
    ]
    names = [name for name, _ in sheets]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"two findings would be written to {twice[0]}. Fix: give one of them another name.")
    target = make_folder(folder)
    for name, sheet in sheets:
        write_csv_lines(target / name, sheet, raw=raw)
    return [target / name for name in names]


@singledispatch
def _sheets(finding: Finding) -> Iterator[tuple[str, Sheet]]:
    """(end of the file's name, sheet) of each file."""
    raise TypeError(f"finding is {finding!r}, which cannot be written as CSV. Fix: {Finding}.")


@_sheets.register
def _(finding: Table) -> Iterator[tuple[str, Sheet]]:
    yield "", formatted_table(finding).csv_lines(with_group=True)


@_sheets.register
def _(finding: Lines) -> Iterator[tuple[str, Sheet]]:
    sheet: Sheet = [["series", "method", finding.x_label, finding.y_label, "low", "high"]]
    for series in finding.series:
        low, high = ((None,) * len(series.x) if end is None else end for end in (series.low, series.high))
        points = zip(series.x, series.y, low, high, strict=True)
        sheet += [[series.label, series.method, *point] for point in points]
    yield "", sheet


@_sheets.register
def _(finding: Bars) -> Iterator[tuple[str, Sheet]]:
    heading = ["group", "bar", "method", finding.x_label, "low", "high"]
    yield "", [heading, *([bar.group, bar.label, bar.method, bar.value, bar.low, bar.high] for bar in finding.bars)]


@_sheets.register
def _(finding: Reliability) -> Iterator[tuple[str, Sheet]]:
    sheet: Sheet = [["panel", "method", "confidence", "accuracy", "share", "calibration error"]]
    for panel in finding.panels:
        bins = zip(panel.confidence, panel.accuracy, panel.share, strict=True)
        sheet += [[panel.label, panel.method, *point, panel.error] for point in bins]
    yield "", sheet


@_sheets.register
def _(finding: HeatMaps) -> Iterator[tuple[str, Sheet]]:
    for number, heat_map in enumerate(finding.maps, start=1):
        yield f"-{number}", _matrix(heat_map.title, heat_map.values, heat_map.row_labels, heat_map.column_labels)


@_sheets.register
def _(finding: Confusion) -> Iterator[tuple[str, Sheet]]:
    names = finding.class_names
    yield "-before", _matrix(finding.before_label, finding.before, names, names)
    yield "-after", _matrix(finding.after_label, finding.after, names, names)


@_sheets.register
def _(finding: Regions) -> Iterator[tuple[str, Sheet]]:
    """The points, the prototypes, and the class indices of each method's plane, one line per height, lowest first."""
    names = finding.class_names
    yield "-points", _point_lines(finding.points, [names[int(label)] for label in finding.labels])
    if finding.anchors is not None:
        yield "-anchors", _point_lines(finding.anchors, names)
    left, right, bottom, top = finding.extent
    for number, region in enumerate(finding.regions, start=1):
        height, width = region.classes.shape
        # Columns and lines are named by the middle of their fields.
        xs = [f"{left + (right - left) * (column + 0.5) / width:.6g}" for column in range(width)]
        ys = [f"{bottom + (top - bottom) * (row + 0.5) / height:.6g}" for row in range(height)]
        yield f"-{number}", _matrix(region.label, region.classes, ys, xs)


def _point_lines(points: np.ndarray, names: Sequence[str]) -> Sheet:
    return [["x", "y", "class"], *([*point, name] for point, name in zip(points.tolist(), names, strict=True))]


def _matrix(corner: str, values: np.ndarray, rows: Sequence[str], columns: Sequence[str]) -> Sheet:
    """Lines and columns without a name are numbered from 1."""
    rows, columns = (
        names or [str(number) for number in range(1, size + 1)]
        for names, size in zip((rows, columns), values.shape, strict=True)
    )
    return [[corner, *columns], *([name, *line] for name, line in zip(rows, values.tolist(), strict=True))]


def chapters_record(chapters: Sequence[Chapter], suite: Suite) -> dict[str, Any]:
    """For JSON: all findings at full precision, and the sets they are about. Numbers that are not finite are None."""
    return {
        "zeroshift": __version__,
        "sets": [_set_record(member) for member in suite.members],
        "experiments": [_chapter_record(chapter) for chapter in chapters],
    }


def _set_record(member: Member) -> dict[str, Any]:
    dataset = member.dataset
    return {
        "name": dataset.name,
        "title": dataset.title,
        "task": member.task,
        "data_set": member.data_set,
        "encoder": member.encoder,
        "corruption": member.corruption,
        "severity": member.severity,
        "prompt": dataset.prompt,
        "prompts": list(member.prompts),
        "n_samples": dataset.n_samples,
        "n_classes": dataset.n_classes,
        "dimension": dataset.dimension,
        "digest": dataset.digest,
        "papers": member.from_paper,
    }


def _chapter_record(chapter: Chapter) -> dict[str, Any]:
    experiment = chapter.experiment
    return {
        "name": experiment.name,
        "title": experiment.title,
        "question": experiment.question,
        "where": experiment.where,
        "paper_tables": list(experiment.tables),
        "runs": len(chapter.jobs),
        "seconds": chapter.seconds,
        "findings": [_finding_record(finding) for finding in chapter.findings],
        "failed": list(chapter.failed),
    }


def _finding_record(finding: Finding) -> dict[str, Any]:
    """Its fields, and its kind as `type`: "table", "heat_maps"."""
    kind = re.sub(r"(?<!^)([A-Z])", r"_\1", type(finding).__name__).lower()
    return {"type": kind, **_plain_value(finding)}


def _plain_value(value: Any) -> Any:
    if is_dataclass(value):
        return {field.name: _plain_value(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, np.ndarray | np.generic):
        return _plain_value(value.tolist())
    if isinstance(value, tuple | list):
        return [_plain_value(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
