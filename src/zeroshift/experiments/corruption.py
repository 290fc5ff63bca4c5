"""Table 3 (Table 15 with RN50): the fifteen kinds of corruption, at severity 5."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from zeroshift.experiments._shared.experiment import Experiment
from zeroshift.experiments._shared.main_table import (
    AVERAGE,
    TableColumn,
    main_table_findings,
    main_table_jobs,
    mean_column,
    unique_titles,
)
from zeroshift.experiments._shared.suite import PAPERS_SEVERITY, Member, Suite
from zeroshift.experiments._shared.tasks import CORRUPTION, get_task

__all__ = ["EXPERIMENT", "GROUPS"]

TASK = CORRUPTION

GROUPS = {
    "blur": ("defocus_blur", "glass_blur", "motion_blur", "zoom_blur"),
    "weather": ("snow", "frost", "fog", "brightness"),
    "digital": ("contrast", "elastic_transform", "pixelate", "jpeg_compression"),
    "noise": ("gaussian_noise", "shot_noise", "impulse_noise"),
}
"""The kinds in the order of the paper's columns, with its headings."""

HEADING = f"Accuracy under corruption, severity {PAPERS_SEVERITY} unless a column says otherwise"


def _places(suite: Suite) -> list[TableColumn]:
    order = [kind for kinds in GROUPS.values() for kind in kinds]
    members = sorted(_hardest(suite.of_task(TASK)), key=lambda m: _place(order, m.corruption))
    if not members:
        return []
    titles = unique_titles([_title(member, members) for member in members], members)
    columns = [TableColumn(title, (m,), m.paper_column, _detail(m)) for title, m in zip(titles, members, strict=True)]
    whole = Suite(tuple(members)).paper_backbone(get_task(TASK)) is not None
    return [*columns, mean_column(AVERAGE, members, whole)]


def _hardest(members: Sequence[Member]) -> list[Member]:
    """For each data set and kind, the sets at severity 5 or, if there are none, at the highest severity."""
    greatest: dict[tuple[str, str | None], int] = {}
    for member in members:
        key = (member.data_set, member.corruption)
        greatest[key] = max(greatest.get(key, 0), member.severity or 0)
    return [m for m in members if (m.severity or 0) == greatest[m.data_set, m.corruption]]


def _place(order: Sequence[str], kind: str | None) -> int:
    return order.index(kind) if kind in order else len(order)


def _title(member: Member, members: Sequence[Member]) -> str:
    several = len({other.data_set for other in members}) > 1
    title = f"{member.kind}, {member.data_set}" if several else member.kind
    if member.severity == PAPERS_SEVERITY:
        return title
    return f"{title} ({f'severity {member.severity}' if member.severity else 'severity unknown'})"


def _detail(member: Member) -> str:
    return next((group for group, kinds in GROUPS.items() if member.corruption in kinds), "")


EXPERIMENT = Experiment(
    name="corruption",
    title="Corruption",
    question="How accurate is each method on images degraded by blur, noise, weather or compression?",
    plan=partial(main_table_jobs, _places),
    find=partial(main_table_findings, TASK, _places, heading=HEADING),
    where="Tables 3 and 15",
    tables=("corruption_vitb16", "corruption_rn50"),
)
