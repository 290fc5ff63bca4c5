"""What the paper concludes, held against what came out here; and its table beside ours where the data differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from zeroshift.experiments.parts.findings import Finding, Remark
from zeroshift.experiments.parts.reference import reference
from zeroshift.experiments.parts.suite import Suite
from zeroshift.experiments.parts.task_table import data_remark

__all__ = ["Evidence", "paper_beside", "verdict"]


@dataclass(frozen=True)
class Evidence:
    """Whether a claim holds in one place, and the numbers that say so."""

    where: str
    """"corruption", "online": what the place is called in a sentence."""
    holds: bool
    told: str
    """"45.1 to 47.6"."""

    def __str__(self) -> str:
        return f"{self.where} ({self.told})"


def verdict(claim: str, evidence: Sequence[Evidence]) -> Remark | None:
    """A claim of the paper, and where it holds here: a warning unless it does everywhere. None without evidence.

    >>> verdict("pruning lowers accuracy", [Evidence("corruption", False, "+0.4 points")])
    Remark(text='The paper finds that pruning lowers accuracy. Not so here: corruption (+0.4 points).', kind='warning')
    """
    if not evidence:
        return None
    with_it, against = ([e for e in evidence if e.holds is holds] for holds in (True, False))
    begins = f"The paper finds that {claim}."
    if not against:
        return Remark(f"{begins} So it is here: {_listed(with_it)}.")
    if not with_it:
        return Remark(f"{begins} Not so here: {_listed(against)}.", kind="warning")
    return Remark(f"{begins} Not so here for {_listed(against)}; so it is for {_listed(with_it)}.", kind="warning")


def paper_beside(suite: Suite, *tables: str) -> list[Finding]:
    """Where ours ran on other data: that it did, and the paper's own tables. Nothing where it ran on the same."""
    said = data_remark(suite)
    return [] if said is None else [said, *(reference(table) for table in tables)]


def _listed(evidence: Sequence[Evidence]) -> str:
    return "; ".join(map(str, evidence))
