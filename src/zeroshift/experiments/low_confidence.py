"""Table 21: very few confident samples per class.

The paper varies "the number of high-confidence samples per class", N. Its transductive numbers at N = 6 equal its main
result with banks of L = 6, so N is the bank size, there and here. In addition we test a harder setting: the
stream itself has few confident samples, because only N samples of the more confident half of each pseudo-class are
kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from zeroshift.evaluate import Job, StreamSpec, Trial
from zeroshift.experiments._shared.claims import (
    ClaimEvidence,
    above_zero_shot,
    all_hold,
    effective_samples,
    higher,
    paper_reference,
    verdict,
    within,
)
from zeroshift.experiments._shared.compared_methods import OURS
from zeroshift.experiments._shared.experiment import Experiment, JobResults, Options
from zeroshift.experiments._shared.findings import Column, Finding, Remark, Row, Table, Value
from zeroshift.experiments._shared.paper import paper_table
from zeroshift.experiments._shared.suite import Member, Suite, Task
from zeroshift.experiments._shared.sweep import ORDER_NOTE
from zeroshift.experiments._shared.tasks import PAPERS_BACKBONE
from zeroshift.experiments._shared.trials import mean_of_sets, points, runs

__all__ = ["EXPERIMENT"]

COUNTS = (2, 4, 6, 8, 10)
"""The paper's N."""

CONFIDENT = 0.5
"""Fraction of each pseudo-class that counts as confident in our setting."""


TOLERANCE = 1.0
"""Points between the best and worst N within which accuracy counts as stable."""


def _small_banks(member: Member, method: str, count: int) -> list[Trial]:
    return runs(member, method, 1, {"bank_size": count})


def _few_come(member: Member, method: str, count: int) -> list[Trial]:
    return runs(member, method, 1, stream_spec=StreamSpec("few_confident", {"per_class": count, "share": CONFIDENT}))


def _plan(suite: Suite, options: Options) -> Sequence[Job]:
    return [
        trial
        for member in suite.members
        for method in OURS.values()
        for count in COUNTS
        for kind in (_small_banks, _few_come)
        for trial in kind(member, method, count)
    ]


def _find(suite: Suite, options: Options, results: JobResults) -> Sequence[Finding | None]:
    banks = Table(
        "small-banks",
        "Accuracy with banks of N samples per class",
        _columns(""),
        tuple(_bank_row(protocol, task, suite, results) for protocol in OURS for task in suite.tasks),
        (ORDER_NOTE, "N is the bank size L: the paper's transductive row at N = 6 is its main result with L = 6."),
    )
    streams = Table(
        "few-confident",
        "Accuracy with only N samples of the more confident half of each pseudo-class",
        _columns("in the stream"),
        tuple(row for task in suite.tasks for row in _stream_rows(task, suite, results)),
        (
            "Ours, not the paper's. The rows differ with N, so that zero-shot is shown for the same rows; banks "
            "have their default sizes.",
        ),
    )
    remarks = (_small_online(banks, suite), _small_transductive(banks, suite), _gain(suite, results))
    return [banks, streams, *remarks, *paper_reference(suite, "few_high_confidence")]


def _columns(detail: str) -> tuple[Column, ...]:
    return (Column("task", "text"), *(Column(f"N={count}", "percent", detail) for count in COUNTS))


def _means(
    kind: Callable[[Member, str, int], list[Trial]],
    method: str,
    task: Task,
    suite: Suite,
    results: JobResults,
    field: str = "accuracy",
) -> list[Value | None]:
    """The mean over the sets of a task for each N."""
    members = suite.of_task(task.id)
    return [mean_of_sets(results, [kind(member, method, count) for member in members], field) for count in COUNTS]


def _bank_row(protocol: str, task: Task, suite: Suite, results: JobResults) -> Row:
    printed = paper_table("few_high_confidence")
    comparable = suite.paper_backbone(task) == PAPERS_BACKBONE
    cells = []
    for count, mean in zip(COUNTS, _means(_small_banks, OURS[protocol], task, suite, results), strict=True):
        paper = printed.number_at(f"N={count}", protocol=protocol, task=task.paper) if comparable else None
        with_paper = None if paper is None else paper / 100
        cells.append(None if mean is None else Value(mean.value, mean.low, mean.high, with_paper))
    return Row((task.title, *cells), protocol)


def _stream_rows(task: Task, suite: Suite, results: JobResults) -> list[Row]:
    zero_shot = _means(_few_come, OURS["online"], task, suite, results, "zero_shot_accuracy")
    rows = [Row(("zero-shot", *zero_shot), task.title)]
    for protocol, method in OURS.items():
        rows.append(Row((f"ADAPT, {protocol}", *_means(_few_come, method, task, suite, results)), task.title))
    return rows


def _rows_of(table: Table, protocol: str, suite: Suite) -> list[tuple[str, list[float], float]]:
    """Tasks, accuracies, and effective samples, for complete rows."""
    rows = [row for row in table.rows if row.group == protocol]
    found = []
    for task, row in zip(suite.tasks, rows, strict=True):
        values = [cell.value for cell in row.cells[1:] if isinstance(cell, Value)]
        if len(values) == len(COUNTS):
            samples = effective_samples(member.dataset.n_samples for member in suite.of_task(task.id))
            found.append((task.title, values, samples))
    return found


def _small_online(table: Table, suite: Suite) -> Remark | None:
    evidence = [
        ClaimEvidence(
            task,
            all_hold(higher(value, least, samples=samples) for value in others),
            f"{100 * least:.1f}%, then {100 * min(others):.1f}% or more",
        )
        for task, (least, *others), samples in _rows_of(table, "online", suite)
    ]
    return verdict(f"online ADAPT does worst at N = {COUNTS[0]} and recovers quickly", evidence)


def _small_transductive(table: Table, suite: Suite) -> Remark | None:
    evidence = [
        ClaimEvidence(
            task,
            within(min(values), max(values), TOLERANCE / 100, samples=samples),
            f"{100 * min(values):.1f}% to {100 * max(values):.1f}%",
        )
        for task, values, samples in _rows_of(table, "transductive", suite)
    ]
    claim = f"transductive ADAPT is stable in N (read as: it moves by at most {TOLERANCE:g} point)"
    return verdict(claim, evidence)


def _gain(suite: Suite, results: JobResults) -> Remark | None:
    """Our own question: does adaptation still help with the fewest confident samples?"""
    detail, signs = [], []
    for task in suite.tasks:
        for protocol, method in OURS.items():
            jobs = [job for member in suite.of_task(task.id) for job in _few_come(member, method, COUNTS[0])]
            records = results.records(jobs)
            if len(records) < len(jobs):
                continue
            gained = [points(record["zero_shot_accuracy"], record["accuracy"]) for record in records]
            signs.append(above_zero_shot(records))
            close = ", too close to call" if signs[-1] is None else ""
            detail.append(f"{task.title}, {protocol} {sum(gained) / len(gained):+.1f}{close}")
    if not detail:
        return None
    return Remark(
        f"If only {COUNTS[0]} samples of the more confident half of each pseudo-class are kept, ADAPT's gain over "
        f"zero-shot is, in points: {'; '.join(detail)}.",
        kind="warning" if False in signs else "note",
    )


EXPERIMENT = Experiment(
    name="low-confidence",
    title="Very few confident samples",
    question="How well does ADAPT work with small banks, or with few confident samples in the stream?",
    plan=_plan,
    find=_find,
    where="Table 21",
    tables=("few_high_confidence",),
)
