"""Several encoders on the sets that all of them have (the paper's Figure 6, Tables 14-16)."""

from __future__ import annotations

from collections.abc import Sequence

from zeroshift.evaluate import Job, Trial
from zeroshift.experiments._shared.claims import ClaimEvidence, effective_samples, higher, verdict
from zeroshift.experiments._shared.compared_methods import method_label, paper_accuracy
from zeroshift.experiments._shared.experiment import Experiment, JobResults, Options
from zeroshift.experiments._shared.findings import Bar, Bars, Cell, Column, Finding, Remark, Row, Table, Value
from zeroshift.experiments._shared.main_table import AVERAGE
from zeroshift.experiments._shared.paper import paper_table
from zeroshift.experiments._shared.suite import TASKS, Member, Suite, Task, describe_sets
from zeroshift.experiments._shared.tables import data_remark, with_best, with_mean_note
from zeroshift.experiments._shared.trials import mean_of_sets, runs

__all__ = ["EXPERIMENT"]

METHODS = ("zero_shot", "adapt_online", "adapt_transductive")
ALL = "all sets"

ONE_ENCODER = (
    "All sets come from one encoder, {encoder}; there is nothing to compare. Fix: --data ROOT with several "
    "--encoder NAME, or feature files of the same data from several encoders."
)
NOTHING_SHARED = Remark(
    "No set is there from every encoder: sets are matched by the data set, kind of corruption and severity that their "
    "provenance names, or else by their labels. Fix: make the feature files of all encoders with `zeroshift extract` "
    "from the same data."
)


def _shared(suite: Suite) -> Suite:
    """The sets that every encoder of the suite has, once per encoder."""
    seen = [{member.subject for member in part.members} for part in suite.by_encoder]
    common = set.intersection(*seen) if seen else set()
    unique: dict[tuple[object, ...], Member] = {}
    for member in suite.members:
        if member.subject in common:
            unique.setdefault((member.encoder, *member.subject), member)
    return Suite(tuple(unique.values()))


def _trials(method: str, member: Member, options: Options) -> list[Trial]:
    return runs(member, method, options.orders if method == "adapt_online" else 1)


def _plan(suite: Suite, options: Options) -> Sequence[Job]:
    shared = _shared(suite).members
    return [trial for member in shared for method in METHODS for trial in _trials(method, member, options)]


def _find(suite: Suite, options: Options, results: JobResults) -> Sequence[Finding | None]:
    shared = _shared(suite)
    if not shared.members:
        return [NOTHING_SHARED, _papers_means()]
    table = _table(shared, options, results)
    one_encoder = Remark(ONE_ENCODER.format(encoder=suite.encoders[0])) if len(suite.encoders) == 1 else None
    return [
        with_mean_note(table),
        _bars(table),
        _verdict(table, shared),
        one_encoder,
        data_remark(shared),
        _papers_means(),
    ]


def _table(shared: Suite, options: Options, results: JobResults) -> Table:
    rows = [
        Row((part.encoders[0], *_cells(part, task, options, results)), task.title)
        for task in shared.tasks
        for part in shared.by_encoder
    ]
    if len(shared.tasks) > 1:
        rows += [Row((part.encoders[0], *_cells(part, None, options, results)), ALL) for part in shared.by_encoder]
    columns = (
        Column("encoder", "text"),
        *(Column(method_label(method), "percent") for method in METHODS),
        Column("online gain", "points"),
        Column("transductive gain", "points"),
    )
    first = shared.by_encoder[0]
    notes = (
        f"The mean over sets: {describe_sets(first.members)}.",
        "Gains are over the zero-shot classifier of the same encoder, in percentage points.",
    )
    return Table("encoders", "ADAPT with each encoder", columns, with_best(rows, by_group=True), notes)


def _cells(part: Suite, task: Task | None, options: Options, results: JobResults) -> list[Cell]:
    members = part.members if task is None else part.of_task(task.id)
    # The paper has means only for its own sets, and for two encoders.
    backbone = None if task is None else part.paper_backbone(task)
    printed = paper_table(task.tables[backbone]) if task is not None and backbone is not None else None
    values = [
        mean_of_sets(
            results,
            [_trials(method, member, options) for member in members],
            paper=paper_accuracy(printed, AVERAGE, method),
        )
        for method in METHODS
    ]
    base = values[0]
    return [*values, *(_gain(base, value) for value in values[1:])]


def _gain(base: Value | None, value: Value | None) -> Value | None:
    if base is None or value is None:
        return None
    paper = None if base.paper is None or value.paper is None else 100 * (value.paper - base.paper)
    ends = [None if end is None else 100 * (end - base.value) for end in (value.low, value.high)]
    return Value(100 * (value.value - base.value), ends[0], ends[1], paper)


def _papers_means() -> Table:
    """The means of the paper's six main tables, one row per encoder."""
    rows = [
        Row((encoder, *(_printed(name, method) for method in METHODS)), task.title)
        for task in TASKS
        for encoder, name in task.tables.items()
    ]
    columns = (Column("encoder", "text"), *(Column(method_label(method), "percent") for method in METHODS))
    title = "Means of Tables 2 to 4 and 14 to 16 of the paper"
    notes = ("As printed in the paper, which shows BLIP and ALBEF in a figure without numbers.",)
    return with_mean_note(Table("paper-encoders", title, columns, tuple(rows), notes, reference=True))


def _printed(table: str, method: str) -> Value | None:
    number = paper_accuracy(paper_table(table), AVERAGE, method)
    return None if number is None else Value(number)


def _bars(table: Table) -> Bars:
    whole = [row for row in table.rows if row.group == table.rows[-1].group]
    bars = [
        Bar(
            method_label(method),
            100 * cell.value,
            None if cell.low is None else 100 * cell.low,
            None if cell.high is None else 100 * cell.high,
            group=str(row.cells[0]),
            method=method,
        )
        for row in whole
        for method, cell in zip(METHODS, row.cells[1:], strict=False)
        if isinstance(cell, Value)
    ]
    return Bars("encoder-bars", f"Mean accuracy with each encoder, {whole[0].group}", "accuracy (%)", tuple(bars))


def _verdict(table: Table, shared: Suite) -> Remark | None:
    """Whether ADAPT gains with each encoder, per task; without failed runs."""
    evidence = []
    for task in shared.tasks:
        for encoder, base, *adapted in (row.cells[: len(METHODS) + 1] for row in table.rows if row.group == task.title):
            sizes = [member.dataset.n_samples for member in shared.of_encoder(str(encoder)).of_task(task.id)]
            for method, cell in zip(METHODS[1:], adapted, strict=True):
                if isinstance(cell, Value) and isinstance(base, Value):
                    holds = higher(cell.value, base.value, samples=effective_samples(sizes))
                    detail = f"{100 * (cell.value - base.value):+.1f} points"
                    evidence.append(ClaimEvidence(f"{encoder}, {task.title}, {method_label(method)}", holds, detail))
    return verdict("ADAPT gains over zero-shot with every encoder", evidence)


EXPERIMENT = Experiment(
    name="encoders",
    title="Encoders side by side",
    question="Does ADAPT improve accuracy with every encoder?",
    plan=_plan,
    find=_find,
    where="Tables 14, 15 and 16, Figure 6",
    tables=("natural_shift_rn50", "corruption_rn50", "fine_grained_rn50"),
    mixes_encoders=True,
)
