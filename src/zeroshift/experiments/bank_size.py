"""Hyper-parameter figure, left half: the number of samples per class in the knowledge bank."""

from __future__ import annotations

from collections.abc import Sequence

from zeroshift.evaluate import Job
from zeroshift.experiments._shared.claims import paper_reference, verdict
from zeroshift.experiments._shared.experiment import Experiment, JobResults, Options
from zeroshift.experiments._shared.findings import Finding
from zeroshift.experiments._shared.paper import paper_table
from zeroshift.experiments._shared.suite import TASKS, Suite
from zeroshift.experiments._shared.sweep import ORDER_NOTE, Sweep, curves, stability_evidence, sweep_lines
from zeroshift.experiments._shared.tables import paper_by_task, task_table, variant_jobs

__all__ = ["EXPERIMENT", "ONLINE", "TRANSDUCTIVE"]

SIZES = (1, 2, 4, 6, 8, 12, 16, 24, 32)
DEFAULTS = {"online": 16, "transductive": 6}
"""The paper's L (Section 4.1)."""

STABLE_FROM = 8
"""The paper says that online accuracy is stable from this L on."""

TOLERANCE = 1.0
"""Points of accuracy that count as equal. The paper gives no threshold; its numbers for L = 8 and L = 16 differ by 0.4
to 0.9 (Tables 21 and 8)."""

PRINTED_TASKS = tuple(task.paper for task in TASKS if task.paper)


def _printed(protocol: str) -> dict[float, dict[str, float | None]]:
    """The figure has no printed numbers; Tables 21 and 8 have some of its points."""
    few, closed = paper_table("few_high_confidence"), paper_table("closed_vs_iterative")
    printed: dict[float, dict[str, float | None]] = {
        size: {task: few.number_at(f"N={size}", protocol=protocol, task=task) for task in PRINTED_TASKS}
        for size in SIZES
    }
    return {**printed, DEFAULTS[protocol]: paper_by_task(closed.row(protocol=protocol, label="Closed"))}


ONLINE = Sweep("adapt_online", "bank_size", SIZES, DEFAULTS["online"], "online", _printed("online"))
TRANSDUCTIVE = Sweep(
    "adapt_transductive", "bank_size", SIZES, DEFAULTS["transductive"], "transductive", _printed("transductive")
)


def _plan(suite: Suite, options: Options) -> Sequence[Job]:
    return variant_jobs([*ONLINE.variants(), *TRANSDUCTIVE.variants()], suite)


def _find(suite: Suite, options: Options, results: JobResults) -> Sequence[Finding | None]:
    figures = [
        sweep_lines(
            f"bank-size-{sweep.protocol}",
            f"Accuracy by bank size, {sweep.protocol}",
            sweep,
            suite,
            results,
            x_label="samples per class (L)",
            caption=f"The line marks the paper's default, {sweep.default}.",
            log_x=True,
        )
        for sweep in (ONLINE, TRANSDUCTIVE)
    ]
    table = task_table(
        "bank-size",
        "Accuracy by bank size",
        [*ONLINE.variants(), *TRANSDUCTIVE.variants()],
        suite,
        results,
        label="L",
        notes=(ORDER_NOTE,),
        best_by_group=True,
    )
    remarks = (
        verdict(
            f"online accuracy is stable once L is at least {STABLE_FROM} (read as: it moves by at most {TOLERANCE:g} "
            "point)",
            stability_evidence(curves(ONLINE, suite, results), TOLERANCE, STABLE_FROM),
        ),
        verdict(
            f"transductive accuracy hardly depends on L (read as: it moves by at most {TOLERANCE:g} point)",
            stability_evidence(curves(TRANSDUCTIVE, suite, results), TOLERANCE),
        ),
    )
    return [*figures, table, *remarks, *paper_reference(suite)]


EXPERIMENT = Experiment(
    name="bank-size",
    title="Size of the knowledge bank",
    question="How many samples per class should the bank hold, and how much does it matter?",
    plan=_plan,
    find=_find,
    where="Figure 2, left half",
)
