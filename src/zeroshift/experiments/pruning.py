"""Table 22: dropping each class's least confident bank entries every so many samples."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from zeroshift.evaluate import Job, Trial
from zeroshift.experiments.parts.claims import Evidence, paper_beside, verdict
from zeroshift.experiments.parts.experiment import Answers, Experiment, Options
from zeroshift.experiments.parts.findings import Cell, Column, Finding, Remark, Row, Table, Value
from zeroshift.experiments.parts.paper import paper_table
from zeroshift.experiments.parts.suite import Member, Suite
from zeroshift.experiments.parts.sweep import points
from zeroshift.experiments.parts.task_table import Variant, jobs_of, task_table
from zeroshift.experiments.parts.trials import measured, runs

__all__ = ["EXPERIMENT"]

RATIOS = (0.1, 0.3, 0.5, 0.7)
EVERY = 1000
"""Samples between two prunings in the paper."""

OFTEN = 100
"""Ours: small sets are pruned once or never by the paper's interval."""

WITHOUT = "no pruning"


def _trials(member: Member, every: int, ratio: float | None) -> list[Trial]:
    return runs(member, "adapt_online", 1, {} if ratio is None else {"prune": (every, ratio)})


def _variants(every: int) -> list[Variant]:
    rows: list[tuple[str, float | None]] = [(WITHOUT, None), *((_label(ratio), ratio) for ratio in RATIOS)]
    return [Variant(label, partial(_trials, every=every, ratio=ratio), strong=ratio is None) for label, ratio in rows]


def _label(ratio: float) -> str:
    return f"{ratio:g} dropped"


def _plan(suite: Suite, options: Options) -> Sequence[Job]:
    return jobs_of([*_variants(EVERY), *_variants(OFTEN)], suite)


def _find(suite: Suite, options: Options, answers: Answers) -> Sequence[Finding]:
    tables = [
        task_table(
            f"pruned-every-{every}",
            f"Accuracy with the bank pruned every {every:,} samples",
            _variants(every),
            suite,
            answers,
            label="of each class",
            notes=(note,),
        )
        for every, note in (
            (EVERY, f"The paper's interval. {_how_often(suite, EVERY)} One random order."),
            (OFTEN, f"Ours, often enough to matter on small sets. {_how_often(suite, OFTEN)} One random order."),
        )
    ]
    said = (
        _harm(table, every) if _prunings(suite, every)[1] else None
        for table, every in zip(tables, (EVERY, OFTEN), strict=True)
    )
    printed = _as_printed(suite, answers)
    return [
        *([] if printed is None else [printed]),
        *tables,
        *(remark for remark in said if remark is not None),
        *paper_beside(suite, "bank_pruning"),
    ]


def _prunings(suite: Suite, every: int) -> tuple[int, int]:
    """How often the smallest and the largest set are pruned."""
    sizes = [member.entry.n_samples for member in suite.members]
    return min(sizes) // every, max(sizes) // every


def _how_often(suite: Suite, every: int) -> str:
    least, most = _prunings(suite, every)
    if not most:
        return f"No set holds {every:,} samples, so that nothing was ever dropped."
    times = "once" if least == most == 1 else f"{most} times" if least == most else f"{least} to {most} times"
    return f"These sets are pruned {times}."


def _as_printed(suite: Suite, answers: Answers) -> Table | None:
    """The paper's two sets with its numbers; None where neither is there."""
    paper = paper_table("bank_pruning")
    members = [member for member in suite.members if member.paper_column in paper.columns]
    members = [member for member in members if member.encoder == "CLIP ViT-B/16"]
    if not members:
        return None
    rows = []
    for ratio in (None, *RATIOS):
        method = "ADAPT" if ratio is None else f"ADAPT w/ {ratio:g} pruning"
        cells: list[Cell] = []
        for member in members:
            found = measured(answers, _trials(member, EVERY, ratio))
            number = paper.number_at(str(member.paper_column), method=method)
            cells.append(None if found is None else Value(found.value, paper=None if number is None else number / 100))
        rows.append(Row((WITHOUT if ratio is None else _label(ratio), *cells), strong=ratio is None))
    columns = (Column("of each class", "text"), *(Column(member.title) for member in members))
    return Table("as-printed", f"Pruning every {EVERY:,} samples, on the paper's sets", columns, tuple(rows))


def _harm(table: Table, every: int) -> Remark | None:
    """The paper's point: whatever the ratio, pruning does harm."""
    evidence = []
    plain, *pruned = table.rows
    for place, column in enumerate(table.columns[1:], start=1):
        before = plain.cells[place]
        after = [row.cells[place] for row in pruned]
        if isinstance(before, Value):
            moved = [points(before.value, cell.value) for cell in after if isinstance(cell, Value)]
            if moved:
                told = f"{moved[0]:+.1f} points" if len(set(moved)) == 1 else f"{min(moved):+.1f} to {max(moved):+.1f}"
                evidence.append(Evidence(column.title, max(moved) < 0, told))
    return verdict(f"pruning lowers accuracy at every ratio ({every:,} samples between prunings)", evidence)


EXPERIMENT = Experiment(
    name="pruning",
    title="Pruning the bank",
    question="Does it help to drop the least confident samples of the bank from time to time?",
    plan=_plan,
    find=_find,
    where="Table 22",
    tables=("bank_pruning",),
)
