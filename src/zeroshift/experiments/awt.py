"""Table 19: AWT with and without views, and ADAPT, which needs none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from zeroshift.evaluate import Job
from zeroshift.experiments._shared.claims import ClaimEvidence, effective_samples, higher, verdict
from zeroshift.experiments._shared.experiment import Experiment, JobResults, Options
from zeroshift.experiments._shared.findings import Column, Finding, Remark, Row, Table, Value
from zeroshift.experiments._shared.main_table import AVERAGE, unique_titles
from zeroshift.experiments._shared.paper import paper_table
from zeroshift.experiments._shared.suite import Member, Suite
from zeroshift.experiments._shared.tables import data_remark, reference, task_title
from zeroshift.experiments._shared.tasks import FINE_GRAINED, PAPERS_BACKBONE, get_task
from zeroshift.experiments._shared.trials import mean_of_sets, runs
from zeroshift.experiments._shared.views import awt_without_views, bundled_views

__all__ = ["EXPERIMENT"]

TABLE = "awt_comparison"
SETS = ("imagenet", *get_task(FINE_GRAINED).papers_sets)
"""The sets of the paper's table."""

ZERO_SHOT, ALONE, VIEWED, ONLINE, TRANSDUCTIVE = "zero-shot", "AWT*", "AWT", "ADAPT (online)", "ADAPT (transductive)"
COLUMNS = {
    ZERO_SHOT: "without views",
    ALONE: "without views",
    VIEWED: "with views",
    ONLINE: "without views",
    TRANSDUCTIVE: "without views",
}

METHODS = {ZERO_SHOT: "zero_shot", VIEWED: "awt", ONLINE: "adapt_online", TRANSDUCTIVE: "adapt_transductive"}
PRINTED = {ONLINE: "online", TRANSDUCTIVE: "transductive"}
"""Rows that can be compared with the paper. AWT cannot, because it weights other prompts here."""

SEVERAL = 2
"""Minimum number of prompts per class; with one prompt and no views AWT is zero-shot."""


def _able(suite: Suite) -> Suite:
    return Suite(tuple(member for member in suite.members if member.dataset.n_prompts >= SEVERAL))


def _counted(suite: Suite) -> Suite:
    """The sets of the mean; of images present with and without views, only the set without views."""
    plain = {member.subject for member in suite.members if not member.dataset.n_views}
    return Suite(tuple(m for m in suite.members if not m.dataset.n_views or m.subject not in plain))


def _jobs(column: str, member: Member, options: Options) -> Sequence[Job]:
    if column == ALONE:
        return [awt_without_views(member)]
    if column == VIEWED and not member.dataset.n_views:
        return []
    return runs(member, METHODS[column], 1 if column == ZERO_SHOT else options.orders)


def _plan(suite: Suite, options: Options) -> Sequence[Job]:
    return [job for member in _able(suite).members for column in COLUMNS for job in _jobs(column, member, options)]


def _find(suite: Suite, options: Options, results: JobResults) -> Sequence[Finding | None]:
    able = _able(suite)
    few = [member.title for member in suite.members if member not in able.members]
    left = Remark(f"Left out, because there is only one prompt per class: {', '.join(few)}.")
    if not able.members:
        return [left, reference(TABLE)]
    seen = [member for member in able.members if member.dataset.n_views]
    sets = {member.title: [member] for member in seen}
    counted = _counted(able)
    tasks = {task_title(task): counted.of_task(task.id) for task in counted.tasks}
    unseen = Remark("AWT with views is not run: no set has any. Fix: `zeroshift extract ... --views 64`.")
    remarks = (
        verdict("AWT is less accurate without views", _held(sets, VIEWED, ALONE, options, results)),
        *(
            remark
            for ours in PRINTED
            for remark in (
                verdict(
                    f"{ours} is more accurate than AWT without views",
                    _held(tasks, ours, ALONE, options, results),
                ),
                verdict(
                    f"{ours} does well without views (read as: it is more accurate than AWT with them)",
                    _held(sets, ours, VIEWED, options, results),
                ),
            )
        ),
        None if seen else unseen,
        left if few else None,
        data_remark(able, needs=SETS),
    )
    return [_table(able, options, results), *remarks, reference(TABLE)]


def _table(suite: Suite, options: Options, results: JobResults) -> Table:
    titles = dict(zip(suite.members, unique_titles([m.title for m in suite.members], suite.members), strict=True))
    rows = [
        Row((titles[member], *_cells([member], options, results)), task_title(task))
        for task in suite.tasks
        for member in suite.of_task(task.id)
    ]
    counted = _counted(suite).members
    if len(counted) > 1:
        rows.append(Row((f"mean of {len(counted)} sets", *_cells(counted, options, results)), "all", strong=True))
    twice = len(counted) < len(suite)
    modes = sorted({member.dataset.n_prompts for member in suite.members})
    notes = (
        f"AWT weights the prompt modes of a set ({' or '.join(map(str, modes))} per class), each a mean of its "
        "templates or sentences; the authors' code weights the class name and 50 descriptions separately. So the "
        "paper's numbers for AWT are not compared with ours.",
        *(["In the mean, images present with and without views count once, without views."] if twice else []),
        "Online: one random order." if options.orders == 1 else f"Online: the mean of {options.orders} random orders.",
    )
    columns = (Column("set", "text"), *(Column(name, "percent", detail) for name, detail in COLUMNS.items()))
    return Table("awt", "AWT without and with views, and ADAPT", columns, tuple(rows), notes)


def _cells(members: Sequence[Member], options: Options, results: JobResults) -> list[Value | None]:
    return [_cell(name, members, options, results) for name in COLUMNS]


def _cell(name: str, members: Sequence[Member], options: Options, results: JobResults) -> Value | None:
    """The mean over sets; None if a set has no result."""
    value = mean_of_sets(results, [_jobs(name, member, options) for member in members])
    return None if value is None else replace(value, paper=_printed(name, members))


def _printed(name: str, members: Sequence[Member]) -> float | None:
    """The paper's number for one of its sets or for their mean."""
    if name not in PRINTED or any(not m.from_paper or m.encoder != PAPERS_BACKBONE for m in members):
        return None
    place = AVERAGE if sorted(m.data_set for m in members) == sorted(SETS) else None
    place = members[0].paper_column if len(members) == 1 else place
    number = paper_table(TABLE).number_at(place or "", method="ADAPT", protocol=PRINTED[name])
    return None if number is None else number / 100


def _held(
    groups: Mapping[str, Sequence[Member]], first: str, second: str, options: Options, results: JobResults
) -> list[ClaimEvidence]:
    """Whether one method is more accurate than the other, per group of sets; without failed runs."""
    evidence = []
    for where, members in groups.items():
        a, b = (_cell(name, members, options, results) for name in (first, second))
        if a is not None and b is not None:
            samples = effective_samples(member.dataset.n_samples for member in members)
            detail = f"{first} {100 * a.value:.1f}%, {second} {100 * b.value:.1f}%"
            evidence.append(ClaimEvidence(where, higher(a.value, b.value, samples=samples), detail))
    return evidence


EXPERIMENT = Experiment(
    name="awt",
    title="AWT without views",
    question="How accurate is AWT without the views it weights, compared with ADAPT, which needs none?",
    plan=_plan,
    find=_find,
    where="Table 19",
    tables=(TABLE,),
    extra_sets=bundled_views,
)
