"""Rows of `zeroshift results` on a terminal, as Markdown and as CSV."""

from __future__ import annotations

import csv
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zeroshift.cli.results_rows import Rows
from zeroshift.files import atomic_path
from zeroshift.report.words import percent, points

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["LEGEND", "results_table", "write_csv", "write_markdown"]

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

DISPENSABLE = (
    "gain_low", "gain_high", "calibration_error", "accuracy_low", "accuracy_high", "accuracy_worst", "seed", "runs"
)  # fmt: skip
"""What goes first where the terminal is too narrow: half a number says less than none."""

FRACTIONS = ("accuracy", "accuracy_low", "accuracy_high", "accuracy_worst", "calibration_error")
"""How the names of columns end that are shown in percent."""

WIDEST = 1000

WORDS_WIDTH = 20
"""Room that a column of words is left, whatever it holds: longer ones are broken over lines before a number goes."""

LEGEND = "Accuracies and calibration error (ECE) in percent, gain over zero-shot on the same rows in points."


def results_table(rows: Rows, width: int) -> Table:
    """With the columns that `width` holds."""
    from rich.console import Console

    spare = [name for name in DISPENSABLE if name in rows.names and name not in rows.asked]
    for dropped in range(len(spare) + 1):
        names = [name for name in rows.names if name not in spare[:dropped]]
        if Console(width=WIDEST).measure(_table(rows, names, words=WORDS_WIDTH)).maximum <= width:
            break
    return _table(rows, names)


def _table(rows: Rows, names: list[str], *, words: int | None = None) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, pad_edge=False, header_style="dim")
    places = [rows.names.index(name) for name in names]
    for name, place in zip(names, places, strict=True):
        numbers = all(row[place] is None or isinstance(row[place], (int, float)) for row in rows.rows)
        if numbers:
            table.add_column(Text(TITLES.get(name, name)), justify="right", no_wrap=True)
        else:
            table.add_column(Text(TITLES.get(name, name)), overflow="fold", max_width=words)
    for row in rows.rows:
        table.add_row(*(_cell(name, row[place]) for name, place in zip(names, places, strict=True)))
    return table


def _cell(name: str, value: Any) -> Any:
    from rich.text import Text

    text = _written(name, value)
    return Text(text, style={"+": "green", "-": "red"}.get(text[:1], "") if name == "gain" else "")


def _written(name: str, value: Any) -> str:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        if name.startswith("gain"):
            return points(value)
        if name.endswith(FRACTIONS):
            return percent(value)
        return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"
    return "" if value is None else ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def write_csv(path: Path, rows: Rows) -> None:
    """A header, then a line a row; numbers as the records hold them."""
    with atomic_path(path) as temporary, open(temporary, "w", encoding="utf-8", newline="") as handle:
        writer = csv.writer(handle, lineterminator="\n")
        writer.writerow(rows.names)
        for row in rows.rows:
            writer.writerow(["" if v is None else ",".join(map(str, v)) if isinstance(v, list) else v for v in row])


def write_markdown(path: Path, rows: Rows) -> None:
    """A table, and what its numbers mean."""
    lines = [f"| {' | '.join(TITLES.get(name, name) for name in rows.names)} |", f"|{'---|' * len(rows.names)}"]
    for row in rows.rows:
        cells = (_plain(_written(name, value)) for name, value in zip(rows.names, row, strict=True))
        lines.append(f"| {' | '.join(cells)} |")
    with atomic_path(path) as temporary:
        temporary.write_text("\n".join([*lines, "", LEGEND, ""]), encoding="utf-8", newline="\n")


def _plain(text: str) -> str:
    """Names as letters: a set may be called what Markdown would take for something else."""
    return re.sub(r"([\\`*_<>|\[\]])", r"\\\1", text)
