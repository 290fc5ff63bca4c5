"""What the three main tables share: every method that features alone allow, on every set of a task."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from zeroshift.evaluate import Contestant, Job
from zeroshift.experiments.parts.contenders import (
    OURS,
    contenders,
    group_of,
    in_words,
    label_of,
    left_out,
    printed_number,
    trials_of,
)
from zeroshift.experiments.parts.experiment import Answers, Options
from zeroshift.experiments.parts.findings import Column, Finding, Remark, Row, Table, Value
from zeroshift.experiments.parts.marks import ROUNDING, with_best
from zeroshift.experiments.parts.paper import PaperTable, paper_table
from zeroshift.experiments.parts.reference import reference
from zeroshift.experiments.parts.slug import slug
from zeroshift.experiments.parts.suite import Member, Suite
from zeroshift.experiments.parts.task_table import data_remark
from zeroshift.experiments.parts.tasks import get_task
from zeroshift.experiments.parts.trials import mean_of_sets

__all__ = ["AVERAGE", "Place", "main_findings", "main_jobs"]

AVERAGE = "Avg."
"""What the paper calls the mean of all sets."""

PAPERS_PROMPT = "descriptions"
"""The prompt mode of the paper's main results."""


@dataclass(frozen=True)
class Place:
    """A column: one set, or the mean of several."""

    title: str
    members: tuple[Member, ...]
    paper: str | None
    """What the paper's table calls it; None where it has no such column, or ours is of other data."""
    detail: str = ""


Places = Callable[[Suite], list[Place]]
"""The columns for the sets of one encoder; the last is the mean of all. Empty where there are no sets."""


def main_jobs(places: Places, suite: Suite, options: Options) -> list[Job]:
    """All work of a main table, and none for sets that stand in no column of it."""
    shown = {member.name: member for part in suite.by_encoder for place in places(part) for member in place.members}
    return [
        trial
        for member in shown.values()
        for contestant in _everyone()
        for trial in trials_of(contestant, member, options.orders)
    ]


def main_findings(
    task: str, places: Places, suite: Suite, options: Options, answers: Answers, *, heading: str
) -> list[Finding]:
    """A table for each encoder, what is to be said about it, and the paper's own."""
    parts = [(part, columns) for part in suite.by_encoder if (columns := places(part))]
    tables = get_task(task).tables
    if not parts:
        first = next(iter(tables.values()))
        return [Remark(f"None of the sets is one of {get_task(task).title}. {WHAT_TO_GIVE}"), reference(first)]
    findings: list[Finding] = []
    references: dict[str, Table] = {}
    for part, columns in parts:
        (encoder,) = part.encoders
        known = tables.get(encoder)
        shown = known or next(iter(tables.values()))
        name = "accuracy" if len(parts) == 1 else f"accuracy-{slug(encoder)}"
        title = heading if len(parts) == 1 else f"{heading}, {encoder}"
        table = _table(name, title, columns, None if known is None else paper_table(known), options, answers)
        findings += [table, *_standing(table, encoder if len(parts) > 1 else "", paper_table(shown))]
        references[shown] = reference(shown)
    used = [member for _, columns in parts for member in columns[-1].members]
    remarks = (data_remark(Suite(tuple(used))), _prompt_remark(used))
    return [*findings, *(remark for remark in remarks if remark is not None), *references.values()]


WHAT_TO_GIVE = (
    "Fix: give the folder the data sets lie in (--data ROOT), feature files that `zeroshift extract` made, or the "
    "bundled packs."
)


def _everyone() -> list[Contestant]:
    return [contestant for protocol in OURS for contestant in contenders(protocol)]


def _table(
    name: str, title: str, places: Sequence[Place], printed: PaperTable | None, options: Options, answers: Answers
) -> Table:
    rows = []
    for protocol, ours in OURS.items():
        for contestant in sorted(contenders(protocol), key=group_of):
            method = contestant.method
            cells = (
                mean_of_sets(
                    answers,
                    [trials_of(contestant, member, options.orders) for member in place.members],
                    paper=printed_number(printed, place.paper, method),
                )
                for place in places
            )
            rows.append(Row((label_of(method), *cells), group_of(contestant), method == ours))
    columns = (Column(place.title, "percent", place.detail) for place in places)
    return Table(name, title, (Column("method", "text"), *columns), with_best(rows, by_group=True), _notes(options))


def _notes(options: Options) -> tuple[str, ...]:
    orders = "one random order" if options.orders == 1 else f"the mean of {options.orders} random orders"
    return (
        f"ADAPT online: {orders}; every other online method: one. Transductive methods do not depend on the order.",
        "All methods run on the features of the plain images, without views, at their default parameters. The "
        "inductive ZLaP is given half of the samples without labels, and scored on the other half.",
        f"Left out, because features alone are not enough: {in_words(left_out())}; methods that tune prompts; and "
        "those that see labels, which are in the few-shot experiment.",
    )


def _standing(table: Table, encoder: str, printed: PaperTable) -> list[Remark]:
    """Whether ADAPT leads its group, by the mean of all sets; and whether it is above zero-shot."""
    means = {
        str(row.cells[0]): (row.group, cell.value) for row in table.rows if isinstance(cell := row.cells[-1], Value)
    }
    of = f" ({encoder})" if encoder else ""
    base = means.get(label_of("zero_shot"))
    remarks = []
    for protocol, ours in OURS.items():
        label = label_of(ours)
        if label not in means or base is None:
            continue
        mine = means[label][1]
        best, most = max(((k, v) for k, (group, v) in means.items() if group == protocol), key=lambda pair: pair[1])
        text = f"On the mean{of}, ADAPT is the best of the {protocol} methods ({100 * mine:.2f} %)."
        if most > mine + ROUNDING:
            text = (
                f"On the mean{of}, the best {protocol} method is {best} with {100 * most:.2f} %; ADAPT has "
                f"{100 * mine:.2f} %.{LEADS if _leads(printed, protocol) else ''}"
            )
        below = mine < base[1] - ROUNDING
        if below:
            text += f" That is below the zero-shot classifier ({100 * base[1]:.2f} %)."
        remarks.append(Remark(text, kind="warning" if below else "note"))
    return remarks


LEADS = " In the paper ADAPT is the best of this group."


def _leads(printed: PaperTable, protocol: str) -> bool:
    """Whether ADAPT has the greatest mean of its group in the paper."""
    means = {row.method: row.number(AVERAGE) or 0.0 for row in printed.rows if row.protocol == protocol}
    return max(means, key=means.__getitem__) == "ADAPT"


def _prompt_remark(members: Sequence[Member]) -> Remark | None:
    other = [member for member in members if member.papers and member.entry.prompt != PAPERS_PROMPT]
    if not other:
        return None
    modes = ", ".join(dict.fromkeys(member.entry.prompt for member in other))
    return Remark(
        f"The images are the paper's, the prompts are not: ours are {modes}, its main results are of class "
        f"descriptions (mode {PAPERS_PROMPT}). Fix: `zeroshift extract ... --prompts {PAPERS_PROMPT} "
        "--descriptions FILE`.",
        kind="data",
    )
