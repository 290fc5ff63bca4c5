"""Table 5: the knowledge bank, the moving means and the moving covariance, each switched on and off."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product

from zeroshift.evaluate import Job, Trial
from zeroshift.experiments._shared.claims import (
    Evidence,
    above_zero_shot,
    higher,
    paper_beside,
    samples_behind,
    verdict,
)
from zeroshift.experiments._shared.experiment import Answers, Experiment, Options
from zeroshift.experiments._shared.findings import Finding, Remark, Table
from zeroshift.experiments._shared.paper import paper_table
from zeroshift.experiments._shared.suite import Member, Suite, Task, one_a_task, one_a_task_note
from zeroshift.experiments._shared.tables import Variant, accuracies, jobs_of, printed_by_task, task_table, task_title
from zeroshift.experiments._shared.trials import points, runs

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
                paper=printed_by_task(row),
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
            "Off means: no bank and no bank term; the means fixed at the prototypes; the covariance the identity.",
        ),
    )
    said = (_covariance_alone(kept, answers), _all_together(table, kept), _directions(kept, answers))
    return [table, *(remark for remark in said if remark is not None), *paper_beside(kept, "ablation_components")]


def _covariance_alone(suite: Suite, answers: Answers) -> Remark | None:
    alone = _label(False, False, True)
    evidence = []
    for task in suite.tasks:
        gain = _gains(task, suite, answers).get(alone)
        if gain is not None:
            fell = None if gain.above is None else not gain.above
            evidence.append(Evidence(task_title(task), fell, f"{gain.points:+.1f} points"))
    return verdict("a moving covariance without the bank lowers accuracy below zero-shot", evidence)


def _all_together(table: Table, suite: Suite) -> Remark | None:
    everything = _label(True, True, True)
    evidence = []
    for task, cells in accuracies(table, suite):
        if len(cells) < len(table.rows):
            continue  # what failed might have been the best
        found = {label: accuracy for (_, label), accuracy in cells.items()}
        whole = found.pop(everything)
        best = max(found, key=lambda label: found[label])
        samples = samples_behind(member.dataset.n_samples for member in suite.of_task(task.id))
        told = f"{100 * whole:.1f}%, and {100 * found[best]:.1f}% with {best}"
        evidence.append(Evidence(task_title(task), higher(whole, found[best], samples=samples), told))
    return verdict("everything together does best", evidence)


def _directions(suite: Suite, answers: Answers) -> Remark | None:
    """Row by row, whether accuracy moves away from zero-shot the way it does in the paper."""
    printed = {variant.label: variant.paper for variant in _variants()}
    same, close, other = 0, [], []
    for task in suite.tasks:
        for label, gain in _gains(task, suite, answers).items():
            before, after = (printed[row].get(task.paper) for row in (NOTHING, label))
            if before is None or after is None or before == after:
                continue
            told = f"{label}, {task.title} (here {gain.points:+.1f}, the paper {after - before:+.1f})"
            if gain.above is None:
                close.append(told)
            elif gain.above is (after > before):
                same += 1
            else:
                other.append(told)
    if not (same or close or other):
        return None
    compared = same + len(close) + len(other)
    texts = [f"Of {compared} gains and losses over zero-shot, the way they go in the paper: {same}."]
    texts += [f"The other way: {'; '.join(other)}."] if other else []
    texts += [f"Too close to say: {'; '.join(close)}."] if close else []
    return Remark(" ".join(texts), kind="warning" if other else "note")


@dataclass(frozen=True)
class Gain:
    """Of a row over zero-shot, on the mean over the sets of a task."""

    points: float
    above: bool | None
    """None where it is too close to say."""


def _gains(task: Task, suite: Suite, answers: Answers) -> dict[str, Gain]:
    """By label, those of which no run failed; a run knows the zero-shot accuracy on its own samples."""
    found = {}
    for variant in _variants():
        jobs = [job for member in suite.of_task(task.id) for job in variant.trials(member)]
        records = answers.all_of(jobs)
        if variant.label != NOTHING and len(records) == len(jobs):
            gained = [points(record["zero_shot_accuracy"], record["accuracy"]) for record in records]
            found[variant.label] = Gain(sum(gained) / len(gained), above_zero_shot(records))
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
