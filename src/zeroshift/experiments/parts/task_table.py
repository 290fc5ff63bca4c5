"""The shape most of the paper's tables have: a row a variant, a column a task."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from zeroshift.evaluate import Job
from zeroshift.experiments.parts.experiment import Answers
from zeroshift.experiments.parts.findings import Cell, Column, Remark, Row, Table
from zeroshift.experiments.parts.marks import with_best
from zeroshift.experiments.parts.suite import Member, Suite, Task, together
from zeroshift.experiments.parts.trials import mean_of_sets

__all__ = ["Variant", "data_remark", "jobs_of", "task_table"]


@dataclass(frozen=True)
class Variant:
    """A row: what is run on each set, and what the paper printed for it."""

    label: str
    trials: Callable[[Member], Sequence[Job]]
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
    best_by_group: bool = False,
) -> Table:
    """Mean accuracy over the sets of each task; the paper's beside it where the sets are the paper's.

    The best of each column is marked: of the whole column or, with `best_by_group`, of each group of rows.
    """
    columns = [Column(label, "text")]
    columns += [Column(_title(task), "percent", together(suite.of_task(task.id))) for task in suite.tasks]
    rows = [
        Row((variant.label, *(_cell(variant, task, suite, answers, field) for task in suite.tasks)), variant.group,
            variant.strong)
        for variant in variants
    ]  # fmt: skip
    return Table(name, title, tuple(columns), with_best(rows, by_group=best_by_group), tuple(notes))


def data_remark(suite: Suite, what: str = "The paper's") -> Remark | None:
    """Says where ours ran on other data than the paper's; None where all was the same."""
    said = []
    partial = False
    for task in suite.tasks:
        members = suite.of_task(task.id)
        other = [member for member in members if not member.papers]
        if other:
            said.append(f"for {_title(task)}: {together(other)}")
        # Means over some of its sets, or over several encoders, are not its means either.
        partial = partial or (not other and any(part.papers(task) is None for part in suite.by_encoder))
    encoders = " and ".join(suite.encoders)
    texts = []
    if said:
        texts.append(
            f"Ours ran on other data than the paper's ({encoders} features, {'; '.join(said)}). {what} numbers are for "
            "CLIP on ImageNet, its variants and ten fine-grained sets: compare the pattern, not the numbers."
        )
    if partial:
        texts.append("Some of the paper's sets are not here: our means do not compare with its means.")
    return Remark(" ".join(texts), kind="data") if texts else None


def _title(task: Task) -> str:
    return f"{task.paper}: {task.title}" if task.paper else task.title.capitalize()


def _cell(variant: Variant, task: Task, suite: Suite, answers: Answers, field: str) -> Cell:
    printed = variant.paper.get(task.paper) if suite.papers(task) == "CLIP ViT-B/16" else None
    by_set = [variant.trials(member) for member in suite.of_task(task.id)]
    return mean_of_sets(answers, by_set, field, paper=None if printed is None else printed / 100)
