"""Table 8: the closed form against predictions and means that take turns until nothing moves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from zeroshift.evaluate import Job, Trial
from zeroshift.experiments.parts.choice import one_a_task, one_a_task_note
from zeroshift.experiments.parts.claims import Evidence, paper_beside, verdict
from zeroshift.experiments.parts.experiment import Answers, Experiment, Options
from zeroshift.experiments.parts.findings import Cell, Column, Finding, Remark, Table, Value
from zeroshift.experiments.parts.paper import paper_table
from zeroshift.experiments.parts.suite import Member, Suite
from zeroshift.experiments.parts.sweep import points
from zeroshift.experiments.parts.task_table import Variant, jobs_of, task_table
from zeroshift.experiments.parts.trials import runs

__all__ = ["EXPERIMENT"]

ITERATIONS = 20
"""Rounds at most; they end sooner where no probability moves by 1e-6. The paper does not say how many it allowed."""

TOLERANCE = 1.0
"""Points of accuracy within which the two count as equal."""

METHODS = {"online": "adapt_online", "transductive": "adapt_transductive"}
ROUNDS = {"Iterative": ITERATIONS, "Closed": 1}
"""By the paper's names of the rows."""


def _trials(member: Member, method: str, rounds: int) -> list[Trial]:
    return runs(member, method, 1, {"iterations": rounds})


def _variants() -> list[Variant]:
    printed = paper_table("closed_vs_iterative")
    return [
        Variant(
            label="closed form" if rounds == 1 else "iterative",
            trials=partial(_trials, method=method, rounds=rounds),
            group=protocol,
            paper={task: printed.number_at(task, protocol=protocol, label=row) for task in printed.columns},
            strong=rounds == 1,
        )
        for protocol, method in METHODS.items()
        for row, rounds in ROUNDS.items()
    ]


def _plan(suite: Suite, options: Options) -> Sequence[Job]:
    return jobs_of(_variants(), one_a_task(suite))


def _find(suite: Suite, options: Options, answers: Answers) -> Sequence[Finding]:
    kept = one_a_task(suite)
    table = task_table(
        "closed-form",
        "Closed form against iterations",
        _variants(),
        kept,
        answers,
        label="how",
        notes=(
            one_a_task_note(suite),
            f"At most {ITERATIONS} rounds, until no probability moves by 1e-6. Times were taken while other work ran: "
            "compare them with each other only. Online, the closed form has a fast engine of its own, and iterations "
            "have not.",
        ),
        best_by_group=True,
    )
    table = _with_time(table, kept, answers)
    said = (_equal(table), _cost(table))
    return [table, *(remark for remark in said if remark is not None), *paper_beside(kept, "closed_vs_iterative")]


def _with_time(table: Table, suite: Suite, answers: Answers) -> Table:
    """Two columns more: seconds for 1,000 samples, and how many times the closed form's."""
    seconds = [_seconds(variant, suite, answers) for variant in _variants()]
    closed = {v.group: time for v, time in zip(_variants(), seconds, strict=True) if v.label == "closed form"}
    rows = []
    for row, time in zip(table.rows, seconds, strict=True):
        base = closed[row.group]
        cells: tuple[Cell, Cell] = (
            None if time is None else Value(time),
            None if time is None or not base else Value(time / base),
        )
        rows.append(replace(row, cells=(*row.cells, *cells)))
    columns = (Column("time", "seconds", "for 1,000 samples"), Column("ratio", "number", "to the closed form"))
    return replace(table, columns=(*table.columns, *columns), rows=tuple(rows))


def _seconds(variant: Variant, suite: Suite, answers: Answers) -> float | None:
    records = [record for member in suite.members for record in answers.all_of(variant.trials(member))]
    return float(np.mean([1000 * record["seconds"] / record["scored"] for record in records])) if records else None


def _equal(table: Table) -> Remark | None:
    rows = {(row.group, row.cells[0]): row.cells for row in table.rows}
    evidence = []
    for protocol in METHODS:
        closed, iterative = rows[protocol, "closed form"], rows[protocol, "iterative"]
        for place in range(1, len(table.columns) - 2):
            a, b = iterative[place], closed[place]
            if isinstance(a, Value) and isinstance(b, Value):
                gap = points(a.value, b.value)
                where = f"{protocol}, {table.columns[place].title}"
                evidence.append(Evidence(where, gap >= -TOLERANCE, f"{gap:+.1f} points"))
    return verdict(
        f"the closed form matches the iterations (read as: it is at most {TOLERANCE:g} point below them)", evidence
    )


def _cost(table: Table) -> Remark | None:
    """Times side by side, as ratios: the paper's were taken on other hardware."""
    printed = paper_table("closed_vs_iterative")
    told = []
    for protocol in METHODS:
        ours = next(row.cells[-1] for row in table.rows if row.group == protocol and row.cells[0] == "iterative")
        theirs = [printed.row(protocol=protocol, label=label) for label in ROUNDS]
        times = [float(row.extra["seconds"]["Time"]) for row in theirs if row is not None]
        if isinstance(ours, Value) and len(times) == len(ROUNDS):
            told.append(f"{protocol} {ours.value:.1f} times (the paper: {times[0] / times[1]:.1f} times)")
    return Remark(f"Iterating took, of the closed form's time: {', '.join(told)}.") if told else None


EXPERIMENT = Experiment(
    name="closed-form",
    title="Closed form against iterations",
    question="What does it cost to predict in one pass, without letting predictions and means settle on each other?",
    plan=_plan,
    find=_find,
    where="Table 8",
    tables=("closed_vs_iterative",),
)
