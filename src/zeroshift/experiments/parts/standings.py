"""Who leads a main table, and whether ADAPT is above zero-shot: only where all who could lead are there."""

from __future__ import annotations

from collections.abc import Sequence

from zeroshift.experiments.parts.claims import higher, samples_behind
from zeroshift.experiments.parts.contenders import OURS, label_of
from zeroshift.experiments.parts.findings import Remark, Table, Value
from zeroshift.experiments.parts.paper import PaperTable
from zeroshift.experiments.parts.suite import Member

__all__ = ["AVERAGE", "standings"]

AVERAGE = "Avg."
"""What the paper calls the mean of all sets."""

LEADS = " In the paper ADAPT is the best of this group."


def standings(table: Table, members: Sequence[Member], printed: PaperTable | None) -> list[Remark]:
    """A remark on each of the two protocols, by the last column of the table.

    Parameters
    ----------
    table : rows grouped by protocol; an empty cell in the last column is a method that failed on some set.
    members : the sets the last column is the mean of.
    printed : the paper's table whose conclusion is to be named where ours differs; None where it says nothing of them.
    """
    where = f"On {members[0].title}" if len(members) == 1 else f"On the mean of {len(members)} sets"
    samples = samples_behind(member.entry.n_samples for member in members)
    base = _numbers(table, "online").get(label_of("zero_shot"))
    remarks = []
    for protocol, ours in OURS.items():
        numbers = _numbers(table, protocol)
        mine = numbers.pop(label_of(ours), None)
        if mine is None:
            continue
        text = f"{where} {_rank(mine, numbers, protocol, samples, printed)}"
        gains = True if base is None else higher(mine, base, samples=samples)
        if gains is False:
            text += f" That is below the zero-shot classifier ({base:.1%})."
        elif gains is None:
            text += f" It is too close to the zero-shot classifier ({base:.1%}) to call that a gain or a loss."
        remarks.append(Remark(text, kind="warning" if gains is False else "note"))
    return remarks


def _numbers(table: Table, group: str) -> dict[str, float | None]:
    """The last column of a group, by the label of the row; None where there is no number."""
    rows = (row for row in table.rows if row.group == group)
    return {str(row.cells[0]): cell.value if isinstance(cell := row.cells[-1], Value) else None for row in rows}


def _rank(
    mine: float, rivals: dict[str, float | None], protocol: str, samples: float, printed: PaperTable | None
) -> str:
    failed = [label for label, value in rivals.items() if value is None]
    there = {label: value for label, value in rivals.items() if value is not None}
    if failed or not there:
        missing = f"{', '.join(failed)} failed" if failed else "there is no other"
        return f"{protocol} ADAPT has {mine:.1%}; who leads the {protocol} methods is not said, because {missing}."
    best = max(there, key=there.__getitem__)
    ahead = higher(mine, there[best], samples=samples)
    if ahead:
        return f"ADAPT is the best of the {protocol} methods ({mine:.1%}; next is {best} with {there[best]:.1%})."
    if ahead is None:
        other = f"the best other {protocol} method, {best} ({there[best]:.1%})"
        return f"ADAPT ({mine:.1%}) and {other}, are too close to tell apart."
    leads = LEADS if printed is not None and _leads(printed, protocol) else ""
    return f"the highest of the {protocol} methods is {best} with {there[best]:.1%}; ADAPT has {mine:.1%}.{leads}"


def _leads(printed: PaperTable, protocol: str) -> bool:
    """Whether ADAPT has the greatest mean of its group in the paper."""
    means = {row.method: row.number(AVERAGE) or 0.0 for row in printed.rows if row.protocol == protocol}
    return max(means, key=means.__getitem__) == "ADAPT"
