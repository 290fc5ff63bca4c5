"""Records of runs as a table: for the terminal, as Markdown, CSV and JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zeroshift.files import atomic_path
from zeroshift.report.formatting import one_line, percent, points
from zeroshift.report.tables import ReportCell, ReportColumn, ReportTable, write_csv_lines

__all__ = ["ResultRows", "legend", "results_table", "write_csv", "write_markdown"]

TITLES = {
    "accuracy": "acc",
    "accuracy_low": "min",
    "accuracy_high": "max",
    "accuracy_worst": "worst 10%",
    "zero_shot_accuracy": "zero-shot",
    "calibration_error": "ECE",
    "gain_low": "gain min",
    "gain_high": "gain max",
    "job": "what",
    "features": "set",
}

DROPPED_FIRST = (
    ("gain_low", "gain_high"), ("calibration_error",), ("accuracy_low", "accuracy_high"), ("accuracy_worst",),
    ("seed",), ("runs",),
)  # fmt: skip
"""Columns that are hidden first where the terminal is too narrow; those that mean little by themselves together."""

FRACTIONS = ("accuracy", "accuracy_low", "accuracy_high", "accuracy_worst", "calibration_error")
"""Columns whose names end with these are shown in percent."""

TEXT_WIDTH = 20
"""Characters that a column of text keeps before columns of numbers are hidden."""

MEANINGS = {
    "accuracy_low": "min and max are the lowest and the highest run",
    "accuracy_worst": "worst 10% is the mean of the worst tenth of the runs",
}


@dataclass(frozen=True)
class ResultRows:
    """Rows of `zeroshift results`: one per run, or one per group of runs."""

    names: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    requested: tuple[str, ...] = ()
    """Columns the user named; they are never hidden."""
    differing: tuple[str, ...] = ()
    """Columns that are shown because the runs differ in them."""
    n_runs: int | None = None
    """Runs in all rows together, where a row is a group of runs."""


def results_table(rows: ResultRows) -> ReportTable:
    dropped = (*DROPPED_FIRST, *((name,) for name in reversed(rows.differing)))
    orders = {name: order for order, names in enumerate(dropped, start=1) for name in names}
    columns = []
    for place, name in enumerate(rows.names):
        is_numeric = all(row[place] is None or isinstance(row[place], int | float) for row in rows.rows)
        pair = next((names for names in dropped if name in names), ())
        columns.append(
            ReportColumn(
                TITLES.get(name, name),
                name=name,
                format=lambda value, name=name: _format_value(name, value),  # type: ignore[misc]
                is_right=is_numeric,
                is_whole=is_numeric,
                is_signed=name == "gain",
                drop_order=0 if set(pair) & set(rows.requested) else orders.get(name, 0),
                preferred_width=TEXT_WIDTH,
                is_kept=name in rows.requested,
            )
        )
    cells = ([_cell(rows, column, value) for column, value in zip(columns, row, strict=True)] for row in rows.rows)
    return ReportTable.from_values(columns, cells, legend=legend)


def _cell(rows: ResultRows, column: ReportColumn, value: Any) -> ReportCell:
    if value is None and rows.n_runs is not None and column.name in rows.requested:
        return ReportCell("none")  # as in --where
    return column.cell(value)


def _format_value(name: str, value: Any) -> str:
    if isinstance(value, int | float) and not isinstance(value, bool):
        if name.startswith("gain"):
            return points(value)
        if name.endswith(FRACTIONS):
            return percent(value)
        return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"
    return one_line(", ".join(map(str, value)) if isinstance(value, list) else str(value))


def legend(names: Sequence[str]) -> str:
    """What the numbers of these columns mean; empty where they need no explanation.

    >>> legend(["features", "accuracy", "gain"])
    'Accuracies in percent, gain over zero-shot on the same rows in points.'
    """
    percents = ["accuracies"] if any(name.endswith(FRACTIONS[:-1]) for name in names) else []
    percents += ["calibration error (ECE)"] if any(name.endswith(FRACTIONS[-1]) for name in names) else []
    parts = [f"{' and '.join(percents)} in percent"] if percents else []
    parts += ["gain over zero-shot on the same rows in points"] if any(n.startswith("gain") for n in names) else []
    parts += [meaning for name, meaning in MEANINGS.items() if name in names]
    text = ", ".join(parts)
    return f"{text[:1].upper()}{text[1:]}." if text else ""


def write_csv(path: Path, rows: ResultRows, *, raw: bool = False) -> None:
    """A header, then one line per row; numbers as the records hold them, texts as `write_csv_lines` writes them."""
    write_csv_lines(path, results_table(rows).csv_lines(), raw=raw)


def write_markdown(path: Path, rows: ResultRows) -> None:
    """A table, and what its numbers mean."""
    text = "\n\n".join(filter(None, [results_table(rows).markdown(), legend(rows.names)]))
    with atomic_path(path) as temporary:
        temporary.write_text(f"{text}\n", encoding="utf-8", newline="\n")
