"""Table 11: one covariance for all classes against one a class."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from zeroshift.evaluate import Job, Trial
from zeroshift.experiments._shared.claims import Evidence, higher, paper_beside, samples_behind, verdict
from zeroshift.experiments._shared.costs import Cost, cost_table
from zeroshift.experiments._shared.experiment import Answers, Experiment, Options
from zeroshift.experiments._shared.findings import Finding, Remark, Table
from zeroshift.experiments._shared.paper import paper_table
from zeroshift.experiments._shared.suite import PAPERS_SET, Member, Suite, main_set, one_a_task, one_a_task_note
from zeroshift.experiments._shared.tables import Variant, accuracies, jobs_of, task_table, task_title
from zeroshift.experiments._shared.trials import points, runs

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
            "Online: one random order; the shared covariance has a fast engine of its own, and separate ones have not. "
            "Times were taken while other work ran: compare them with each other only.",
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
    said = _falls(by_task, kept)
    # Only the table of costs is the paper's, and that is of one set.
    beside = paper_beside(Suite((member,)), "separate_covariance", needs=(PAPERS_SET,))
    return [costs, by_task, *([] if said is None else [said]), *beside]


def _falls(table: Table, suite: Suite) -> Remark | None:
    evidence = []
    for protocol in METHODS:
        for task, cells in accuracies(table, suite):
            shared, separate = (cells.get((protocol, label)) for label in LABELS.values())
            if shared is not None and separate is not None:
                samples = samples_behind(member.dataset.n_samples for member in suite.of_task(task.id))
                told = f"{points(shared, separate):+.1f} points"
                lower = higher(shared, separate, samples=samples)
                evidence.append(Evidence(f"{protocol}, {task_title(task)}", lower, told))
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
