"""The main tables: every method that needs only features on every set of a task, and which method is best."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from zeroshift.evaluate import Job, MethodSpec
from zeroshift.experiments._shared.claims import effective_samples, higher
from zeroshift.experiments._shared.compared_methods import (
    OURS,
    SLOW,
    caveat_notes,
    compared_methods,
    excluded_methods,
    joined_names,
    method_label,
    method_trials,
    paper_accuracy,
    row_group,
)
from zeroshift.experiments._shared.experiment import JobResults, Options
from zeroshift.experiments._shared.findings import Column, Finding, Remark, Row, Table, Value
from zeroshift.experiments._shared.paper import PaperTable, paper_table
from zeroshift.experiments._shared.suite import Member, Suite
from zeroshift.experiments._shared.tables import data_remark, reference, with_best, with_mean_note
from zeroshift.experiments._shared.tasks import get_task
from zeroshift.experiments._shared.trials import mean_of_sets

__all__ = [
    "AVERAGE",
    "TableColumn",
    "main_table_findings",
    "main_table_jobs",
    "mean_column",
    "ranking_remarks",
    "set_columns",
    "unique_titles",
]

AVERAGE = "Avg."
"""The paper's name for the mean over all sets."""

LEADS = " In the paper ADAPT is the best of this group."


def ranking_remarks(table: Table, members: Sequence[Member], printed: PaperTable | None) -> list[Remark]:
    """One remark per protocol, based on the last column of the table.

    Parameters
    ----------
    table : rows grouped by protocol; an empty cell in the last column means that the method failed on some set.
    members : the sets of the mean in the last column.
    printed : the paper's table to compare with; None if it has none for these sets.
    """
    where = f"On {members[0].title}" if len(members) == 1 else f"On the mean of {len(members)} sets"
    samples = effective_samples(member.dataset.n_samples for member in members)
    base = _numbers(table, "online").get(method_label("zero_shot"))
    remarks = []
    for protocol, ours in OURS.items():
        numbers = _numbers(table, protocol)
        mine = numbers.pop(method_label(ours), None)
        if mine is None:
            continue
        text = f"{where} {_rank(mine, numbers, protocol, samples, printed)}"
        gains = True if base is None else higher(mine, base, samples=samples)
        if gains is False:
            text += f" That is below the zero-shot classifier ({base:.1%})."
        elif gains is None:
            text += f" ADAPT is too close to zero-shot ({base:.1%}) to call this a gain or a loss."
        remarks.append(Remark(text, kind="warning" if gains is False else "note"))
    return remarks


def _numbers(table: Table, group: str) -> dict[str, float | None]:
    """The last column of a group by row label; None for missing numbers."""
    rows = (row for row in table.rows if row.group == group)
    return {str(row.cells[0]): cell.value if isinstance(cell := row.cells[-1], Value) else None for row in rows}


def _rank(
    mine: float, rivals: dict[str, float | None], protocol: str, samples: float, printed: PaperTable | None
) -> str:
    failed = [label for label, value in rivals.items() if value is None]
    there = {label: value for label, value in rivals.items() if value is not None}
    if failed or not there:
        missing = f"{', '.join(failed)} failed" if failed else "there is no other"
        return f"{protocol} ADAPT has {mine:.1%}; who leads the {protocol} methods is not known, because {missing}."
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
    """Whether ADAPT has the highest mean of its group in the paper."""
    means = {row.method: row.number(AVERAGE) or 0.0 for row in printed.rows if row.protocol == protocol}
    return max(means, key=means.__getitem__) == "ADAPT"


@dataclass(frozen=True)
class TableColumn:
    """A column: one set, or the mean of several."""

    title: str
    members: tuple[Member, ...]
    paper: str | None
    """Name of the column in the paper's table; None if the paper has no such column or ours is of other data."""
    detail: str = ""


ColumnsOf = Callable[[Suite], list[TableColumn]]
"""The columns for the sets of an encoder, the last being the mean; empty without sets."""


def main_table_jobs(columns_of: ColumnsOf, suite: Suite, options: Options) -> list[Job]:
    """All jobs of a main table."""
    shown = {member.name: member for column in columns_of(suite) for member in column.members}
    return [
        trial
        for member in shown.values()
        for spec in _everyone()
        for trial in method_trials(spec, member, options.orders)
    ]


def main_table_findings(
    task: str, columns_of: ColumnsOf, suite: Suite, options: Options, results: JobResults, *, heading: str
) -> list[Finding]:
    """The table of an encoder's sets, remarks on it, and the paper's table."""
    known = get_task(task)
    first = next(iter(known.tables.values()))
    columns = columns_of(suite)
    if not columns:
        return [Remark(f"None of the sets is one of {known.title}. {WHAT_TO_GIVE}"), reference(first)]
    (encoder,) = suite.encoders
    papers = known.tables.get(encoder)
    table = _table(heading, columns, None if papers is None else paper_table(papers), options, results)
    used = columns[-1].members
    # The paper makes no claim about sets that are neither its own nor stand in for them.
    claims = paper_table(papers or first) if any(member.task == task for member in used) else None
    remark = data_remark(Suite(tuple(used)))
    return [
        with_mean_note(table),
        *ranking_remarks(table, used, claims),
        *([] if remark is None else [remark]),
        reference(papers or first),
    ]


WHAT_TO_GIVE = (
    "Fix: give the folder of the data sets (--data ROOT), feature files from `zeroshift extract`, or the bundled packs."
)


def _everyone() -> list[MethodSpec]:
    return [spec for protocol in OURS for spec in compared_methods(protocol)]


def _table(
    title: str, table_columns: Sequence[TableColumn], printed: PaperTable | None, options: Options, results: JobResults
) -> Table:
    rows = []
    for protocol, ours in OURS.items():
        for spec in sorted(compared_methods(protocol), key=row_group):
            method = spec.method
            cells = (
                mean_of_sets(
                    results,
                    [method_trials(spec, member, options.orders) for member in column.members],
                    paper=paper_accuracy(printed, column.paper, method),
                )
                for column in table_columns
            )
            rows.append(Row((method_label(method), *cells), row_group(spec), method == ours))
    columns = (Column("method", "text"), *(Column(column.title, "percent", column.detail) for column in table_columns))
    return Table("accuracy", title, columns, with_best(rows, by_group=True), _notes(options))


def _notes(options: Options) -> tuple[str, ...]:
    *most, last = (method_label(method) for method in SLOW)
    slow = f"{', '.join(most)} and {last}"
    orders = (
        "Online methods: one random order."
        if options.orders == 1
        else f"Online methods: the mean of {options.orders} random orders; {slow}, which are slow, one order."
    )
    return (
        f"{orders} Transductive methods do not depend on the order.",
        *caveat_notes(spec.method for spec in _everyone()),
        "All methods run on the features of the plain images, without views, at their default parameters. The "
        "inductive ZLaP gets half of the samples without labels and is scored on the other half, so the paper's "
        "numbers for ZLaP among the online methods, which are for all samples, are not compared.",
        f"Left out, because they need more than features: {joined_names(excluded_methods())}; methods that need views "
        "of each image, which are in the experiment `views`; and methods that use labels, of which the few-shot "
        "experiment has Tip-Adapter, GDA-CLIP and TIMO.",
    )


OOD_AVERAGE = "OOD Avg."


def set_columns(task: str, suite: Suite, *, source: str | None = None, also: Sequence[str] = ()) -> list[TableColumn]:
    """One column per set of the task, and of the tasks in `also`; if `source` is among them, also a mean without
    it."""
    order = get_task(task).papers_sets
    members = sorted(suite.of_task(task), key=lambda m: order.index(m.data_set) if m.data_set in order else len(order))
    whole = Suite(tuple(members)).paper_backbone(get_task(task)) is not None
    members += [member for other in also for member in suite.of_task(other)]
    if not members:
        return []
    titles = unique_titles([member.paper_column or member.title for member in members], members)
    columns = [TableColumn(title, (m,), m.paper_column, _size(m)) for title, m in zip(titles, members, strict=True)]
    shifted = [member for member in members if member.data_set != source]
    whole = whole and len(members) == len(order)
    if source is not None and 0 < len(shifted) < len(members):
        columns.append(mean_column(OOD_AVERAGE, shifted, whole))
    return [*columns, mean_column(AVERAGE, members, whole)]


def mean_column(title: str, members: Sequence[Member], whole: bool) -> TableColumn:
    """The mean of several sets; `whole` says whether they are exactly the sets of the paper's mean."""
    sets = "1 set" if len(members) == 1 else f"{len(members)} sets"
    return TableColumn(title, tuple(members), title if whole else None, sets)


def unique_titles(titles: Sequence[str], members: Sequence[Member]) -> list[str]:
    """Unique titles: equal ones get the name of their set appended."""
    return [
        f"{title} ({member.name})" if titles.count(title) > 1 else title
        for title, member in zip(titles, members, strict=True)
    ]


def _size(member: Member) -> str:
    return f"{member.dataset.n_samples:,} samples, {member.dataset.n_classes:,} classes"
