"""What the three main tables share: every method that features alone allow, on every set of a task."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from zeroshift.evaluate import Contestant, Job
from zeroshift.experiments.parts.contenders import (
    OURS,
    SLOW,
    contenders,
    group_of,
    in_words,
    label_of,
    left_out,
    printed_number,
    trials_of,
)
from zeroshift.experiments.parts.experiment import Answers, Options
from zeroshift.experiments.parts.findings import Column, Finding, Remark, Row, Table
from zeroshift.experiments.parts.marks import with_best
from zeroshift.experiments.parts.paper import PaperTable, paper_table
from zeroshift.experiments.parts.printed_means import noted
from zeroshift.experiments.parts.reference import reference
from zeroshift.experiments.parts.standings import AVERAGE, standings
from zeroshift.experiments.parts.suite import Member, Suite
from zeroshift.experiments.parts.task_table import data_remark
from zeroshift.experiments.parts.tasks import get_task
from zeroshift.experiments.parts.trials import mean_of_sets

__all__ = ["AVERAGE", "Place", "main_findings", "main_jobs"]


@dataclass(frozen=True)
class Place:
    """A column: one set, or the mean of several."""

    title: str
    members: tuple[Member, ...]
    paper: str | None
    """What the paper's table calls it; None where it has no such column, or ours is of other data."""
    detail: str = ""


Places = Callable[[Suite], list[Place]]
"""The columns for the sets of an encoder; the last is the mean of all. Empty where there are no sets."""


def main_jobs(places: Places, suite: Suite, options: Options) -> list[Job]:
    """All work of a main table, and none for sets that stand in no column of it."""
    shown = {member.name: member for place in places(suite) for member in place.members}
    return [
        trial
        for member in shown.values()
        for contestant in _everyone()
        for trial in trials_of(contestant, member, options.orders)
    ]


def main_findings(
    task: str, places: Places, suite: Suite, options: Options, answers: Answers, *, heading: str
) -> list[Finding]:
    """The table of an encoder's sets, what is to be said about it, and the paper's own."""
    known = get_task(task)
    first = next(iter(known.tables.values()))
    columns = places(suite)
    if not columns:
        return [Remark(f"None of the sets is one of {known.title}. {WHAT_TO_GIVE}"), reference(first)]
    (encoder,) = suite.encoders
    papers = known.tables.get(encoder)
    table = _table(heading, columns, None if papers is None else paper_table(papers), options, answers)
    used = columns[-1].members
    # Of sets that are neither the paper's nor in their place the paper says nothing.
    claims = paper_table(papers or first) if any(member.task == task for member in used) else None
    remark = data_remark(Suite(tuple(used)))
    return [
        noted(table),
        *standings(table, used, claims),
        *([] if remark is None else [remark]),
        reference(papers or first),
    ]


WHAT_TO_GIVE = (
    "Fix: give the folder the data sets lie in (--data ROOT), feature files that `zeroshift extract` made, or the "
    "bundled packs."
)


def _everyone() -> list[Contestant]:
    return [contestant for protocol in OURS for contestant in contenders(protocol)]


def _table(
    title: str, places: Sequence[Place], printed: PaperTable | None, options: Options, answers: Answers
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
    columns = (Column("method", "text"), *(Column(place.title, "percent", place.detail) for place in places))
    return Table("accuracy", title, columns, with_best(rows, by_group=True), _notes(options))


def _notes(options: Options) -> tuple[str, ...]:
    *most, last = (label_of(method) for method in SLOW)
    slow = f"{', '.join(most)} and {last}"
    orders = (
        "Online methods: one random order."
        if options.orders == 1
        else f"Online methods: the mean of {options.orders} random orders; {slow}, which take long: of one."
    )
    return (
        f"{orders} Transductive methods do not depend on the order.",
        "All methods run on the features of the plain images, without views, at their default parameters. The "
        "inductive ZLaP is given half of the samples without labels, and scored on the other half: what the paper "
        "prints for ZLaP among the online methods, of all samples, does not stand beside it.",
        f"Left out, because features alone are not enough: {in_words(left_out())}; methods that need views of "
        "an image, which the experiment `views` asks about; and those that see labels, of which the few-shot "
        "experiment holds Tip-Adapter, GDA-CLIP and TIMO.",
    )
