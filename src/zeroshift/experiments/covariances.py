"""Table 11: one covariance for all classes against one per class."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from zeroshift.evaluate import Job, Trial
from zeroshift.experiments._shared.claims import ClaimEvidence, effective_samples, higher, paper_reference, verdict
from zeroshift.experiments._shared.compared_methods import OURS
from zeroshift.experiments._shared.costs import CostRow, cost_table
from zeroshift.experiments._shared.experiment import Experiment, JobResults, Options
from zeroshift.experiments._shared.findings import Finding, Remark, Table
from zeroshift.experiments._shared.paper import paper_table
from zeroshift.experiments._shared.suite import (
    PAPERS_SET,
    Member,
    Suite,
    largest_per_task,
    largest_per_task_note,
    main_set,
)
from zeroshift.experiments._shared.tables import Variant, accuracies, task_table, task_title, variant_jobs
from zeroshift.experiments._shared.trials import points, runs

__all__ = ["EXPERIMENT"]

KINDS = {"shared": "ADAPT", "per_class": "ADAPT w/ Separate Cov."}
"""The setting, and the name of the row in the paper."""

LABELS = {"shared": "one for all classes", "per_class": "one per class"}


def _trials(member: Member, method: str, kind: str) -> list[Trial]:
    return runs(member, method, 1, {"covariance": kind})


def _zero_shot(member: Member) -> list[Trial]:
    return runs(member, "zero_shot")


def _variants() -> list[Variant]:
    found = [Variant("zero-shot", _zero_shot)]
    for protocol, method in OURS.items():
        for kind, label in LABELS.items():
            found.append(Variant(label, partial(_trials, method=method, kind=kind), protocol, strong=kind == "shared"))
    return found


def _costs(member: Member) -> list[CostRow]:
    printed = paper_table("separate_covariance")
    names = [("CLIP", None), *((row, protocol) for protocol in OURS for row in KINDS.values())]
    return [
        CostRow(v.label, v.trials(member)[0], v.group, printed.row(method=row, protocol=protocol), v.strong)
        for v, (row, protocol) in zip(_variants(), names, strict=True)
    ]


def _plan(suite: Suite, options: Options) -> Sequence[Job]:
    costs = [cost.trial for cost in _costs(main_set(suite))]
    return [*costs, *variant_jobs(_variants(), largest_per_task(suite))]


def _find(suite: Suite, options: Options, results: JobResults) -> Sequence[Finding | None]:
    member, kept = main_set(suite), largest_per_task(suite)
    costs = cost_table(
        "separate-covariances",
        f"One covariance for all classes, or one per class, on {member.title}",
        _costs(member),
        member,
        results,
        notes=(
            "Online: one random order; the shared covariance has a fast engine, separate ones have none. Times were "
            "measured while other work ran; compare them only with each other.",
        ),
    )
    by_task = task_table(
        "by-task",
        "Accuracy by task",
        _variants(),
        kept,
        results,
        label="covariance",
        notes=(largest_per_task_note(suite),),
    )
    # Only the table of costs is in the paper, for one set.
    reference = paper_reference(Suite((member,)), "separate_covariance", needs=(PAPERS_SET,))
    return [costs, by_task, _separate_is_worse(by_task, kept), *reference]


def _separate_is_worse(table: Table, suite: Suite) -> Remark | None:
    evidence = []
    for protocol in OURS:
        for task, cells in accuracies(table, suite):
            shared, separate = (cells.get((protocol, label)) for label in LABELS.values())
            if shared is not None and separate is not None:
                samples = effective_samples(member.dataset.n_samples for member in suite.of_task(task.id))
                detail = f"{points(shared, separate):+.1f} points"
                lower = higher(shared, separate, samples=samples)
                evidence.append(ClaimEvidence(f"{protocol}, {task_title(task)}", lower, detail))
    return verdict("a covariance of its own for every class lowers accuracy", evidence)


EXPERIMENT = Experiment(
    name="covariances",
    title="One covariance, or one per class",
    question="Would each class do better with a covariance of its own?",
    plan=_plan,
    find=_find,
    where="Table 11",
    tables=("separate_covariance",),
)
