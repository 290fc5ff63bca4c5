"""Table 6: what methods gain, and what they cost in time and memory."""

from __future__ import annotations

from collections.abc import Sequence

from zeroshift.evaluate import Job
from zeroshift.experiments.parts.choice import main_set
from zeroshift.experiments.parts.claims import Evidence, paper_beside, verdict
from zeroshift.experiments.parts.costs import Cost, cost_table
from zeroshift.experiments.parts.experiment import Answers, Experiment, Options
from zeroshift.experiments.parts.findings import Finding, Remark
from zeroshift.experiments.parts.paper import paper_table
from zeroshift.experiments.parts.suite import Member, Suite
from zeroshift.experiments.parts.trials import runs

__all__ = ["EXPERIMENT"]

METHODS = (
    ("zero_shot", "zero-shot", "CLIP", "online"),
    ("tda", "TDA", "TDA", "online"),
    ("adapt_online", "ADAPT", "ADAPT", "online"),
    ("gda_pseudo", "GDA-CLIP, pseudo-labels", "GDA-CLIP", "transductive"),
    ("transclip", "TransCLIP", "TransCLIP", "transductive"),
    ("stata", "StatA", "StatA", "transductive"),
    ("frolic", "Frolic", "Frolic", "transductive"),
    ("adapt_transductive", "ADAPT", "ADAPT", "transductive"),
)
"""In the registry, in our table, in the paper's, and under which heading: all of the paper's that need no
back-propagation, and Frolic, whose row the paper's source holds but does not print."""

SEVERAL = 2
"""Prompts of a class that Frolic needs at least."""


def _costs(member: Member) -> list[Cost]:
    printed = paper_table("efficiency_imagenet")
    return [
        Cost(
            label,
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


def _find(suite: Suite, options: Options, answers: Answers) -> Sequence[Finding]:
    member = main_set(suite)
    table = cost_table(
        "efficiency",
        f"Gain, time and memory on {member.title}",
        _costs(member),
        member,
        answers,
        notes=(
            "One run each, one after the other with no other run beside it, one thread, features already there. "
            "The paper's times hold the encoding of the images on a graphics card as well: ours are what adapting "
            "adds.",
        ),
    )
    said = [_most_accurate(member, answers, protocol) for protocol in ("online", "transductive")]
    kept = [remark for remark in said if remark is not None]
    return [table, *kept, *paper_beside(Suite((member,)), "efficiency_imagenet")]


def _most_accurate(member: Member, answers: Answers, protocol: str) -> Remark | None:
    """The paper's claim, among the methods there are here."""
    accuracies = {
        cost.label: float(record["accuracy"])
        for cost in _costs(member)
        if cost.group == protocol and (record := answers.of(cost.trial)) is not None
    }
    if "ADAPT" not in accuracies or len(accuracies) == 1:
        return None
    best = max(accuracies, key=lambda label: accuracies[label])
    told = f"ADAPT {100 * accuracies['ADAPT']:.1f}"
    if accuracies[best] > accuracies["ADAPT"]:
        told += f", {best} {100 * accuracies[best]:.1f}"
    holds = accuracies["ADAPT"] >= accuracies[best]
    return verdict(
        f"ADAPT is the most accurate of the {protocol} methods it is timed with", [Evidence(member.title, holds, told)]
    )


EXPERIMENT = Experiment(
    name="efficiency",
    title="Efficiency",
    question="How much time and memory does adapting take, and what does it buy?",
    plan=_plan,
    find=_find,
    where="Table 6",
    tables=("efficiency_imagenet",),
)
