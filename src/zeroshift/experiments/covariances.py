"""Table 11: one covariance for all classes against one a class."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from zeroshift.evaluate import Job, Trial
from zeroshift.experiments.parts.choice import main_set, one_a_task, one_a_task_note
from zeroshift.experiments.parts.claims import Evidence, paper_beside, verdict
from zeroshift.experiments.parts.costs import Cost, cost_table
from zeroshift.experiments.parts.experiment import Answers, Experiment, Options
from zeroshift.experiments.parts.findings import Finding, Remark, Table, Value
from zeroshift.experiments.parts.paper import paper_table
from zeroshift.experiments.parts.suite import Member, Suite
from zeroshift.experiments.parts.sweep import points
from zeroshift.experiments.parts.task_table import Variant, jobs_of, task_table
from zeroshift.experiments.parts.trials import runs

__all__ = ["EXPERIMENT"]

METHODS = {"online": "adapt_online", "transductive": "adapt_transductive"}
KINDS = {"shared": "ADAPT", "per_class": "ADAPT w/ Separate Cov."}
"""The setting, and what the paper's row is called."""

LABELS = {"shared": "one for all classes", "per_class": "one a class"}


def _trials(member: Member, method: str, kind: str) -> list[Trial]:
    return runs(member, method, 1, {"covariance": kind})


def _zero_shot(member: Member) -> list[Trial]:
    return runs(member, "zero_shot")


def _variants() -> list[Variant]:
    found = [Variant("zero-shot", _zero_shot)]
    for protocol, method in METHODS.items():
        for kind, label in LABELS.items():
            found.append(Variant(label, partial(_trials, method=method, kind=kind), protocol, strong=kind == "shared"))
    return found


def _costs(member: Member) -> list[Cost]:
    printed = paper_table("separate_covariance")
    names = [("CLIP", None), *((row, protocol) for protocol in METHODS for row in KINDS.values())]
    return [
        Cost(v.label, v.trials(member)[0], v.group, printed.row(method=row, protocol=protocol), v.strong)
        for v, (row, protocol) in zip(_variants(), names, strict=True)
    ]


def _plan(suite: Suite, options: Options) -> Sequence[Job]:
    costs = [cost.trial for cost in _costs(main_set(suite))]
    return [*costs, *jobs_of(_variants(), one_a_task(suite))]


def _find(suite: Suite, options: Options, answers: Answers) -> Sequence[Finding]:
    member, kept = main_set(suite), one_a_task(suite)
    costs = cost_table(
        "separate-covariances",
        f"One covariance for all classes, or one a class, on {member.title}",
        _costs(member),
        member,
        answers,
        notes=(
            "One random order. Times were taken while other work ran: compare them with each other only. Online, the "
            "shared covariance has a fast engine of its own, and separate ones have not.",
        ),
    )
    by_task = task_table(
        "by-task",
        "Accuracy by task",
        _variants(),
        kept,
        answers,
        label="covariance",
        notes=(one_a_task_note(suite),),
    )
    said = _falls(by_task)
    return [costs, by_task, *([] if said is None else [said]), *paper_beside(kept, "separate_covariance")]


def _falls(table: Table) -> Remark | None:
    rows = {(row.group, row.cells[0]): row.cells for row in table.rows}
    evidence = []
    for protocol in METHODS:
        shared, separate = (rows[protocol, label] for label in LABELS.values())
        for column, before, after in zip(table.columns, shared, separate, strict=True):
            if isinstance(before, Value) and isinstance(after, Value):
                gap = points(before.value, after.value)
                evidence.append(Evidence(f"{protocol}, {column.title}", gap < 0, f"{gap:+.1f} points"))
    return verdict("a covariance of its own for every class lowers accuracy", evidence)


EXPERIMENT = Experiment(
    name="covariances",
    title="One covariance, or one a class",
    question="Would each class do better with a covariance of its own?",
    plan=_plan,
    find=_find,
    where="Table 11",
    tables=("separate_covariance",),
)
