"""The paper's own tables as findings, for readers to hold ours against where ours ran on other data."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from zeroshift.experiments._shared.findings import Cell, Column, Row, Table, Unit, Value
from zeroshift.experiments._shared.paper import PaperRow, PaperTable, paper_table, paper_tables
from zeroshift.experiments._shared.tables import mean_notes, noted, with_best
from zeroshift.experiments._shared.tasks import TASKS

__all__ = ["reference"]

UNITS: dict[str, Unit] = {
    "Gain (%)": "points",
    "Memory (GB)": "number",
    "Time": "text",
    "Low-dim": "count",
    "Average p-value": "number",
}
"""Columns that hold no percentage; those with words in them are text wherever they stand."""

MOVED = {"knowledge_bank": "bank", "update_mu": "means", "update_sigma": "covariance"}
"""What the rows of the ablation switch on, in the words of ours."""

SPREAD = "The range is one standard deviation to either side, as printed."


def reference(name: str, methods: Collection[str] | None = None) -> Table:
    """The table of the paper with this id, every printed row of it or those of `methods`, marked as the paper's.

    >>> table = reference("natural_shift_vitb16")
    >>> table.title, table.columns[2].title
    ('Table 2 of the paper: Top-1 accuracy (%) comparison on natural distribution shift', 'ImageNet-A')
    >>> adapt = table.rows[18]
    >>> adapt.cells[0], adapt.group, round(adapt.cells[2].value, 4), adapt.strong
    ('ADAPT', 'online', 0.6332, True)
    """
    printed = paper_table(name)
    if methods is not None:
        printed = replace(printed, rows=tuple(row for row in printed.rows if _plain(row.method) in methods))
    units = [_unit(printed, column) for column in printed.columns]
    rows = [_row(printed, row, units) for row in printed.rows]
    compared = name in {table for task in TASKS for table in task.tables.values()}
    notes = [f"As printed in the paper{', for ' + printed.backbone if printed.backbone else ''}."]
    if methods is not None:
        notes.append("Other rows of the table are left out.")
    if any("std" in row.extra for row in printed.rows):
        notes.append(SPREAD)
    if compared:
        notes += mean_notes(printed)
    table = Table(
        name=f"paper-{name.replace('_', '-')}",
        title=f"{printed.title}{_part(printed)}: {printed.caption.split('. ')[0].rstrip('.')}",
        columns=(Column("", "text"), *(Column(*pair) for pair in zip(printed.columns, units, strict=True))),
        rows=with_best(rows, by_group=True) if compared else tuple(rows),
        notes=tuple(notes),
        reference=True,
    )
    return table if compared else noted(table)


def _part(table: PaperTable) -> str:
    """Which of the tables that share a number."""
    parts = [other.id for other in paper_tables().values() if other.number == table.number]
    return f", part {parts.index(table.id) + 1}" if len(parts) > 1 else ""


def _unit(table: PaperTable, column: str) -> Unit:
    if any(isinstance(row.values.get(column), str) for row in table.rows):
        return "text"
    return UNITS.get(column, "percent")


def _row(table: PaperTable, row: PaperRow, units: list[Unit]) -> Row:
    label, group = _names(table, row)
    cells = (_cell(row, column, unit) for column, unit in zip(table.columns, units, strict=True))
    # Where every row is ADAPT there is none the table is about.
    strong = _plain(row.method) == "ADAPT" and len({_plain(other.method) for other in table.rows}) > 1
    return Row((label, *cells), group, strong)


def _names(table: PaperTable, row: PaperRow) -> tuple[str, str]:
    """What the row is called, and under which heading it stands."""
    protocol, method = row.protocol or "", _plain(row.method)
    one_method = len({_plain(other.method) for other in table.rows}) == 1
    if "config" in row.extra:
        return " + ".join(word for key, word in MOVED.items() if row.extra["config"][key]) or "nothing (CLIP)", ""
    if "task" in row.extra:
        task = str(row.extra["task"])
        return (task, protocol) if one_method else (f"{method}, {protocol}" if protocol else method, task)
    if row.label:
        return row.label, protocol if one_method else method
    return method, protocol


def _plain(method: str) -> str:
    """ADAPT, of what the data calls ADAPT [order: Hard-to-Easy]."""
    return method.split(" [")[0]


def _cell(row: PaperRow, column: str, unit: Unit) -> Cell:
    if unit == "text":
        words = row.values.get(column)
        return None if words is None else str(words)
    number = row.number(column)
    if number is None:
        return None
    scale = 100 if unit == "percent" else 1
    std = row.extra.get("std", {}).get(column)
    ends = (None, None) if std is None else ((number - std) / scale, (number + std) / scale)
    return Value(number / scale, *ends)
