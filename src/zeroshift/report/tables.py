"""Tables for the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from zeroshift.data.packs import PackInfo
from zeroshift.encode.prompts import Mode
from zeroshift.encode.registry import FamilyInfo
from zeroshift.evaluate import Comparison, mean_accuracy
from zeroshift.methods import MethodInfo
from zeroshift.report.formatting import method_label, needs, percent, points, setting
from zeroshift.report.records import mean_calibration_error

__all__ = [
    "comparison_tables",
    "encoders_table",
    "methods_markdown",
    "methods_table",
    "packs_table",
    "parameters_table",
    "prompts_table",
    "summary_table",
]

EDGES, GAP = 2, 3
"""Columns of the terminal a table takes at its sides, and between two of its own."""

CALIBRATION = "calibration error"
"""The row of what probabilities are worth, below the accuracies."""


def comparison_tables(comparisons: Sequence[Comparison], width: int) -> list[Table]:
    """A row for each set with every method's accuracy and gain, then the means where there is more than one set, and
    the calibration errors; where `width` is too little for all methods, the rest are in tables of their own."""
    adapted = [result.method for result in comparisons[0].results[1:]]
    baseline = comparisons[0].baseline.method
    names = [*(comparison.name for comparison in comparisons), CALIBRATION]
    room = width - max(map(cell_len, names)) - EDGES - _widest(comparisons, baseline) - GAP
    tables: list[list[str]] = [[]]
    left = room
    for method in adapted:
        needed = _widest(comparisons, method) + GAP
        if tables[-1] and needed > left:
            tables.append([])
            left = room
        tables[-1].append(method)
        left -= needed
    return [_comparison_table(comparisons, [baseline, *methods]) for methods in tables]


def _widest(comparisons: Sequence[Comparison], method: str) -> int:
    """Columns of the terminal a method's column takes: its label is in two lines, its accuracies are not broken."""
    cells = [_cell(comparison, method) for comparison in comparisons]
    return max(*(cell.cell_len for cell in cells), *map(cell_len, method_label(method).split()))


def _comparison_table(comparisons: Sequence[Comparison], methods: Sequence[str]) -> Table:
    names = [*(comparison.name for comparison in comparisons), CALIBRATION]
    table = _table("features", names=names)
    for method in methods:
        table.add_column("\n".join(method_label(method).split()), justify="right", no_wrap=True)
    for comparison in comparisons:
        table.add_row(Text(comparison.name), *(_cell(comparison, method) for method in methods))
    table.add_section()
    if len(comparisons) > 1:
        means = mean_accuracy(comparisons)
        baseline, *others = methods
        cells = [_accuracy(means[method], 100 * (means[method] - means[baseline])) for method in others]
        table.add_row(Text("mean"), Text(percent(means[baseline])), *cells, style="bold")
    errors = mean_calibration_error(comparisons)
    table.add_row(Text(CALIBRATION), *(Text(percent(errors[method])) for method in methods), style="dim")
    return table


def _cell(comparison: Comparison, method: str) -> Text:
    """A method's accuracy on a set, with its gain where it is not the baseline."""
    result = comparison.result(method)
    if result is comparison.baseline:
        return Text(percent(result.accuracy))
    return _accuracy(result.accuracy, comparison.gain(result))


def _accuracy(accuracy: float | None, gain: float | None) -> Text:
    signed = points(gain)
    style = {"+": "green", "-": "red"}.get(signed[:1], "")
    return Text.assemble(percent(accuracy), " ", (f"({signed})", style))


def summary_table(entries: Mapping[str, str]) -> Table:
    """Names and values, one pair a line."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="dim", no_wrap=True, min_width=max(map(cell_len, entries), default=0))
    table.add_column(overflow="fold")
    for name, value in entries.items():
        table.add_row(name, Text(value))
    return table


def methods_table(methods: Sequence[MethodInfo], width: int) -> Table:
    """A row for each method, those of one protocol together; without cost, then state, where `width` is too little."""
    names = [method.name for method in methods]
    table = _table("name", names=names)
    columns = {
        "needs": [needs(method) for method in methods],
        "state": [method.state_size for method in methods],
        "cost": [method.complexity for method in methods],
    }
    room = width - max(map(cell_len, names), default=0) - EDGES
    while len(columns) > 1 and sum(_least(*column) + GAP for column in columns.items()) > room:
        columns.popitem()
    for name, share in zip(columns, _shares(columns, room), strict=True):
        table.add_column(name, width=share)
    for protocol in dict.fromkeys(method.protocol for method in methods):
        table.add_section()
        table.add_row(Text(protocol, style="dim italic"))
        for row, method in enumerate(methods):
            if method.protocol == protocol:
                cells = (Text(column[row]) for column in columns.values())
                table.add_row(Text(method.name, style="bold"), *cells)
    return table


def _least(name: str, cells: Sequence[str]) -> int:
    """The longest word: a column that is narrower would break it."""
    return max(cell_len(word) for cell in (name, *cells) for word in cell.split())


def _shares(columns: Mapping[str, Sequence[str]], room: int) -> list[int]:
    """How wide each column is: its longest word, and of what is left the more the longer its cells are."""
    least = [_least(*column) for column in columns.items()]
    most = [max(map(cell_len, (name, *cells))) for name, cells in columns.items()]
    wished = [high - low for high, low in zip(most, least, strict=True)]
    spare = max(0, room - sum(low + GAP for low in least))
    shared = [min(wish, spare * wish // max(1, sum(wished))) for wish in wished]
    return [low + more for low, more in zip(least, shared, strict=True)]


def parameters_table(method: MethodInfo) -> Table:
    table = _table("parameter", names=[parameter.name for parameter in method.parameters])
    table.add_column("default", no_wrap=True)
    table.add_column("allowed", overflow="fold")
    for parameter in method.parameters:
        default = Text("required", style="yellow") if parameter.required else Text(setting(parameter.default))
        table.add_row(Text(parameter.name, style="bold"), default, Text(parameter.allowed))
    return table


def packs_table(packs: Sequence[PackInfo]) -> Table:
    table = _table("name", names=[pack.name for pack in packs])
    for name in ("samples", "classes", "d", "views"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("what it is", overflow="fold")
    for pack in packs:
        sizes = (pack.n_samples, pack.n_classes, pack.dimension, pack.n_views)
        table.add_row(Text(pack.name, style="bold"), *(str(size) if size else "-" for size in sizes), Text(pack.title))
    return table


def encoders_table(families: Sequence[FamilyInfo]) -> Table:
    table = _table("family", names=[family.name for family in families])
    table.add_column("for example", overflow="fold")
    table.add_column("here", overflow="fold")
    for family in families:
        ready = Text(f"no: {family.fix}", style="yellow") if family.missing else Text("ready", style="green")
        note = Text(f" ({family.note})", style="dim") if family.note else Text()
        table.add_row(Text(family.name, style="bold"), Text(family.example) + note, ready)
    return table


def prompts_table(modes: Sequence[Mode]) -> Table:
    table = _table("mode", names=[mode.name for mode in modes])
    table.add_column("in the paper", no_wrap=True)
    table.add_column("needs", overflow="fold")
    table.add_column("what it says", overflow="fold")
    for mode in modes:
        needs = Text(", ".join(f"--{need}" for need in mode.needs) or "-")
        table.add_row(Text(mode.name, style="bold"), mode.title, needs, Text(mode.summary))
    return table


def _table(first: str, *, names: Sequence[str]) -> Table:
    """A table whose first column is always wide enough for `names`: half a name cannot be copied into a command."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False, header_style="dim")
    # rich shrinks even columns that do not wrap where the terminal is narrow; a least width it keeps.
    table.add_column(first, no_wrap=True, min_width=max(map(cell_len, (first, *names))))
    return table


# Every method in a Markdown table: the one in docs/methods.md, which a test holds to the registry.


HEADER = ("name", "class", "protocol", "needs", "state", "cost", "")


def methods_markdown(methods: Sequence[MethodInfo]) -> str:
    """A row for each method; the last column says of an online method that it is scored before it learns, and marks
    reconstructions.

    >>> from zeroshift.methods import get
    >>> print(methods_markdown([get("zero_shot")]).splitlines()[-1])
    | zero_shot | `ZeroShot` | online | | K d, the prototypes | O(K d) per sample | |
    """
    rows = [HEADER, ("---",) * len(HEADER), *(_cells(method) for method in methods)]
    return "\n".join(_line(row) for row in rows)


def _cells(method: MethodInfo) -> tuple[str, ...]:
    remarks = ["scored before it learns"] if method.protocol == "online" and method.scored == "before" else []
    remarks += ["reconstructed"] if method.reconstructed else []
    return (
        method.name,
        f"`{method.cls.__name__}`",
        method.protocol,
        needs(method),
        method.state_size,
        method.complexity,
        ", ".join(remarks),
    )


def _line(cells: Sequence[str]) -> str:
    written = "|".join(f" {cell} " if cell else " " for cell in (cell.replace("|", "\\|") for cell in cells))
    return f"|{written}|"
