"""Table 5: the knowledge bank, the moving means and the moving covariance, each switched on and off."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import product

from zeroshift.evaluate import Job, Trial
from zeroshift.experiments.parts.choice import one_a_task, one_a_task_note
from zeroshift.experiments.parts.claims import Evidence, paper_beside, verdict
from zeroshift.experiments.parts.experiment import Answers, Experiment, Options
from zeroshift.experiments.parts.findings import Finding, Remark, Table, Value
from zeroshift.experiments.parts.paper import paper_table
from zeroshift.experiments.parts.suite import Member, Suite
from zeroshift.experiments.parts.sweep import points
from zeroshift.experiments.parts.task_table import Variant, jobs_of, task_table
from zeroshift.experiments.parts.trials import runs

__all__ = ["EXPERIMENT"]

NOTHING = "nothing (zero-shot)"


def _trials(member: Member, bank: bool, mean: bool, covariance: bool) -> list[Trial]:
    if not (bank or mean or covariance):
        return runs(member, "zero_shot")
    switches = {"update_mean": mean, "update_covariance": covariance}
    # Without its bank every sample moves the statistics: computed anew each time, and hence in one order only.
    off = {} if bank else {"bank_size": 0, "use_bank_term": False}
    return runs(member, "adapt_online", 1, {**off, **switches})


def _variants() -> list[Variant]:
    printed = paper_table("ablation_components")
    variants = []
    for bank, mean, covariance in product((False, True), repeat=3):
        config = {"knowledge_bank": bank, "update_mu": mean, "update_sigma": covariance}
        row = printed.row(config=config)
        variants.append(
            Variant(
                label=_label(bank, mean, covariance),
                trials=partial(_trials, bank=bank, mean=mean, covariance=covariance),
                group="with the bank" if bank else "without the bank",
                paper={} if row is None else {task: row.number(task) for task in ("Task 1", "Task 2", "Task 3")},
                strong=bank and mean and covariance,
            )
        )
    return variants


def _label(bank: bool, mean: bool, covariance: bool) -> str:
    on = [word for word, used in (("bank", bank), ("means", mean), ("covariance", covariance)) if used]
    return " + ".join(on) or NOTHING


def _plan(suite: Suite, options: Options) -> Sequence[Job]:
    return jobs_of(_variants(), one_a_task(suite))


def _find(suite: Suite, options: Options, answers: Answers) -> Sequence[Finding]:
    kept = one_a_task(suite)
    table = task_table(
        "components",
        "What each component of online ADAPT buys",
        _variants(),
        kept,
        answers,
        label="what moves",
        notes=(
            one_a_task_note(suite),
            "Off means: no bank and no bank term; means fixed at the prototypes; the identity.",
        ),
    )
    said = (_covariance_alone(table), _all_together(table), _directions(table, kept))
    return [table, *(remark for remark in said if remark is not None), *paper_beside(kept, "ablation_components")]


def _covariance_alone(table: Table) -> Remark | None:
    evidence = []
    for where, cells in _columns(table):
        gap = points(cells[NOTHING], cells[_label(False, False, True)])
        evidence.append(Evidence(where, gap < 0, f"{gap:+.1f} points"))
    return verdict("a moving covariance without the bank lowers accuracy below zero-shot", evidence)


def _all_together(table: Table) -> Remark | None:
    everything = _label(True, True, True)
    evidence = []
    for where, cells in _columns(table):
        best = max(cells, key=lambda label: cells[label])
        told = f"{100 * cells[everything]:.1f}"
        if cells[best] > cells[everything]:
            told += f", and {100 * cells[best]:.1f} with {best}"
        evidence.append(Evidence(where, cells[best] <= cells[everything], told))
    return verdict("everything together does best", evidence)


def _directions(table: Table, suite: Suite) -> Remark | None:
    """Row by row, whether accuracy moves away from zero-shot the way it does in the paper."""
    printed = {variant.label: variant.paper for variant in _variants()}
    other, compared = [], 0
    for task in suite.tasks:
        cells = dict(_columns(table)).get(f"{task.paper}: {task.title}", {})
        for label, accuracy in cells.items():
            before, after = (printed[row].get(task.paper) for row in (NOTHING, label))
            if label == NOTHING or before is None or after is None:
                continue
            ours, theirs = points(cells[NOTHING], accuracy), after - before
            compared += 1
            if ours * theirs <= 0:
                other.append(f"{label}, {task.title} (here {ours:+.1f}, the paper {theirs:+.1f})")
    if not compared:
        return None
    same = f"Of {compared} gains and losses over zero-shot, {compared - len(other)} go the way they do in the paper."
    return Remark(f"{same} The others: {'; '.join(other)}.", kind="warning") if other else Remark(same)


def _columns(table: Table) -> list[tuple[str, dict[str, float]]]:
    """The accuracies of each task by row, where none is missing."""
    found = []
    for place, column in enumerate(table.columns[1:], start=1):
        cells = {str(row.cells[0]): row.cells[place] for row in table.rows}
        values = {label: cell.value for label, cell in cells.items() if isinstance(cell, Value)}
        if len(values) == len(cells):
            found.append((column.title, values))
    return found


EXPERIMENT = Experiment(
    name="ablation",
    title="Ablation of components",
    question="What do the knowledge bank, the moving means and the moving covariance buy, alone and together?",
    plan=_plan,
    find=_find,
    where="Table 5",
    tables=("ablation_components",),
)
