"""Table 13: online ADAPT over ten random orders of every set."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from zeroshift.evaluate import Job, Trial, worst_share
from zeroshift.experiments.parts.claims import paper_beside
from zeroshift.experiments.parts.experiment import Answers, Experiment, Options
from zeroshift.experiments.parts.findings import Cell, Column, Finding, Remark, Row, Table, Value
from zeroshift.experiments.parts.paper import paper_table
from zeroshift.experiments.parts.suite import Member, Suite, Task
from zeroshift.experiments.parts.trials import measured, runs

__all__ = ["EXPERIMENT"]

PERMUTATIONS = 10
"""The paper's; asking for fewer orders does not lower it, because a spread over fewer says little."""

TABLES = {"natural": "stability_task1", "corruption": "stability_task2", "fine_grained": "stability_task3"}
"""Ids of the paper's tables, by task."""

PAPERS_BACKBONE = "CLIP ViT-B/16"

AVERAGE = "Avg."

PAPERS_LARGEST = 0.71
"""Points: the largest standard deviation the paper prints (EuroSAT)."""


def _trials(member: Member, options: Options) -> list[Trial]:
    return runs(member, "adapt_online", max(PERMUTATIONS, options.orders))


def _plan(suite: Suite, options: Options) -> Sequence[Job]:
    return [trial for member in suite.members for trial in _trials(member, options)]


def _find(suite: Suite, options: Options, answers: Answers) -> Sequence[Finding]:
    permutations = max(PERMUTATIONS, options.orders)
    columns = (
        Column("set", "text"),
        Column("Mean", "percent", f"{permutations} orders, least and greatest"),
        Column("Standard deviation", "number", f"of {permutations} orders, in points"),
        Column("Worst tenth", "percent", "of the orders"),
        Column("Zero-shot", "percent"),
    )
    rows = [row for task in suite.tasks for row in _rows(task, suite, options, answers)]
    table = Table(
        "stability",
        "Online ADAPT over random orders",
        columns,
        tuple(rows),
        (
            "The standard deviation is the sample's (n - 1). An average over sets is taken order by order, and its "
            "deviation is that of these averages.",
        ),
    )
    used = [TABLES[task.id] for task in suite.tasks if task.id in TABLES]
    return [table, *_spread(table), *_losses(table), *paper_beside(suite, *used)]


def _rows(task: Task, suite: Suite, options: Options, answers: Answers) -> list[Row]:
    by_set = {member.entry.digest: _accuracies(member, options, answers) for member in suite.of_task(task.id)}
    rows, baselines = [], []
    for member in suite.of_task(task.id):
        zero_shot = measured(answers, _trials(member, options)[:1], "zero_shot_accuracy")
        papers = member.paper_column if member.encoder == PAPERS_BACKBONE else None
        rows.append(_row(member.title, task, by_set[member.entry.digest], zero_shot, papers))
        baselines.append(zero_shot)
    runs_of_sets = list(by_set.values())
    complete = len({len(values) for values in runs_of_sets}) == 1 and all(runs_of_sets)
    if len(rows) > 1 and complete:
        means = [float(np.mean(order)) for order in zip(*runs_of_sets, strict=True)]
        zero_shot = Value(float(np.mean([value.value for value in baselines if value is not None])))
        papers = AVERAGE if suite.papers(task) == PAPERS_BACKBONE else None
        rows.append(_row(f"average of {len(rows)} sets", task, means, zero_shot, papers, strong=True))
    return rows


def _accuracies(member: Member, options: Options, answers: Answers) -> list[float]:
    return [float(record["accuracy"]) for record in answers.all_of(_trials(member, options))]


def _row(
    label: str,
    task: Task,
    accuracies: Sequence[float],
    zero_shot: Value | None,
    papers: str | None,
    strong: bool = False,
) -> Row:
    if len(accuracies) < 2:
        return Row((label, None, None, None, zero_shot), task.title, strong)
    mean, deviation = _printed(task, papers)
    cells: tuple[Cell, ...] = (
        Value(float(np.mean(accuracies)), min(accuracies), max(accuracies), None if mean is None else mean / 100),
        Value(100 * float(np.std(accuracies, ddof=1)), paper=deviation),
        Value(worst_share(accuracies)),
        zero_shot,
    )
    return Row((label, *cells), task.title, strong)


def _printed(task: Task, column: str | None) -> tuple[float | None, float | None]:
    """Mean and standard deviation, in percent and points, as the paper has them."""
    if column is None or task.id not in TABLES:
        return None, None
    (row,) = paper_table(TABLES[task.id]).rows
    return row.number(column), row.extra["std"].get(column)


def _spread(table: Table) -> list[Remark]:
    found = {str(row.cells[0]): cell.value for row in table.rows if isinstance(cell := row.cells[2], Value)}
    if not found:
        return []
    widest = max(found, key=lambda name: found[name])
    over = sum(value > PAPERS_LARGEST for value in found.values())
    said = f"The largest standard deviation here is {found[widest]:.2f} points ({widest})"
    if not over:
        return [Remark(f"{said}; the paper's largest is {PAPERS_LARGEST} (EuroSAT).")]
    return [
        Remark(
            f"{said}. {over} of {len(found)} rows are above the paper's largest, {PAPERS_LARGEST} (EuroSAT): smaller "
            "sets spread more.",
            kind="warning",
        )
    ]


def _losses(table: Table) -> list[Remark]:
    """Sets on which some orders end below zero-shot."""
    lost = [
        str(row.cells[0])
        for row in table.rows
        if isinstance(worst := row.cells[3], Value) and isinstance(base := row.cells[4], Value)
        if worst.value < base.value
    ]
    if not lost:
        return [Remark("On every set even the worst tenth of the orders ends above zero-shot.")]
    return [Remark(f"The worst tenth of the orders ends below zero-shot on {', '.join(lost)}.", kind="warning")]


EXPERIMENT = Experiment(
    name="stability",
    title="Stability over random orders",
    question="How much does the accuracy of online ADAPT hang on the order of the stream?",
    plan=_plan,
    find=_find,
    where="Table 13",
    tables=tuple(TABLES.values()),
)
