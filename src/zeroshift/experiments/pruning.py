"""Table 22: dropping the least confident bank entries of each class at regular intervals."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from zeroshift.evaluate import Job, Trial
from zeroshift.experiments._shared.claims import (
    ClaimEvidence,
    all_hold,
    effective_samples,
    higher,
    paper_reference,
    verdict,
)
from zeroshift.experiments._shared.experiment import Experiment, JobResults, Options
from zeroshift.experiments._shared.findings import Cell, Column, Finding, Remark, Row, Table, Value
from zeroshift.experiments._shared.paper import paper_table
from zeroshift.experiments._shared.suite import Member, Suite
from zeroshift.experiments._shared.tables import Variant, accuracies, task_table, task_title, variant_jobs
from zeroshift.experiments._shared.tasks import PAPERS_BACKBONE
from zeroshift.experiments._shared.trials import measured, points, runs

__all__ = ["EXPERIMENT"]

RATIOS = (0.1, 0.3, 0.5, 0.7)
EVERY = 1000
"""Samples between prunings in the paper."""

OFTEN = 100
"""Our shorter interval, because small sets are pruned at most once with the paper's."""

WITHOUT = "no pruning"

PRINTED_ON = ("imagenet", "imagenet_a")
"""Catalogue ids of the sets of the paper's table."""


def _trials(member: Member, interval: int, ratio: float | None) -> list[Trial]:
    return runs(member, "adapt_online", 1, {} if ratio is None else {"prune": (interval, ratio)})


def _variants(interval: int) -> list[Variant]:
    rows: list[tuple[str, float | None]] = [(WITHOUT, None), *((_label(ratio), ratio) for ratio in RATIOS)]
    return [
        Variant(label, partial(_trials, interval=interval, ratio=ratio), strong=ratio is None) for label, ratio in rows
    ]


def _label(ratio: float) -> str:
    return f"{ratio:g} dropped"


def _plan(suite: Suite, options: Options) -> Sequence[Job]:
    return variant_jobs([*_variants(EVERY), *_variants(OFTEN)], suite)


def _find(suite: Suite, options: Options, results: JobResults) -> Sequence[Finding | None]:
    tables = [
        task_table(
            f"pruned-every-{interval}",
            f"Accuracy with the bank pruned every {interval:,} samples",
            _variants(interval),
            suite,
            results,
            label="of each class",
            notes=(note,),
        )
        for interval, note in (
            (EVERY, f"The paper's interval. {_how_often(suite, EVERY)} One random order."),
            (OFTEN, f"Ours, often enough to matter on small sets. {_how_often(suite, OFTEN)} One random order."),
        )
    ]
    remarks = (_harm(table, suite, interval) for table, interval in zip(tables, (EVERY, OFTEN), strict=True))
    printed = _as_printed(suite, results)
    return [
        printed,
        *tables,
        *remarks,
        *paper_reference(Suite(tuple(_printed_on(suite))) if printed else suite, "bank_pruning", needs=PRINTED_ON),
    ]


def _prunings(members: Sequence[Member], interval: int) -> tuple[int, int]:
    """How often the smallest and the largest set are pruned before their last sample."""
    sizes = [member.dataset.n_samples for member in members]
    return (min(sizes) - 1) // interval, (max(sizes) - 1) // interval


def _how_often(suite: Suite, interval: int) -> str:
    """A sentence on how often banks are pruned, per task."""
    if not _prunings(suite.members, interval)[1]:
        return f"No set holds more than {interval:,} samples, so that no prediction saw a pruned bank."
    detail = (f"{_times(*_prunings(suite.of_task(task.id), interval))} ({task.title})" for task in suite.tasks)
    return f"Banks are pruned {', '.join(detail)}."


def _times(least: int, most: int) -> str:
    if least == most:
        return {0: "never", 1: "once"}.get(most, f"{most} times")
    return f"{least} to {most} times"


def _printed_on(suite: Suite) -> list[Member]:
    """The sets of the paper's table."""
    return [m for m in suite.members if m.from_paper and m.data_set in PRINTED_ON and m.encoder == PAPERS_BACKBONE]


def _as_printed(suite: Suite, results: JobResults) -> Table | None:
    """The paper's two sets with its numbers; None if neither is present."""
    paper = paper_table("bank_pruning")
    members = _printed_on(suite)
    if not members:
        return None
    rows = []
    for ratio in (None, *RATIOS):
        method = "ADAPT" if ratio is None else f"ADAPT w/ {ratio:g} pruning"
        cells: list[Cell] = []
        for member in members:
            found = measured(results, _trials(member, EVERY, ratio))
            number = paper.number_at(str(member.paper_column), method=method)
            cells.append(None if found is None else Value(found.value, paper=None if number is None else number / 100))
        rows.append(Row((WITHOUT if ratio is None else _label(ratio), *cells), strong=ratio is None))
    columns = (Column("of each class", "text"), *(Column(member.title) for member in members))
    return Table("as-printed", f"Pruning every {EVERY:,} samples, on the paper's sets", columns, tuple(rows))


def _harm(table: Table, suite: Suite, interval: int) -> Remark | None:
    """The paper's claim that pruning lowers accuracy at every ratio, for tasks whose banks were pruned."""
    evidence = []
    for task, cells in accuracies(table, suite):
        members = suite.of_task(task.id)
        if len(cells) < len(table.rows) or not _prunings(members, interval)[1]:
            continue
        before, *after = cells.values()
        samples = effective_samples(member.dataset.n_samples for member in members)
        moved = [points(before, accuracy) for accuracy in after]
        detail = (
            f"{min(moved):+.1f} points" if len(set(moved)) == 1 else f"{min(moved):+.1f} to {max(moved):+.1f} points"
        )
        lower = all_hold(higher(before, accuracy, samples=samples) for accuracy in after)
        evidence.append(ClaimEvidence(task_title(task), lower, detail))
    return verdict(f"pruning lowers accuracy at every ratio ({interval:,} samples between prunings)", evidence)


EXPERIMENT = Experiment(
    name="pruning",
    title="Pruning the bank",
    question="Does it help to drop the least confident samples of the bank from time to time?",
    plan=_plan,
    find=_find,
    where="Table 22",
    tables=("bank_pruning",),
)
