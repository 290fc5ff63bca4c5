"""Table 9: the most confident samples first, last, or in random order."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from zeroshift.evaluate import Job, StreamSpec, Trial
from zeroshift.experiments._shared.claims import ClaimEvidence, effective_samples, higher, paper_reference, verdict
from zeroshift.experiments._shared.experiment import Experiment, JobResults, Options
from zeroshift.experiments._shared.findings import Finding, Table, Value
from zeroshift.experiments._shared.paper import paper_table
from zeroshift.experiments._shared.suite import Member, Suite
from zeroshift.experiments._shared.tables import Variant, task_table, variant_jobs
from zeroshift.experiments._shared.trials import runs

__all__ = ["EXPERIMENT"]

HARD, EASY, RANDOM = "hard to easy", "easy to hard", "random (default)"

ORDERS = {
    HARD: ("Hard-to-Easy", "hard_to_easy"),
    EASY: ("Easy-to-Hard", "easy_to_hard"),
    RANDOM: ("Random (Ours)", None),
}
"""Names of the rows in the paper, and the kind of stream."""


def _trials(member: Member, kind: str | None, orders: int) -> list[Trial]:
    if kind is None:
        return runs(member, "adapt_online", orders)
    # Only ties are random, so that one run is enough.
    return runs(member, "adapt_online", 1, stream_spec=StreamSpec(kind))


def _variants(options: Options) -> list[Variant]:
    printed = paper_table("input_order")
    variants = []
    for label, (papers, kind) in ORDERS.items():
        row = printed.row(label=papers)
        variants.append(
            Variant(
                label=label,
                trials=partial(_trials, kind=kind, orders=options.orders),
                paper={} if row is None else {task: row.number(task) for task in ("Task 1", "Task 2", "Task 3")},
                strong=kind is None,
            )
        )
    return variants


def _plan(suite: Suite, options: Options) -> Sequence[Job]:
    return variant_jobs(_variants(options), suite)


def _find(suite: Suite, options: Options, results: JobResults) -> Sequence[Finding | None]:
    table = task_table(
        "input-order",
        "Accuracy of online ADAPT by the order of its input",
        _variants(options),
        suite,
        results,
        label="order",
        notes=(
            "Easy samples are those with high zero-shot confidence (Eq. 2). Sorting needs the whole stream in advance: "
            "it is a question about the method, not a way to use it.",
            f"Random orders: {options.orders}; their mean. Ties are in random order.",
        ),
    )
    claims = (
        verdict("easy to hard is better than hard to easy", _above(table, suite, EASY, HARD)),
        verdict("easy to hard is better than a random order", _above(table, suite, EASY, RANDOM)),
    )
    return [table, *claims, *paper_reference(suite, "input_order")]


def _above(table: Table, suite: Suite, better: str, worse: str) -> list[ClaimEvidence]:
    rows = {row.cells[0]: row.cells[1:] for row in table.rows}
    found = []
    for task, a, b in zip(suite.tasks, rows[better], rows[worse], strict=True):
        if isinstance(a, Value) and isinstance(b, Value):
            samples = effective_samples(member.dataset.n_samples for member in suite.of_task(task.id))
            holds = higher(a.value, b.value, samples=samples)
            found.append(ClaimEvidence(task.title, holds, f"{100 * a.value:.1f}% against {100 * b.value:.1f}%"))
    return found


EXPERIMENT = Experiment(
    name="input-order",
    title="Order of the input",
    question="Does it help online ADAPT to see samples with high zero-shot confidence first?",
    plan=_plan,
    find=_find,
    where="Table 9",
    tables=("input_order",),
)
