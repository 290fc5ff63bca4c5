"""Table 13: online ADAPT over ten random orders of every set."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from zeroshift.evaluate import Job, Trial, worst_share
from zeroshift.experiments._shared.claims import paper_reference
from zeroshift.experiments._shared.experiment import Experiment, JobResults, Options
from zeroshift.experiments._shared.findings import Cell, Column, Finding, Remark, Row, Table, Value
from zeroshift.experiments._shared.main_table import unique_titles
from zeroshift.experiments._shared.paper import paper_table
from zeroshift.experiments._shared.suite import Member, Suite, Task
from zeroshift.experiments._shared.tasks import PAPERS_BACKBONE
from zeroshift.experiments._shared.trials import measured, runs, spread

__all__ = ["EXPERIMENT"]

PERMUTATIONS = 10
"""The number of orders in the paper, and the minimum here, because a spread over fewer is not meaningful."""

TABLES = {"natural": "stability_task1", "corruption": "stability_task2", "fine_grained": "stability_task3"}
"""Ids of the paper's tables, by task."""

AVERAGE, SHIFTED = "Avg.", "OOD Avg."
"""The paper's names of the mean over all sets, and of that without the source of the shifts."""

SOURCE = "imagenet"

LEAST_DIFFERENCE = 0.001
"""Smaller differences are not visible in the table and count as equal."""

PAPERS_LARGEST = 0.71
"""The largest standard deviation in the paper, in points (EuroSAT)."""


def _trials(member: Member, options: Options) -> list[Trial]:
    return runs(member, "adapt_online", max(PERMUTATIONS, options.orders))


def _plan(suite: Suite, options: Options) -> Sequence[Job]:
    return [trial for member in suite.members for trial in _trials(member, options)]


def _find(suite: Suite, options: Options, results: JobResults) -> Sequence[Finding | None]:
    permutations = max(PERMUTATIONS, options.orders)
    columns = (
        Column("set", "text"),
        Column("Mean", "percent", f"{permutations} orders, minimum and maximum"),
        Column("Standard deviation", "number", f"of {permutations} orders, in points"),
        Column("Worst tenth", "percent", "of the orders"),
        Column("Zero-shot", "percent"),
    )
    rows = [row for task in suite.tasks for row in _rows(task, suite, options, results)]
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
    return [table, *_spread(table), *_losses(table), *paper_reference(suite, *used)]


def _rows(task: Task, suite: Suite, options: Options, results: JobResults) -> list[Row]:
    members = suite.of_task(task.id)
    titles = unique_titles([member.title for member in members], members)
    rows = []
    for title, member in zip(titles, members, strict=True):
        papers = member.paper_column if member.encoder == PAPERS_BACKBONE else None
        found, permutations = _accuracies([member], options, results), len(_trials(member, options))
        answered = len(results.records(_trials(member, options)))
        label = title if answered == permutations else f"{title} ({answered} of {permutations} orders)"
        rows.append(_row(label, task, found, _baseline([member], options, results), papers))
    whole = suite.paper_backbone(task) == PAPERS_BACKBONE
    shifted = [member for member in members if member.data_set != SOURCE]
    means = {AVERAGE: members} if len(shifted) in (0, len(members)) else {SHIFTED: shifted, AVERAGE: members}
    for name, those in means.items():
        complete = all(len(results.records(trials)) == len(trials) for trials in (_trials(m, options) for m in those))
        if len(those) > 1 and complete:
            without = f", all but {SOURCE}" if name == SHIFTED else ""
            label = f"average of {len(those)} sets{without}"
            found, zero_shot = _accuracies(those, options, results), _baseline(those, options, results)
            rows.append(_row(label, task, found, zero_shot, name if whole else None, strong=name == AVERAGE))
    return rows


def _accuracies(members: Sequence[Member], options: Options, results: JobResults) -> list[float]:
    """Accuracies of one set, or means over several, per order."""
    by_set = [results.records(_trials(member, options)) for member in members]
    return [float(np.mean([record["accuracy"] for record in order])) for order in zip(*by_set, strict=True)]


def _baseline(members: Sequence[Member], options: Options, results: JobResults) -> Value | None:
    """Zero-shot accuracy, which is the same in every order."""
    found = [measured(results, _trials(member, options), "zero_shot_accuracy") for member in members]
    values = [value.value for value in found if value is not None]
    return Value(float(np.mean(values))) if len(values) == len(members) else None


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
        spread(accuracies, None if mean is None else mean / 100),
        Value(100 * float(np.std(accuracies, ddof=1)), paper=deviation),
        Value(worst_share(accuracies)),
        zero_shot,
    )
    return Row((label, *cells), task.title, strong)


def _printed(task: Task, column: str | None) -> tuple[float | None, float | None]:
    """Mean (percent) and standard deviation (points) in the paper."""
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
    text = f"The largest standard deviation here is {found[widest]:.2f} points ({widest})"
    if not over:
        return [Remark(f"{text}; the paper's largest is {PAPERS_LARGEST} (EuroSAT).")]
    return [
        Remark(
            f"{text}. {over} of {len(found)} rows are above the paper's largest, {PAPERS_LARGEST} (EuroSAT).",
            kind="warning",
        )
    ]


def _losses(table: Table) -> list[Remark]:
    """Where the worst orders are below, above or equal to zero-shot."""
    by_side: dict[str, list[str]] = {"below": [], "level with": [], "above": []}
    for row in table.rows:
        worst, base = row.cells[3:5]
        if isinstance(worst, Value) and isinstance(base, Value):
            gap = worst.value - base.value
            where = "level with" if abs(gap) < LEAST_DIFFERENCE else "above" if gap > 0 else "below"
            by_side[where].append(
                f"{row.cells[0]} ({100 * gap:+.1f} points)" if where == "below" else str(row.cells[0])
            )
    text = "; ".join(f"{where} zero-shot on {', '.join(names)}" for where, names in by_side.items() if names)
    if not text:
        return []
    return [Remark(f"The worst tenth of the orders ends {text}.", kind="warning" if by_side["below"] else "note")]


EXPERIMENT = Experiment(
    name="stability",
    title="Stability over random orders",
    question="How much does the accuracy of online ADAPT depend on the order of the stream?",
    plan=_plan,
    find=_find,
    where="Table 13",
    tables=tuple(TABLES.values()),
)
