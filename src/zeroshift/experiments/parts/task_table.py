"""The shape most of the paper's tables have: a row a variant, a column a task."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from zeroshift.evaluate import Job, Trial
from zeroshift.experiments.parts.experiment import Answers
from zeroshift.experiments.parts.findings import Cell, Column, Remark, Row, Table, Value
from zeroshift.experiments.parts.suite import Member, Suite, Task, together
from zeroshift.experiments.parts.trials import mean_of_sets

__all__ = ["Variant", "data_remark", "jobs_of", "task_table"]


@dataclass(frozen=True)
class Variant:
    """A row: what is run on each set, and what the paper printed for it."""

    label: str
    trials: Callable[[Member], Sequence[Trial]]
    group: str = ""
    paper: Mapping[str, float | None] = field(default_factory=dict)
    """In percent, by what the paper calls the task: "Task 1"."""
    strong: bool = False


def jobs_of(variants: Sequence[Variant], suite: Suite) -> list[Job]:
    """All work the rows need."""
    return [trial for member in suite.members for variant in variants for trial in variant.trials(member)]


def task_table(
    name: str,
    title: str,
    variants: Sequence[Variant],
    suite: Suite,
    answers: Answers,
    *,
    label: str = "",
    field: str = "accuracy",
    notes: Sequence[str] = (),
) -> Table:
    """Mean accuracy over the sets of each task; the paper's beside it where the sets are the paper's."""
    columns = [Column(label, "text")]
    columns += [Column(_title(task), "percent", together(suite.of_task(task.id))) for task in suite.tasks]
    rows = [
        Row((variant.label, *(_cell(variant, task, suite, answers, field) for task in suite.tasks)), variant.group,
            variant.strong)
        for variant in variants
    ]  # fmt: skip
    return Table(name, title, tuple(columns), _with_best(rows), tuple(notes))


def data_remark(suite: Suite, what: str = "The paper's") -> Remark | None:
    """Says where ours ran on other data than the paper's; None where all was the same."""
    other = [task for task in suite.tasks if suite.papers(task) is None]
    if not other:
        return None
    said = "; ".join(f"{_title(task)}: {together(suite.of_task(task.id))}" for task in other)
    encoders = " and ".join(suite.encoders)
    return Remark(
        f"Ours ran on other data than the paper's ({encoders} features of {said}). {what} numbers are for CLIP on "
        "ImageNet and its kin: compare the pattern, not the numbers.",
        kind="data",
    )


def _title(task: Task) -> str:
    return f"{task.paper}: {task.title}" if task.paper else task.title.capitalize()


def _cell(variant: Variant, task: Task, suite: Suite, answers: Answers, field: str) -> Cell:
    printed = variant.paper.get(task.paper) if suite.papers(task) == "CLIP ViT-B/16" else None
    by_set = [variant.trials(member) for member in suite.of_task(task.id)]
    return mean_of_sets(answers, by_set, field, paper=None if printed is None else printed / 100)


def _with_best(rows: Sequence[Row]) -> tuple[Row, ...]:
    """Mark the greatest value of each column, as the paper does in bold."""
    cells = [list(row.cells) for row in rows]
    for place in range(1, len(cells[0]) if cells else 0):
        values = [(cell.value, at) for at, row in enumerate(cells) if isinstance(cell := row[place], Value)]
        for value, at in values:
            cell = cells[at][place]
            if isinstance(cell, Value) and value == max(values)[0]:
                cells[at][place] = replace(cell, best=True)
    return tuple(replace(row, cells=tuple(line)) for row, line in zip(rows, cells, strict=True))
