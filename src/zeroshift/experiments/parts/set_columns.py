"""The columns of a main table: a set each, in the paper's order, and their mean."""

from __future__ import annotations

from collections.abc import Sequence

from zeroshift.experiments.parts.main_table import AVERAGE, Place
from zeroshift.experiments.parts.suite import Member, Suite
from zeroshift.experiments.parts.tasks import get_task

__all__ = ["mean_place", "set_columns", "unlike"]

OOD_AVERAGE = "OOD Avg."


def set_columns(task: str, suite: Suite, *, source: str | None = None, also: Sequence[str] = ()) -> list[Place]:
    """A column a set of the task, and of the tasks in `also`; where `source` is among them, a mean without it too."""
    order = get_task(task).papers_sets
    members = sorted(suite.of_task(task), key=lambda m: order.index(m.data_set) if m.data_set in order else len(order))
    whole = Suite(tuple(members)).papers(get_task(task)) is not None
    members += [member for other in also for member in suite.of_task(other)]
    if not members:
        return []
    titles = unlike([member.paper_column or member.title for member in members], members)
    places = [Place(title, (m,), m.paper_column, _size(m)) for title, m in zip(titles, members, strict=True)]
    shifted = [member for member in members if member.data_set != source]
    whole = whole and len(members) == len(order)
    if source is not None and 0 < len(shifted) < len(members):
        places.append(mean_place(OOD_AVERAGE, shifted, whole))
    return [*places, mean_place(AVERAGE, members, whole)]


def mean_place(title: str, members: Sequence[Member], whole: bool) -> Place:
    """The mean of several sets; `whole` says whether they are just those of the paper's mean."""
    sets = "1 set" if len(members) == 1 else f"{len(members)} sets"
    return Place(title, tuple(members), title if whole else None, sets)


def unlike(titles: Sequence[str], members: Sequence[Member]) -> list[str]:
    """Titles that differ: where two are the same, the sets' own names tell them apart."""
    return [
        f"{title} ({member.name})" if titles.count(title) > 1 else title
        for title, member in zip(titles, members, strict=True)
    ]


def _size(member: Member) -> str:
    return f"{member.entry.n_samples:,} samples, {member.entry.n_classes:,} classes"
