"""Table 7: the prompts that the class means start from."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from zeroshift.evaluate import Job
from zeroshift.experiments._shared.experiment import Experiment, JobResults, Options
from zeroshift.experiments._shared.findings import Finding, Remark, Table, Value
from zeroshift.experiments._shared.paper import paper_table
from zeroshift.experiments._shared.prompt_modes import mode_title, modes_of, modes_remark, runs_in_mode
from zeroshift.experiments._shared.suite import TASKS, Suite
from zeroshift.experiments._shared.tables import (
    Variant,
    data_remark,
    reference,
    task_table,
    variant_jobs,
    with_mean_note,
)

__all__ = ["EXPERIMENT"]

METHODS = {"zero_shot": "zero-shot", "adapt_online": "ADAPT online", "adapt_transductive": "ADAPT transductive"}


def _variants(suite: Suite) -> list[Variant]:
    return [
        Variant(
            label=mode_title(mode),
            trials=partial(runs_in_mode, method=method, mode=mode),
            group=group,
            paper=_printed(method, mode),
        )
        for method, group in METHODS.items()
        for mode in modes_of(suite)
    ]


def _printed(method: str, mode: str) -> dict[str, float | None]:
    """By task. Table 7 is for the online method; Table 18 has the transductive one."""
    tasks = [task.paper for task in TASKS if task.paper]
    if method == "adapt_online":
        return {task: paper_table("mean_init").number_at(task, label=mode_title(mode)) for task in tasks}
    if method == "adapt_transductive":
        table = paper_table("tda_prompts")
        return {task: table.number_at(mode_title(mode), protocol="transductive", task=task) for task in tasks}
    return {}


def _plan(suite: Suite, options: Options) -> Sequence[Job]:
    return variant_jobs(_variants(suite), suite)


def _find(suite: Suite, options: Options, results: JobResults) -> Sequence[Finding | None]:
    table = task_table(
        "mean-init",
        "Prompts that the means start from",
        _variants(suite),
        suite,
        results,
        label="prompts",
        notes=("One random order. Empty if some of the sets of a task have no such prompts.",),
        best_by_group=True,
    )
    # Prompts are compared in the table itself.
    remarks = (*_spread(table), modes_remark(suite), data_remark(suite, prompts=False))
    return [with_mean_note(table), *remarks, reference("mean_init")]


def _spread(table: Table) -> list[Remark]:
    """The range of accuracies over prompts, for each method."""
    text = []
    for group in METHODS.values():
        rows = [row for row in table.rows if row.group == group]
        ranges = []
        for place in range(1, len(table.columns)):
            values = [cell.value for row in rows if isinstance(cell := row.cells[place], Value)]
            if len(values) > 1:
                ranges.append(100 * (max(values) - min(values)))
        if ranges:
            text.append(f"{group} {max(ranges):.1f}")
    if not text:
        return []
    return [
        Remark(
            f"Of the prompts in the table, best and worst of a task differ by at most, in points: {', '.join(text)}."
        )
    ]


EXPERIMENT = Experiment(
    name="mean-init",
    title="Mean initialisation",
    question="How much does it matter from which prompts the class means start?",
    plan=_plan,
    find=_find,
    where="Table 7",
    tables=("mean_init",),
)
