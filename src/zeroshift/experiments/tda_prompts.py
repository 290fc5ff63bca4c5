"""Table 18: TDA and ADAPT under the same prompts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from zeroshift.evaluate import Job
from zeroshift.experiments._shared.claims import ClaimEvidence, all_hold, effective_samples, higher, verdict
from zeroshift.experiments._shared.experiment import Experiment, JobResults, Options
from zeroshift.experiments._shared.findings import Cell, Column, Finding, Remark, Row, Table, Value
from zeroshift.experiments._shared.paper import paper_table
from zeroshift.experiments._shared.prompt_modes import PAPERS_MODES, mode_title, modes_of, modes_remark, runs_in_mode
from zeroshift.experiments._shared.suite import Suite, Task
from zeroshift.experiments._shared.tables import data_remark, reference, task_title, with_mean_note
from zeroshift.experiments._shared.tasks import PAPERS_BACKBONE
from zeroshift.experiments._shared.trials import difference, mean_of_sets

__all__ = ["EXPERIMENT"]

PRINTED = "tda_prompts"

TDA = "tda"
METHODS = {TDA: "TDA", "adapt_online": "ADAPT (online)", "adapt_transductive": "ADAPT (transductive)"}
PROTOCOLS = {TDA: None, "adapt_online": "online", "adapt_transductive": "transductive"}
"""Protocols of the rows in the paper."""


def _plan(suite: Suite, options: Options) -> Sequence[Job]:
    return [
        trial
        for member in suite.members
        for method in METHODS
        for mode in modes_of(suite)
        for trial in runs_in_mode(member, method, mode)
    ]


def _find(suite: Suite, options: Options, results: JobResults) -> Sequence[Finding | None]:
    accuracy = _accuracy(suite, results)
    # Prompts are compared in the table itself.
    remarks = (_verdict(accuracy, suite), modes_remark(suite), data_remark(suite, prompts=False))
    return [with_mean_note(accuracy), _lead(accuracy), *remarks, reference(PRINTED)]


def _accuracy(suite: Suite, results: JobResults) -> Table:
    modes = modes_of(suite)
    rows = []
    for task in suite.tasks:
        members = suite.of_task(task.id)
        for method, label in METHODS.items():
            cells = (
                mean_of_sets(
                    results,
                    [runs_in_mode(member, method, mode) for member in members],
                    paper=_printed(suite, task, method, mode),
                )
                for mode in modes
            )
            rows.append(Row((label, *cells), task_title(task), method != TDA))
    columns = (Column("method", "text"), *(Column(mode_title(mode), "percent") for mode in modes))
    notes = ("One random order, the same for all. Empty if some of the sets of a task have no such prompts.",)
    return Table("same-prompts", "TDA and ADAPT under the same prompts", columns, tuple(rows), notes)


def _printed(suite: Suite, task: Task, method: str, mode: str) -> float | None:
    # The table does not name its encoder, but its numbers with descriptions are those of the main tables.
    if suite.paper_backbone(task) != PAPERS_BACKBONE:
        return None
    wanted = {"method": METHODS[method].split(" (")[0], "protocol": PROTOCOLS[method], "task": task.paper}
    number = paper_table(PRINTED).number_at(mode_title(mode), **wanted)
    return None if number is None else number / 100


def _lead(accuracy: Table) -> Table:
    """The rows of ADAPT minus those of TDA for the same task, in points."""
    base: tuple[Cell, ...] = ()
    rows = []
    for row in accuracy.rows:
        if row.cells[0] == METHODS[TDA]:
            base = row.cells[1:]
            continue
        cells = (difference(ours, theirs) for ours, theirs in zip(row.cells[1:], base, strict=True))
        rows.append(Row((f"{row.cells[0]} - TDA", *cells), row.group))
    columns = (Column("difference", "text"), *(Column(column.title, "points") for column in accuracy.columns[1:]))
    return Table("lead", "How far ADAPT is ahead of TDA", columns, tuple(rows), ("In percentage points.",))


def _verdict(accuracy: Table, suite: Suite) -> Remark | None:
    """ADAPT against TDA for each task, and how many of the paper's prompt modes were compared."""
    titles = [column.title for column in accuracy.columns[1:]]
    evidence: list[ClaimEvidence] = []
    compared: set[str] = set()
    for task in suite.tasks:
        rows = [row.cells for row in accuracy.rows if row.group == task_title(task)]
        samples = effective_samples(member.dataset.n_samples for member in suite.of_task(task.id))
        (base,) = (cells for cells in rows if cells[0] == METHODS[TDA])
        for label, *cells in (row for row in rows if row is not base):
            leads: dict[str, float] = {}
            holds = []
            for title, ours, theirs in zip(titles, cells, base[1:], strict=True):
                if isinstance(ours, Value) and isinstance(theirs, Value):
                    holds.append(higher(ours.value, theirs.value, samples=samples))
                    leads[title] = 100 * (ours.value - theirs.value)
            if leads:
                detail = ", ".join(f"{lead:+.1f} with {title}" for title, lead in leads.items())
                evidence.append(ClaimEvidence(f"{label}, {task.title}", all_hold(holds), f"in points {detail}"))
            compared |= set(leads)
    papers = [mode_title(mode) for mode in PAPERS_MODES]
    there = sum(title in compared for title in papers)
    found = verdict(f"ADAPT is ahead of TDA under each of its {len(papers)} prompt modes", evidence)
    if found is None or there == len(papers):
        return found
    return replace(found, text=f"{found.text} Of these {len(papers)} modes {there} could be compared here.")


EXPERIMENT = Experiment(
    name="tda-prompts",
    title="TDA under the same prompts",
    question="Does ADAPT's lead over TDA hold when both use the same prompts?",
    plan=_plan,
    find=_find,
    where="Table 18",
    tables=(PRINTED,),
)
