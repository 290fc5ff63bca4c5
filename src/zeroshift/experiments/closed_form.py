"""Table 8: the closed form against alternating updates of predictions and means until convergence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from zeroshift.evaluate import Job, Trial
from zeroshift.experiments._shared.claims import ClaimEvidence, effective_samples, paper_reference, verdict, within
from zeroshift.experiments._shared.compared_methods import OURS
from zeroshift.experiments._shared.experiment import Experiment, JobResults, Options
from zeroshift.experiments._shared.findings import Cell, Column, Finding, Remark, Table, Value
from zeroshift.experiments._shared.paper import paper_table
from zeroshift.experiments._shared.suite import Member, Suite, largest_per_task, largest_per_task_note
from zeroshift.experiments._shared.tables import (
    Variant,
    accuracies,
    paper_by_task,
    task_table,
    task_title,
    variant_jobs,
)
from zeroshift.experiments._shared.trials import points, runs

__all__ = ["EXPERIMENT"]

ITERATIONS = 20
"""Maximum number of rounds; they stop when no probability changes by 1e-6. The paper does not give its limit."""

TOLERANCE = 1.0
"""Points of accuracy that count as equal."""

ROUNDS = {"Iterative": ITERATIONS, "Closed": 1}
"""By the names of the rows in the paper."""


def _trials(member: Member, method: str, rounds: int) -> list[Trial]:
    return runs(member, method, 1, {"iterations": rounds})


def _variants() -> list[Variant]:
    printed = paper_table("closed_vs_iterative")
    return [
        Variant(
            label="closed form" if rounds == 1 else "iterative",
            trials=partial(_trials, method=method, rounds=rounds),
            group=protocol,
            paper=paper_by_task(printed.row(protocol=protocol, label=row)),
            strong=rounds == 1,
        )
        for protocol, method in OURS.items()
        for row, rounds in ROUNDS.items()
    ]


def _plan(suite: Suite, options: Options) -> Sequence[Job]:
    return variant_jobs(_variants(), largest_per_task(suite))


def _find(suite: Suite, options: Options, results: JobResults) -> Sequence[Finding | None]:
    kept = largest_per_task(suite)
    table = task_table(
        "closed-form",
        "Closed form against iterations",
        _variants(),
        kept,
        results,
        label="how",
        notes=(
            largest_per_task_note(suite),
            f"At most {ITERATIONS} rounds, until no probability changes by 1e-6. Times were measured while other work "
            "ran; compare them only with each other.",
        ),
        best_by_group=True,
    )
    table = _with_time(table, kept, results)
    remarks = (_equal(table, kept), _papers_own(), _cost(table))
    return [table, *remarks, *paper_reference(kept, "closed_vs_iterative")]


def _with_time(table: Table, suite: Suite, results: JobResults) -> Table:
    """The table with two more columns: seconds per 1,000 samples, and the ratio to the closed form."""
    seconds = [_seconds(variant, suite, results) for variant in _variants()]
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


def _seconds(variant: Variant, suite: Suite, results: JobResults) -> float | None:
    """The mean over sets; None if a run failed, because rows would be means over different sets."""
    jobs = [job for member in suite.members for job in variant.trials(member)]
    records = results.records(jobs)
    if len(records) < len(jobs):
        return None
    return float(np.mean([1000 * record["seconds"] / record["scored"] for record in records]))


def _equal(table: Table, suite: Suite) -> Remark | None:
    evidence = []
    for protocol in OURS:
        for task, cells in accuracies(table, suite):
            iterative, closed = (cells.get((protocol, label)) for label in ("iterative", "closed form"))
            if iterative is not None and closed is not None:
                samples = effective_samples(member.dataset.n_samples for member in suite.of_task(task.id))
                detail = f"{points(iterative, closed):+.1f} points"
                holds = within(closed, iterative, TOLERANCE / 100, samples=samples)
                evidence.append(ClaimEvidence(f"{protocol}, {task_title(task)}", holds, detail))
    return verdict(
        f"the closed form matches the iterations (read as: it is at most {TOLERANCE:g} point below them)", evidence
    )


def _papers_own() -> Remark | None:
    """The same criterion applied to the paper's own rows."""
    printed = paper_table("closed_vs_iterative")
    missed = []
    for protocol in OURS:
        iterative, closed = (paper_by_task(printed.row(protocol=protocol, label=label)) for label in ROUNDS)
        for task, before in iterative.items():
            after = closed.get(task)
            if before is not None and after is not None and before - after > TOLERANCE:
                missed.append(f"{protocol}, {task} ({after - before:+.2f} points, {before:.2f}% to {after:.2f}%)")
    if not missed:
        return None
    return Remark(f"By this reading the paper's own Table {printed.number} misses it for {'; '.join(missed)}.")


def _cost(table: Table) -> Remark | None:
    detail = []
    for protocol in OURS:
        ratio = next(row.cells[-1] for row in table.rows if row.group == protocol and row.cells[0] == "iterative")
        if isinstance(ratio, Value):
            detail.append(f"{protocol} {ratio.value:.1f} times")
    if not detail:
        return None
    return Remark(
        f"Time of iterating relative to the closed form: {', '.join(detail)}. Online this is not only the cost of "
        "iterating: the closed form has a fast engine, and iterations have none. The paper's ratio is for other code "
        "and is not compared."
    )


EXPERIMENT = Experiment(
    name="closed-form",
    title="Closed form against iterations",
    question="What does it cost to predict in one pass, without iterating predictions and means to convergence?",
    plan=_plan,
    find=_find,
    where="Table 8",
    tables=("closed_vs_iterative",),
)
