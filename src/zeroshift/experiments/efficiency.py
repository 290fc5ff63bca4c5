"""Table 6: gain, time and memory of methods."""

from __future__ import annotations

from collections.abc import Sequence

from zeroshift.evaluate import Job
from zeroshift.experiments._shared.claims import ClaimEvidence, higher, paper_reference, verdict
from zeroshift.experiments._shared.compared_methods import caveat_notes, starred
from zeroshift.experiments._shared.costs import CostRow, cost_table
from zeroshift.experiments._shared.experiment import Experiment, JobResults, Options
from zeroshift.experiments._shared.findings import Finding, Remark
from zeroshift.experiments._shared.paper import paper_table
from zeroshift.experiments._shared.suite import PAPERS_SET, Member, Suite, main_set
from zeroshift.experiments._shared.trials import runs

__all__ = ["EXPERIMENT"]

METHODS = (
    ("zero_shot", "zero-shot", "CLIP", "online"),
    ("tda", "TDA", "TDA", "online"),
    ("adapt_online", "ADAPT", "ADAPT", "online"),
    ("gda_pseudo", "GDA-CLIP (pseudo-labels)", "GDA-CLIP", "transductive"),
    ("transclip", "TransCLIP", "TransCLIP", "transductive"),
    ("stata", "StatA", "StatA", "transductive"),
    ("frolic", "Frolic", "Frolic", "transductive"),
    ("adapt_transductive", "ADAPT", "ADAPT", "transductive"),
)
"""Name in the registry, label, name in the paper, and protocol: all methods of the paper's table without
back-propagation, and Frolic, whose row is in the paper's source but not printed."""

SEVERAL = 2
"""Minimum number of prompts per class for Frolic."""


def _costs(member: Member) -> list[CostRow]:
    printed = paper_table("efficiency_imagenet")
    return [
        CostRow(
            starred(label, method),
            runs(member, method, 1, timed=True)[0],
            protocol,
            printed.row(method=paper, protocol=protocol),
            strong=paper == "ADAPT",
        )
        for method, label, paper, protocol in METHODS
        if method != "frolic" or len(member.prompts) >= SEVERAL
    ]


def _plan(suite: Suite, options: Options) -> Sequence[Job]:
    return [cost.trial for cost in _costs(main_set(suite))]


def _find(suite: Suite, options: Options, results: JobResults) -> Sequence[Finding | None]:
    member = main_set(suite)
    table = cost_table(
        "efficiency",
        f"Gain, time and memory on {member.title}",
        _costs(member),
        member,
        results,
        notes=(
            *caveat_notes(method for method, *_ in METHODS),
            "One run each, one after the other, one thread, with features already computed.",
            _times_note(),
            "The table has the methods of the paper's table that need no back-propagation, and Frolic if a set has "
            "several prompts. The main tables compare the accuracy of more methods.",
        ),
    )
    remarks = [_most_accurate(member, results, protocol) for protocol in ("online", "transductive")]
    return [table, *remarks, *paper_reference(Suite((member,)), "efficiency_imagenet", needs=(PAPERS_SET,))]


def _times_note() -> str:
    """What the paper's times include is not clear from the paper."""
    printed = paper_table("efficiency_imagenet")
    online, transductive = (
        row.values["Time"]
        for wanted in (("CLIP", "online"), ("ADAPT", "transductive"))
        if (row := printed.row(method=wanted[0], protocol=wanted[1])) is not None
    )
    return (
        "The paper does not say whether its times, on a GPU, include encoding the images: online ones appear to (CLIP "
        f"by itself takes {online}), transductive ones cannot (ADAPT takes {transductive} for all of ImageNet). Ours "
        "are for adapting only."
    )


def _most_accurate(member: Member, results: JobResults, protocol: str) -> Remark | None:
    """The paper's claim for the methods available here; not judged if one of them failed."""
    costs = [cost for cost in _costs(member) if cost.group == protocol]
    records = {cost.label: results.record(cost.trial) for cost in costs}
    failed = [label for label, record in records.items() if record is None]
    if len(failed) == len(records):
        return None
    if failed:
        return Remark(
            f"Which {protocol} method is the most accurate is not known: {', '.join(failed)} failed.", kind="warning"
        )
    accuracies = {label: float(record["accuracy"]) for label, record in records.items() if record is not None}
    samples = max(int(record["scored"]) for record in records.values() if record is not None)
    ours = accuracies.pop("ADAPT")
    best = max(accuracies, key=lambda label: accuracies[label])
    detail = f"ADAPT {100 * ours:.1f}%, {best} {100 * accuracies[best]:.1f}%"
    return verdict(
        f"ADAPT is the most accurate of the {protocol} methods it is timed with (here {', '.join(accuracies)})",
        [ClaimEvidence(member.title, higher(ours, accuracies[best], samples=samples), detail)],
    )


EXPERIMENT = Experiment(
    name="efficiency",
    title="Efficiency",
    question="How much time and memory does adaptation take, and how much accuracy does it gain?",
    plan=_plan,
    find=_find,
    where="Table 6",
    tables=("efficiency_imagenet",),
)
