"""Records of runs as a table: for the terminal, as Markdown and as CSV."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zeroshift.files import atomic_path
from zeroshift.report.formatting import percent, points

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

__all__ = ["ResultRows", "legend", "results_table", "write_csv", "write_markdown"]


@dataclass(frozen=True)
class ResultRows:
    names: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    requested: tuple[str, ...] = ()
    """Columns the user named: they are shown however narrow the terminal."""
    differing: tuple[str, ...] = ()
    """Columns that are there because the runs differ in them."""
    n_runs: int | None = None
    """Runs in all rows together, where a row is a group of them."""

    def records(self) -> list[dict[str, Any]]:
        return [dict(zip(self.names, row, strict=True)) for row in self.rows]


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
    ("gain_low", "gain_high"), ("calibration_error",), ("accuracy_low", "accuracy_high"), ("accuracy_worst",),
    ("seed",), ("runs",),
)  # fmt: skip
"""What goes first where the terminal is too narrow, together where one says little without the other: half a number
says less than none."""

FRACTIONS = ("accuracy", "accuracy_low", "accuracy_high", "accuracy_worst", "calibration_error")
"""How the names of columns end that are shown in percent."""

WIDEST = 1000

NAMELESS = "none"

WORDS_WIDTH = 20
"""Room that a column of words is left, whatever it holds: longer ones are broken over lines before a number goes."""

MEANINGS = {
    "accuracy_low": "min and max are the lowest and the highest run",
    "accuracy_worst": "worst 10% is the mean of the worst tenth of the runs",
}


def legend(names: Sequence[str]) -> str:
    """What the numbers of these columns mean; empty where they need no word.

    >>> legend(["features", "accuracy", "gain"])
    'Accuracies in percent, gain over zero-shot on the same rows in points.'
    """
    percents = ["accuracies"] if any(name.endswith(FRACTIONS[:-1]) for name in names) else []
    percents += ["calibration error (ECE)"] if any(name.endswith(FRACTIONS[-1]) for name in names) else []
    said = [f"{' and '.join(percents)} in percent"] if percents else []
    said += ["gain over zero-shot on the same rows in points"] if any(n.startswith("gain") for n in names) else []
    said += [meaning for name, meaning in MEANINGS.items() if name in names]
    text = ", ".join(said)
    return f"{text[:1].upper()}{text[1:]}." if text else ""


def results_table(rows: ResultRows, width: int) -> Group:
    """With the columns that `width` holds, what it does not hold named below; stacked where words would be broken."""
    from rich.console import Console, Group
    from rich.text import Text

    wide = Console(width=WIDEST)
    groups = [group for group in (*DISPENSABLE, *((name,) for name in reversed(rows.differing)))
              if set(group) & set(rows.names) and not set(group) & set(rows.requested)]  # fmt: skip
    for dropping in range(len(groups) + 1):
        gone = {name for group in groups[:dropping] for name in group}
        names = [name for name in rows.names if name not in gone]
        roomy = wide.measure(_table(rows, names, words=WORDS_WIDTH)).maximum <= width
        # With nothing left to drop words may stand below each other, but are not broken.
        if (roomy or dropping == len(groups)) and wide.measure(_table(rows, names)).minimum <= width:
            break
    else:
        return Group(*_stacked(rows), Text(legend(rows.names), style="dim"))
    below = []
    dropped = [TITLES.get(name, name) for name in rows.names if name not in (*names, *rows.differing)]
    hidden = [name for name in rows.differing if name not in names]
    if hidden:
        below.append(f"No room for {', '.join(hidden)}, in which runs differ too: widen the terminal.")
    if dropped:
        below.append(f"No room for {', '.join(dropped)}{'' if hidden else ': widen the terminal'}.")
    texts = [Text(text, style="dim") for text in (*below, legend(names)) if text]
    return Group(_table(rows, names), *texts)


def _stacked(rows: ResultRows) -> Iterator[Text]:
    """A line a value, an empty one between rows."""
    from rich.text import Text

    for row in rows.rows:
        for name, value in zip(rows.names, row, strict=True):
            yield Text(f"{TITLES.get(name, name)}: {_shown(rows, name, value)}")
        yield Text("")


def _table(rows: ResultRows, names: list[str], *, words: int | None = None) -> Table:
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
        table.add_row(*(_cell(rows, name, row[place]) for name, place in zip(names, places, strict=True)))
    return table


def _cell(rows: ResultRows, name: str, value: Any) -> Any:
    from rich.text import Text

    text = _shown(rows, name, value)
    return Text(text, style={"+": "green", "-": "red"}.get(text[:1], "") if name == "gain" else "")


def _shown(rows: ResultRows, name: str, value: Any) -> str:
    """As `_written`; a group without a value is called none, as --where has it."""
    return NAMELESS if value is None and rows.n_runs is not None and name in rows.requested else _written(name, value)


def _written(name: str, value: Any) -> str:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        if name.startswith("gain"):
            return points(value)
        if name.endswith(FRACTIONS):
            return percent(value)
        return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"
    return "" if value is None else ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def write_csv(path: Path, rows: ResultRows) -> None:
    """A header, then a line a row; numbers as the records hold them."""
    with atomic_path(path) as temporary, open(temporary, "w", encoding="utf-8", newline="") as handle:
        writer = csv.writer(handle, lineterminator="\n")
        writer.writerow(rows.names)
        for row in rows.rows:
            writer.writerow(["" if v is None else ",".join(map(str, v)) if isinstance(v, list) else v for v in row])


def write_markdown(path: Path, rows: ResultRows) -> None:
    """A table, and what its numbers mean."""
    lines = [f"| {' | '.join(TITLES.get(name, name) for name in rows.names)} |", f"|{'---|' * len(rows.names)}"]
    for row in rows.rows:
        cells = (_plain(_shown(rows, name, value)) for name, value in zip(rows.names, row, strict=True))
        lines.append(f"| {' | '.join(cells)} |")
    with atomic_path(path) as temporary:
        temporary.write_text(
            "\n".join([*lines, "", legend(rows.names), ""]).rstrip("\n") + "\n", encoding="utf-8", newline="\n"
        )


def _plain(text: str) -> str:
    """Names as letters: a set may be called what Markdown would take for something else."""
    return re.sub(r"([\\`*_<>|\[\]])", r"\\\1", text)
