"""Who stands in a table of views: methods on the image alone and with views, and those that need views."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from zeroshift.evaluate import Analysis, Contestant, Job, contestants
from zeroshift.evaluate.needs import VIEWS
from zeroshift.experiments.parts.awt_alone import awt_alone
from zeroshift.experiments.parts.contenders import OURS, PAPER_ROWS, SLOW, group_of, in_words, label_of
from zeroshift.experiments.parts.paper import paper_table
from zeroshift.experiments.parts.suite import Member
from zeroshift.experiments.parts.tasks import get_task
from zeroshift.experiments.parts.trials import runs

__all__ = ["PROTOCOLS", "ViewRow", "alone", "left_out", "view_rows"]

PROTOCOLS = (*OURS, "episodic")

EPISODIC = {"mta": "MTA", "zero": "ZERO", "awt": "AWT", "ratta": "RA-TTA", "tps": "TPS"}
"""What the paper calls those that forget each image before the next."""

SEEING_ONE = ("zero_shot", *OURS.values())

DESCRIBED = "min_descriptions"
"""A parameter of methods that look for descriptions of a class, of which they need so many."""


@dataclass(frozen=True)
class ViewRow:
    """A method on the image alone, or with its views."""

    method: str
    label: str
    """Without a word on views: the same for both rows of a method."""
    viewed: bool
    group: str
    jobs: tuple[Job, ...]
    """The first is timed; the others are further orders."""

    def printed(self, member: Member) -> float | None:
        """What the paper's main table has for the same set, where it says whether views were seen: of zero-shot and
        ADAPT, which see none, and of episodic methods, which need them. AWT weighs descriptions there, which a set does
        not hold."""
        if self.method == "awt" or not member.papers:
            return None
        if self.viewed and self.method in EPISODIC:
            name = {"method": self.label, "protocol": "online"}
        elif not self.viewed and self.method in SEEING_ONE:
            name = {"method": PAPER_ROWS[self.method].method, "protocol": PAPER_ROWS[self.method].protocol}
        else:
            return None
        table, column = get_task(member.task).tables.get(member.encoder), member.paper_column
        number = None if table is None or column is None else paper_table(table).number_at(column, **name)
        return None if number is None else number / 100

    @property
    def name(self) -> str:
        return f"{self.label}, with views" if self.viewed else self.label

    @property
    def timed(self) -> Job:
        return self.jobs[0]

    @property
    def whole(self) -> bool:
        """Whether it is scored on all samples, as most are."""
        return self.group in PROTOCOLS

    @property
    def ours(self) -> bool:
        return self.method in OURS.values()


def view_rows(member: Member, orders: int) -> list[ViewRow]:
    """By protocol, zero-shot first and ADAPT last; a method stands beside itself."""
    found = []
    for protocol in PROTOCOLS:
        able = [c for c in contestants(protocol, views=True) if VIEWS in c.given and _obstacle(c, member) is None]
        last = sorted(able, key=lambda contestant: contestant.method in OURS.values())
        for contestant in last:
            found += [*_without(contestant, member, orders), _row(contestant, member, orders)]
    return [_row(Contestant("zero_shot"), member, 1), *found]


def left_out(member: Member) -> list[tuple[str, str]]:
    """(methods, why they are left out), for those of the protocols shown that a set with views is not enough for."""
    reasons: dict[str, list[Contestant]] = {}
    for contestant in (c for protocol in PROTOCOLS for c in contestants(protocol)):
        if (why := _obstacle(contestant, member)) is not None:
            reasons.setdefault(why, []).append(contestant)
    return [(in_words(several), why) for why, several in reasons.items()]


def alone(member: Member, *, timed: bool = False) -> Analysis:
    """AWT without views."""
    entry = member.entry
    return Analysis(entry.name, entry.digest, entry.prompt, awt_alone, timed=timed)


def _obstacle(contestant: Contestant, member: Member) -> str | None:
    wanted = contestant.settings.get(DESCRIBED)
    if wanted is not None and member.entry.n_prompts < wanted:
        have = member.entry.n_prompts
        return f"needs {wanted} descriptions of a class to retrieve anything, and there are {have} prompt modes"
    why = contestant.obstacle_with(VIEWS)
    return None if why is None else why.split(". Fix:")[0]


def _row(contestant: Contestant, member: Member, orders: int) -> ViewRow:
    # One run is done alone, for its time; the others only for how far accuracies move with the order.
    many = 1 if contestant.method in SLOW else orders
    jobs = (*runs(member, contestant.label, 1, timed=True), *runs(member, contestant.label, many)[1:])
    label = EPISODIC.get(contestant.method) or label_of(contestant.method)
    return ViewRow(contestant.method, label, VIEWS in contestant.given, group_of(contestant), jobs)


def _without(contestant: Contestant, member: Member, orders: int) -> Sequence[ViewRow]:
    """The same on the image alone, where that is another thing than zero-shot."""
    if contestant.method == "awt":
        return [ViewRow("awt", EPISODIC["awt"], False, group_of(contestant), (alone(member, timed=True),))]
    return [_row(Contestant(contestant.method), member, orders)] if VIEWS in contestant.also else []
