"""Table 5: the knowledge bank, the moving means and the moving covariance, each switched on and off."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product

from zeroshift.evaluate import Job, Trial
from zeroshift.experiments._shared.claims import (
    ClaimEvidence,
    above_zero_shot,
    effective_samples,
    higher,
    paper_reference,
    verdict,
)
from zeroshift.experiments._shared.experiment import Experiment, JobResults, Options
from zeroshift.experiments._shared.findings import Finding, Remark, Table
from zeroshift.experiments._shared.paper import paper_table
from zeroshift.experiments._shared.suite import Member, Suite, Task, largest_per_task, largest_per_task_note
from zeroshift.experiments._shared.tables import (
    Variant,
    accuracies,
    paper_by_task,
    task_table,
    task_title,
    variant_jobs,
)
from zeroshift.experiments._shared.trials import points, runs

__all__ = ["EXPERIMENT"]

NOTHING = "nothing (zero-shot)"


def _trials(member: Member, bank: bool, mean: bool, covariance: bool) -> list[Trial]:
    if not (bank or mean or covariance):
        return runs(member, "zero_shot")
    switches = {"update_mean": mean, "update_covariance": covariance}
    # Without a bank every sample changes the statistics, which is slow; hence one order.
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
                paper=paper_by_task(row),
                strong=bank and mean and covariance,
            )
        )
    return variants


def _label(bank: bool, mean: bool, covariance: bool) -> str:
    on = [word for word, used in (("bank", bank), ("means", mean), ("covariance", covariance)) if used]
    return " + ".join(on) or NOTHING


def _plan(suite: Suite, options: Options) -> Sequence[Job]:
    return variant_jobs(_variants(), largest_per_task(suite))


def _find(suite: Suite, options: Options, results: JobResults) -> Sequence[Finding | None]:
    kept = largest_per_task(suite)
    table = task_table(
        "components",
        "What each component of online ADAPT contributes",
        _variants(),
        kept,
        results,
        label="what moves",
        notes=(
            largest_per_task_note(suite),
            "Off means: no bank and no bank term; the means fixed at the prototypes; the covariance the identity.",
        ),
    )
    remarks = (_covariance_alone(kept, results), _all_together(table, kept), _directions(kept, results))
    return [table, *remarks, *paper_reference(kept, "ablation_components")]


def _covariance_alone(suite: Suite, results: JobResults) -> Remark | None:
    covariance_only = _label(False, False, True)
    evidence = []
    for task in suite.tasks:
        gain = _gains(task, suite, results).get(covariance_only)
        if gain is not None:
            fell = None if gain.above is None else not gain.above
            evidence.append(ClaimEvidence(task_title(task), fell, f"{gain.points:+.1f} points"))
    return verdict("a moving covariance without the bank lowers accuracy below zero-shot", evidence)


def _all_together(table: Table, suite: Suite) -> Remark | None:
    everything = _label(True, True, True)
    evidence = []
    for task, cells in accuracies(table, suite):
        if len(cells) < len(table.rows):
            continue  # a failed row might be the best
        found = {label: accuracy for (_, label), accuracy in cells.items()}
        whole = found.pop(everything)
        best = max(found, key=lambda label: found[label])
        samples = effective_samples(member.dataset.n_samples for member in suite.of_task(task.id))
        detail = f"{100 * whole:.1f}%, and {100 * found[best]:.1f}% with {best}"
        evidence.append(ClaimEvidence(task_title(task), higher(whole, found[best], samples=samples), detail))
    return verdict("everything together does best", evidence)


def _directions(suite: Suite, results: JobResults) -> Remark | None:
    """Whether each row differs from zero-shot in the same direction as in the paper."""
    printed = {variant.label: variant.paper for variant in _variants()}
    same, close, other = 0, [], []
    for task in suite.tasks:
        for label, gain in _gains(task, suite, results).items():
            before, after = (printed[row].get(task.paper) for row in (NOTHING, label))
            if before is None or after is None or before == after:
                continue
            detail = f"{label}, {task.title} (here {gain.points:+.1f}, the paper {after - before:+.1f})"
            if gain.above is None:
                close.append(detail)
            elif gain.above is (after > before):
                same += 1
            else:
                other.append(detail)
    if not (same or close or other):
        return None
    compared = same + len(close) + len(other)
    texts = [f"Of {compared} gains and losses over zero-shot, {same} have the same sign as in the paper."]
    texts += [f"The opposite sign: {'; '.join(other)}."] if other else []
    texts += [f"Too close to call: {'; '.join(close)}."] if close else []
    return Remark(" ".join(texts), kind="warning" if other else "note")


@dataclass(frozen=True)
class RowGain:
    """The gain of a row over zero-shot, as the mean over the sets of a task."""

    points: float
    above: bool | None
    """None if the difference is too small to decide."""


def _gains(task: Task, suite: Suite, results: JobResults) -> dict[str, RowGain]:
    """Gains by label, for rows without failed runs."""
    found = {}
    for variant in _variants():
        jobs = [job for member in suite.of_task(task.id) for job in variant.trials(member)]
        records = results.records(jobs)
        if variant.label != NOTHING and len(records) == len(jobs):
            gained = [points(record["zero_shot_accuracy"], record["accuracy"]) for record in records]
            found[variant.label] = RowGain(sum(gained) / len(gained), above_zero_shot(records))
    return found


EXPERIMENT = Experiment(
    name="ablation",
    title="Ablation of components",
    question="What do the knowledge bank, the moving means and the moving covariance contribute, alone and together?",
    plan=_plan,
    find=_find,
    where="Table 5",
    tables=("ablation_components",),
)
