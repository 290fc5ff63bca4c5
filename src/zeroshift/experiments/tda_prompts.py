"""Table 18: TDA and ADAPT under the same prompts."""

from __future__ import annotations

from collections.abc import Sequence

from zeroshift.evaluate import Job, Trial
from zeroshift.experiments.parts.experiment import Answers, Experiment, Options
from zeroshift.experiments.parts.findings import Column, Finding, Remark, Row, Table, Value
from zeroshift.experiments.parts.marks import ROUNDING
from zeroshift.experiments.parts.paper import paper_table
from zeroshift.experiments.parts.prompt_modes import mode_title, modes_of, modes_remark
from zeroshift.experiments.parts.reference import reference
from zeroshift.experiments.parts.slug import slug
from zeroshift.experiments.parts.suite import Member, Suite, Task
from zeroshift.experiments.parts.task_table import data_remark
from zeroshift.experiments.parts.trials import mean_of_sets, runs

__all__ = ["EXPERIMENT"]

PRINTED = "tda_prompts"
PAPERS_BACKBONE = "CLIP ViT-B/16"
"""Not printed beside the table; its numbers with descriptions are those of the main tables."""

TDA = "tda"
METHODS = {TDA: "TDA", "adapt_online": "ADAPT (online)", "adapt_transductive": "ADAPT (transductive)"}
PROTOCOLS = {TDA: None, "adapt_online": "online", "adapt_transductive": "transductive"}
"""What the paper's rows say beside the name of the method."""


def _trials(member: Member, method: str, mode: str) -> list[Trial]:
    return runs(member, method, prompt=mode) if mode in member.prompts else []


def _plan(suite: Suite, options: Options) -> Sequence[Job]:
    return [
        trial
        for member in suite.members
        for method in METHODS
        for mode in modes_of(suite)
        for trial in _trials(member, method, mode)
    ]


def _find(suite: Suite, options: Options, answers: Answers) -> Sequence[Finding]:
    findings: list[Finding] = []
    for part in suite.by_encoder:
        several = len(suite.encoders) > 1
        ending = f"-{slug(part.encoders[0])}" if several else ""
        words = f", {part.encoders[0]}" if several else ""
        accuracy = _accuracy(f"same-prompts{ending}", f"TDA and ADAPT under the same prompts{words}", part, answers)
        lead = _lead(f"lead{ending}", f"How far ADAPT is ahead of TDA{words}", accuracy)
        findings += [accuracy, lead, *_verdict(lead)]
    remarks = (modes_remark(suite), data_remark(suite))
    return [*findings, *(remark for remark in remarks if remark is not None), reference(PRINTED)]


def _accuracy(name: str, title: str, suite: Suite, answers: Answers) -> Table:
    modes = modes_of(suite)
    rows = []
    for task in suite.tasks:
        members = suite.of_task(task.id)
        for method, label in METHODS.items():
            cells = (
                mean_of_sets(
                    answers,
                    [_trials(member, method, mode) for member in members],
                    paper=_printed(suite, task, method, mode),
                )
                for mode in modes
            )
            rows.append(Row((label, *cells), _heading(task), method != TDA))
    columns = (Column("method", "text"), *(Column(mode_title(mode), "percent") for mode in modes))
    notes = ("One random order, the same for all. Empty where some of the sets of a task have no such prompts.",)
    return Table(name, title, columns, tuple(rows), notes)


def _printed(suite: Suite, task: Task, method: str, mode: str) -> float | None:
    if suite.papers(task) != PAPERS_BACKBONE:
        return None
    wanted = {"method": METHODS[method].split(" (")[0], "protocol": PROTOCOLS[method], "task": task.paper}
    number = paper_table(PRINTED).number_at(mode_title(mode), **wanted)
    return None if number is None else number / 100


def _lead(name: str, title: str, accuracy: Table) -> Table:
    """ADAPT's rows less TDA's of the same task, in points."""
    base: tuple[object, ...] = ()
    rows = []
    for row in accuracy.rows:
        if row.cells[0] == METHODS[TDA]:
            base = row.cells[1:]
            continue
        cells = (_difference(ours, theirs) for ours, theirs in zip(row.cells[1:], base, strict=True))
        rows.append(Row((f"{row.cells[0]} - TDA", *cells), row.group))
    columns = (Column("difference", "text"), *(Column(column.title, "points") for column in accuracy.columns[1:]))
    return Table(name, title, columns, tuple(rows), ("In percentage points.",))


def _difference(ours: object, theirs: object) -> Value | None:
    if not isinstance(ours, Value) or not isinstance(theirs, Value):
        return None
    paper = None if ours.paper is None or theirs.paper is None else 100 * (ours.paper - theirs.paper)
    return Value(100 * (ours.value - theirs.value), paper=paper)


def _verdict(lead: Table) -> list[Remark]:
    cells = [
        (f"{row.cells[0].split(' - ')[0]} with {column.title}, {row.group}", cell.value)
        for row in lead.rows
        for column, cell in zip(lead.columns[1:], row.cells[1:], strict=True)
        if isinstance(cell, Value) and isinstance(row.cells[0], str)
    ]
    if not cells:
        return []
    behind = [f"{where} ({points:+.2f})" for where, points in cells if points < -ROUNDING]
    if not behind:
        return [Remark("As in the paper, ADAPT is ahead of TDA, or level, under every kind of prompt.")]
    text = f"In the paper ADAPT is ahead of TDA throughout; here TDA is ahead in {len(behind)} of {len(cells)} cases"
    return [Remark(f"{text}: {'; '.join(behind)}.", kind="warning")]


def _heading(task: Task) -> str:
    return f"{task.paper}: {task.title}" if task.paper else task.title


EXPERIMENT = Experiment(
    name="tda-prompts",
    title="TDA under the same prompts",
    question="Is ADAPT's lead over TDA one of prompts, or does it hold when both start from the same?",
    plan=_plan,
    find=_find,
    where="Table 18",
    tables=(PRINTED,),
)
