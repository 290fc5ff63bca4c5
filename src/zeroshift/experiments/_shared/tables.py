"""Tables with one column per task, remarks on how our data differ from the paper's, and the paper's own tables."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from zeroshift.evaluate import Job
from zeroshift.experiments._shared.experiment import JobResults
from zeroshift.experiments._shared.findings import Cell, Column, Remark, Row, Table, Unit, Value
from zeroshift.experiments._shared.paper import PaperRow, PaperTable, paper_table, paper_tables
from zeroshift.experiments._shared.suite import Member, Suite, Task, describe_sets
from zeroshift.experiments._shared.tasks import PAPER_COLUMNS, PAPERS_BACKBONE, TASKS
from zeroshift.experiments._shared.trials import mean_of_sets

__all__ = [
    "MEANS_DIFFER_BY",
    "PAPERS_PROMPT",
    "ROUNDING",
    "Variant",
    "accuracies",
    "data_differs",
    "data_remark",
    "mean_notes",
    "paper_by_task",
    "reference",
    "task_table",
    "task_title",
    "variant_jobs",
    "with_best",
    "with_mean_note",
]

ROUNDING = 1e-9
"""Smaller differences are rounding."""


def with_best(rows: Sequence[Row], *, by_group: bool = False) -> tuple[Row, ...]:
    """Mark the highest number of each column, per table or per group; ties are all marked.

    A single number is not marked.

    >>> rows = [Row(("a", Value(0.5)), "online"), Row(("b", Value(0.7)), "online"), Row(("c", Value(0.6)), "other")]
    >>> [row.cells[1].best for row in with_best(rows)]
    [False, True, False]
    >>> [row.cells[1].best for row in with_best(rows, by_group=True)]
    [False, True, False]
    """
    compared: dict[tuple[str, int], list[float]] = {}
    for row in rows:
        for place, cell in enumerate(row.cells):
            if isinstance(cell, Value):
                compared.setdefault((row.group if by_group else "", place), []).append(cell.value)

    def marked(cell: Cell, key: tuple[str, int]) -> Cell:
        if not isinstance(cell, Value):
            return cell
        return replace(cell, best=len(compared[key]) > 1 and cell.value >= max(compared[key]) - ROUNDING)

    return tuple(
        replace(row, cells=tuple(marked(cell, (row.group if by_group else "", i)) for i, cell in enumerate(row.cells)))
        for row in rows
    )


MEANS_DIFFER_BY = 0.02
"""Differences in points that rounding to two digits explains."""

REPEATED = {"method": "ADAPT", "protocol": "transductive"}
"""The row of Table 3 whose mean the paper repeats in other tables."""


def mean_notes(table: PaperTable) -> tuple[str, ...]:
    """A sentence for each row of a main table whose printed mean differs from the mean of its numbers.

    >>> mean_notes(paper_table("corruption_vitb16"))
    ('The mean printed for ADAPT (transductive), 30.29, is not that of its 15 printed numbers, which is 30.43.',)
    """
    columns = [column for column in table.columns if not column.endswith("Avg.")]
    return tuple(
        f"The mean printed for {row.method} ({row.protocol}), {printed:.2f}, is not that of its {len(columns)} printed "
        f"numbers, which is {mean:.2f}."
        for row in table.rows
        if (printed := row.number("Avg.")) is not None
        and None not in (numbers := [row.number(column) for column in columns])
        and abs(printed - (mean := float(np.mean([n for n in numbers if n is not None])))) > MEANS_DIFFER_BY
    )


def with_mean_note(table: Table) -> Table:
    """The table, with a note if it contains the mean of Table 3 that is not the mean of its numbers."""
    printed = paper_table("corruption_vitb16")
    number = printed.number_at("Avg.", **REPEATED)
    if number is None or not any(math.isclose(n, number / 100, abs_tol=1e-9) for n in _printed(table)):
        return table
    (text,) = (note for note in mean_notes(printed) if f"{number:.2f}" in note)
    return replace(table, notes=(*table.notes, f"{printed.title}: {text[0].lower()}{text[1:]}"))


def _printed(table: Table) -> Iterator[float]:
    """The paper's numbers in a table, except those of single sets."""
    for row in table.rows:
        for column, cell in zip(table.columns, row.cells, strict=True):
            if isinstance(cell, Value) and column.title not in PAPER_COLUMNS.values():
                number = cell.value if table.reference else cell.paper
                if number is not None:
                    yield number


PAPERS_PROMPT = "descriptions"
"""The prompt mode of the paper's main results: class descriptions written by GPT."""


@dataclass(frozen=True)
class Variant:
    """A row: its jobs on each set, and the numbers of the paper."""

    label: str
    trials: Callable[[Member], Sequence[Job]]
    group: str = ""
    paper: Mapping[str, float | None] = field(default_factory=dict)
    """In percent, by the paper's name of the task: "Task 1"."""
    strong: bool = False


def variant_jobs(variants: Sequence[Variant], suite: Suite) -> list[Job]:
    """All jobs of the rows."""
    return [trial for member in suite.members for variant in variants for trial in variant.trials(member)]


def task_table(
    name: str,
    title: str,
    variants: Sequence[Variant],
    suite: Suite,
    results: JobResults,
    *,
    label: str = "",
    field: str = "accuracy",
    notes: Sequence[str] = (),
    best_by_group: bool = False,
) -> Table:
    """Mean accuracy over the sets of each task, with the paper's number if the sets are the paper's.

    The best number is marked per column or, with `best_by_group`, per group of rows.
    """
    columns = [Column(label, "text")]
    columns += [Column(task_title(task), "percent", describe_sets(suite.of_task(task.id))) for task in suite.tasks]
    rows = [
        Row((variant.label, *(_cell(variant, task, suite, results, field) for task in suite.tasks)), variant.group,
            variant.strong)
        for variant in variants
    ]  # fmt: skip
    return with_mean_note(Table(name, title, tuple(columns), with_best(rows, by_group=best_by_group), tuple(notes)))


def paper_by_task(row: PaperRow | None) -> dict[str, float | None]:
    """The numbers of a row of the paper in the columns "Task 1" to "Task 3"; empty without a row."""
    return {} if row is None else {task.paper: row.number(task.paper) for task in TASKS if task.paper}


def accuracies(table: Table, suite: Suite) -> list[tuple[Task, dict[tuple[str, str], float]]]:
    """The accuracies of a `task_table` for each task, by group and label of the row; without failed ones."""
    return [
        (
            task,
            {
                (row.group, str(row.cells[0])): cell.value
                for row in table.rows
                if isinstance(cell := row.cells[place], Value)
            },
        )
        for place, task in enumerate(suite.tasks, start=1)
    ]


def data_remark(
    suite: Suite, what: str = "The paper's", *, needs: Sequence[str] = (), prompts: bool = True
) -> Remark | None:
    """Says where our data or prompts differ from the paper's; None if they do not.

    `needs` are the catalogue ids of the sets of the paper's numbers, if these are not means over all sets of a
    task. Experiments that compare prompts pass `prompts=False`.
    """
    texts = []
    other = _other_data(suite)
    if other:
        encoders = " and ".join(suite.encoders)
        texts.append(
            f"Ours ran on other data than the paper's ({encoders} features, {'; '.join(other)}). {what} numbers are "
            "for CLIP on ImageNet, its variants and ten fine-grained sets: compare the pattern, not the numbers."
        )
    missing = _missing(suite, needs)
    if missing:
        texts.append(f"These sets of the paper's table are missing here: {', '.join(missing)}.")
    elif _partial(suite, needs):
        texts.append("Some of the paper's sets are not here: our means do not compare with its means.")
    modes = dict.fromkeys(m.dataset.prompt for m in suite.members if m.from_paper and m.dataset.prompt != PAPERS_PROMPT)
    if modes and prompts:
        texts.append(
            f"The images are the paper's, the prompts are not: ours are {', '.join(modes)}, its main results are of "
            f"class descriptions written by GPT (mode {PAPERS_PROMPT}). Fix: `zeroshift extract ... --prompts "
            f"{PAPERS_PROMPT} --descriptions FILE`."
        )
    return Remark(" ".join(texts), kind="data") if texts else None


def data_differs(suite: Suite, needs: Sequence[str] = ()) -> bool:
    """Whether our data differ from those of the paper's numbers; `needs` as in `data_remark`."""
    return bool(_other_data(suite)) or _partial(suite, needs)


def _other_data(suite: Suite) -> list[str]:
    """The sets that are not the paper's, by task."""
    by_task = ((task, [m for m in suite.of_task(task.id) if not m.from_paper]) for task in suite.tasks)
    return [f"for {task_title(task)}: {describe_sets(members)}" for task, members in by_task if members]


def _missing(suite: Suite, needs: Sequence[str]) -> list[str]:
    """Needed sets that are missing, if other sets of the paper are present."""
    here = {member.data_set for member in suite.members if member.from_paper}
    return [name for name in needs if name not in here] if here else []


def _partial(suite: Suite, needs: Sequence[str]) -> bool:
    """Whether a mean lacks sets of the paper. Means over several encoders do not compare either."""
    if needs:
        return bool(_missing(suite, needs))
    whole = [task for task in suite.tasks if all(member.from_paper for member in suite.of_task(task.id))]
    return any(part.paper_backbone(task) is None for task in whole for part in suite.by_encoder)


def task_title(task: Task) -> str:
    """Name of a task in a column or sentence.

    >>> task_title(TASKS[0]), task_title(TASKS[-1])
    ('Task 1: natural shift', 'Other sets')
    """
    return f"{task.paper}: {task.title}" if task.paper else task.title.capitalize()


def _cell(variant: Variant, task: Task, suite: Suite, results: JobResults, field: str) -> Cell:
    printed = variant.paper.get(task.paper) if suite.paper_backbone(task) == PAPERS_BACKBONE else None
    by_set = [variant.trials(member) for member in suite.of_task(task.id)]
    return mean_of_sets(results, by_set, field, paper=None if printed is None else printed / 100)


UNITS: dict[str, Unit] = {
    "Gain (%)": "points",
    "Memory (GB)": "number",
    "Time": "text",
    "Low-dim": "count",
    "Average p-value": "number",
}
"""Units of columns that are not percentages; columns with text are always text."""

MOVED = {"knowledge_bank": "bank", "update_mu": "means", "update_sigma": "covariance"}
"""Labels of the switches of the ablation."""

SPREAD = "The range is one standard deviation to either side, as printed."


def reference(name: str, methods: Collection[str] | None = None) -> Table:
    """A table of the paper as a finding, with all printed rows or those of `methods`.

    >>> table = reference("natural_shift_vitb16")
    >>> table.title, table.columns[2].title
    ('Table 2 of the paper: Top-1 accuracy (%) comparison on natural distribution shift', 'ImageNet-A')
    >>> adapt = table.rows[18]
    >>> adapt.cells[0], adapt.group, round(adapt.cells[2].value, 4), adapt.strong
    ('ADAPT', 'online', 0.6332, True)
    """
    printed = paper_table(name)
    if methods is not None:
        printed = replace(printed, rows=tuple(row for row in printed.rows if _base_method(row.method) in methods))
    units = [_paper_unit(printed, column) for column in printed.columns]
    rows = [_paper_row(printed, row, units) for row in printed.rows]
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
        title=f"{printed.title}{_paper_part(printed)}: {printed.caption.split('. ')[0].rstrip('.')}",
        columns=(Column("", "text"), *(Column(*pair) for pair in zip(printed.columns, units, strict=True))),
        rows=with_best(rows, by_group=True) if compared else tuple(rows),
        notes=tuple(notes),
        reference=True,
    )
    return table if compared else with_mean_note(table)


def _paper_part(table: PaperTable) -> str:
    """Which part of a table, if several share a number."""
    parts = [other.id for other in paper_tables().values() if other.number == table.number]
    return f", part {parts.index(table.id) + 1}" if len(parts) > 1 else ""


def _paper_unit(table: PaperTable, column: str) -> Unit:
    if any(isinstance(row.values.get(column), str) for row in table.rows):
        return "text"
    return UNITS.get(column, "percent")


def _paper_row(table: PaperTable, row: PaperRow, units: list[Unit]) -> Row:
    label, group = _paper_row_names(table, row)
    cells = (_paper_cell(row, column, unit) for column, unit in zip(table.columns, units, strict=True))
    # Highlight ADAPT only if other methods are in the table.
    strong = _base_method(row.method) == "ADAPT" and len({_base_method(other.method) for other in table.rows}) > 1
    return Row((label, *cells), group, strong)


def _paper_row_names(table: PaperTable, row: PaperRow) -> tuple[str, str]:
    """Label and group of the row."""
    protocol, method = row.protocol or "", _base_method(row.method)
    one_method = len({_base_method(other.method) for other in table.rows}) == 1
    if "config" in row.extra:
        return " + ".join(word for key, word in MOVED.items() if row.extra["config"][key]) or "nothing (CLIP)", ""
    if "task" in row.extra:
        task = str(row.extra["task"])
        return (task, protocol) if one_method else (f"{method}, {protocol}" if protocol else method, task)
    if row.label:
        return row.label, protocol if one_method else method
    return method, protocol


def _base_method(method: str) -> str:
    """The method without its suffix: ADAPT for `ADAPT [order: Hard-to-Easy]`."""
    return method.split(" [")[0]


def _paper_cell(row: PaperRow, column: str, unit: Unit) -> Cell:
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
