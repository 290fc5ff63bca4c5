"""Hyper-parameter figure, right half: the weight of the bank's mean against the text prototype."""

from __future__ import annotations

from collections.abc import Sequence

from zeroshift.evaluate import Job
from zeroshift.experiments._shared.claims import paper_reference, verdict
from zeroshift.experiments._shared.experiment import Experiment, JobResults, Options
from zeroshift.experiments._shared.findings import Finding
from zeroshift.experiments._shared.paper import paper_table
from zeroshift.experiments._shared.suite import Suite
from zeroshift.experiments._shared.sweep import ORDER_NOTE, Sweep, curves, rising_evidence, sweep_lines
from zeroshift.experiments._shared.tables import paper_by_task, task_table, variant_jobs

__all__ = ["EXPERIMENT"]

ALPHAS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
DEFAULT = 0.9
"""The paper's (Section 4.1)."""

TOLERANCE = 0.5
"""Points by which accuracy may fall below an earlier value and still count as rising steadily."""


def _sweep(method: str, protocol: str) -> Sweep:
    # The figure has no printed numbers; at the default it equals the main result.
    main = paper_by_task(paper_table("closed_vs_iterative").row(protocol=protocol, label="Closed"))
    return Sweep(method, "alpha", ALPHAS, DEFAULT, protocol, {DEFAULT: main})


SWEEPS = (_sweep("adapt_online", "online"), _sweep("adapt_transductive", "transductive"))


def _plan(suite: Suite, options: Options) -> Sequence[Job]:
    return variant_jobs([variant for sweep in SWEEPS for variant in sweep.variants()], suite)


def _find(suite: Suite, options: Options, results: JobResults) -> Sequence[Finding | None]:
    figures = [
        sweep_lines(
            f"alpha-{sweep.protocol}",
            f"Accuracy by alpha, {sweep.protocol}",
            sweep,
            suite,
            results,
            x_label="alpha (0: the prototype alone, 1: the samples alone)",
            caption=f"The line marks the paper's default, {DEFAULT:g}.",
        )
        for sweep in SWEEPS
    ]
    table = task_table(
        "alpha",
        "Accuracy by alpha",
        [variant for sweep in SWEEPS for variant in sweep.variants()],
        suite,
        results,
        label="alpha",
        notes=(ORDER_NOTE,),
        best_by_group=True,
    )
    remarks = (
        verdict(
            f"{sweep.protocol} accuracy rises steadily with alpha (read as: it falls by at most {TOLERANCE:g} points "
            "on the way)",
            rising_evidence(curves(sweep, suite, results), TOLERANCE),
        )
        for sweep in SWEEPS
    )
    return [*figures, table, *remarks, *paper_reference(suite)]


EXPERIMENT = Experiment(
    name="alpha",
    title="Weight of the samples against the prototypes",
    question="How far should a class mean move from its text prototype towards the samples of the bank?",
    plan=_plan,
    find=_find,
    where="Figure 2, right half",
)
