"""What is said of the gap to the oracle: the paper's claim where it makes one, and its own table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from zeroshift.experiments.parts.claims import Evidence, samples_behind, verdict, within
from zeroshift.experiments.parts.findings import Remark
from zeroshift.experiments.parts.marks import ROUNDING
from zeroshift.experiments.parts.paper import paper_table
from zeroshift.experiments.parts.suite import Suite, Task
from zeroshift.experiments.parts.tasks import FINE_GRAINED

__all__ = ["Gaps", "claim", "elsewhere", "left_to_oracle", "papers_own"]

CLAIMED = 0.05
"""How near the paper says ADAPT comes to the oracle, on fine-grained sets (Task 3): of the others it says nothing."""

Gaps = Sequence[tuple[Task, Mapping[str, float]]]
"""Mean accuracies by task: of zero-shot, both ADAPTs and the oracle."""


def left_to_oracle(means: Mapping[str, float], method: str) -> float | None:
    """Points from the method to the oracle."""
    return 100 * (means["oracle"] - means[method]) if {"oracle", method} <= set(means) else None


def claim(suite: Suite, gaps: Gaps) -> Remark | None:
    """What the paper says of fine-grained sets, held against ours; nothing where there are none, or runs failed."""
    means = next((means for task, means in gaps if task.id == FINE_GRAINED), {})
    if not {"oracle", "adapt_transductive"} <= set(means):
        return None
    ours, bound = means["adapt_transductive"], means["oracle"]
    if bound < ours - ROUNDING:
        return Remark(
            f"On fine-grained sets the oracle ({bound:.1%}) is below transductive ADAPT ({ours:.1%}): it is no bound "
            f"there, and whether ADAPT comes within {CLAIMED:.0%} of one, as the paper says, cannot be judged by it.",
            kind="warning",
        )
    samples = samples_behind(member.entry.n_samples for member in suite.of_task(FINE_GRAINED))
    told = f"{100 * (bound - ours):.1f} points from {ours:.1%} to {bound:.1%}"
    evidence = Evidence("transductive", within(ours, bound, CLAIMED, samples=samples), told)
    return verdict(f"ADAPT comes within {CLAIMED:.0%} of the oracle on fine-grained sets", [evidence])


def elsewhere(gaps: Gaps) -> Remark | None:
    """The other tasks, of which the paper claims nothing."""
    said = []
    for task, means in gaps:
        left = left_to_oracle(means, "adapt_transductive")
        if task.id == FINE_GRAINED or left is None:
            continue
        where = f"{task.title}, {abs(left):.1f} points"
        said.append(f"{where} below it" if left >= 0 else f"{where} above it, where it is no bound")
    if not said:
        return None
    listed = "; ".join(said)
    return Remark(f"Elsewhere, where the paper claims nothing, transductive ADAPT is so far from the oracle: {listed}.")


def papers_own() -> Remark | None:
    """What the paper's printed oracle row says about its claim."""
    printed = paper_table("fine_grained_vitb16")
    oracle = printed.row(method="Oracle ADAPT")
    if oracle is None:
        return None
    lacks = []
    for name in ("online", "transductive"):
        bound, reached = oracle.number("Avg."), printed.number_at("Avg.", method="ADAPT", protocol=name)
        if bound is not None and reached is not None:
            lacks.append(f"{bound - reached:.2f} points ({name})")
    below = []
    for column in printed.columns:
        bound, reached = oracle.number(column), printed.number_at(column, method="ADAPT", protocol="online")
        if bound is not None and reached is not None and bound < reached:
            below.append(f"{column} ({bound:.2f} against {reached:.2f} for online ADAPT)")
    text = f"The paper prints an oracle for fine-grained sets only; by its own table ADAPT lacks {' and '.join(lacks)}."
    if below:
        text += f" There the oracle is below ADAPT on {', '.join(below)}, so the paper's is no strict bound."
    return Remark(text)
