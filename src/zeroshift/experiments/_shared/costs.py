"""Accuracy, gain, time and memory of methods on one set: the shape of the paper's tables of costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from zeroshift.evaluate import Job
from zeroshift.experiments._shared.experiment import Answers, Record
from zeroshift.experiments._shared.findings import Cell, Column, Row, Table, Value
from zeroshift.experiments._shared.paper import PaperRow
from zeroshift.experiments._shared.suite import PAPERS_SET, Member
from zeroshift.experiments._shared.tasks import PAPERS_BACKBONE
from zeroshift.experiments._shared.trials import points

__all__ = ["PER", "Cost", "cost_table", "time_of"]

PER = 1000
"""Samples that times are given for."""

COLUMNS = (
    Column("", "text"),
    Column("accuracy"),
    Column("gain", "points", "over zero-shot"),
    Column("time", "seconds", f"for {PER:,} samples"),
    Column("ratio", "number", "to zero-shot"),
    Column("peak memory", "bytes", "beyond the features"),
)


@dataclass(frozen=True)
class Cost:
    """A row: one run, and what the paper printed for it on ImageNet."""

    label: str
    trial: Job
    group: str
    paper: PaperRow | None = None
    strong: bool = False


def cost_table(
    name: str, title: str, costs: Sequence[Cost], member: Member, answers: Answers, notes: Sequence[str] = ()
) -> Table:
    """The first row is zero-shot, to whose time the others' are held. The paper's accuracies stand beside ours where
    the set is its own; its times and memory are a graphics card's, and never do.
    """
    same = member.papers and member.data_set == PAPERS_SET and member.encoder == PAPERS_BACKBONE
    first = answers.of(costs[0].trial)
    rows = []
    for cost in costs:
        record = answers.of(cost.trial)
        cells = (None,) * (len(COLUMNS) - 1) if record is None else _cells(record, first, cost.paper if same else None)
        rows.append(Row((cost.label, *cells), cost.group, cost.strong))
    return Table(name, title, COLUMNS, tuple(rows), tuple(notes))


def _cells(record: Record, first: Record | None, paper: PaperRow | None) -> tuple[Cell, ...]:
    accuracy, gain = (None if paper is None else paper.number(column) for column in ("Acc (%)", "Gain (%)"))
    peak = record.get("peak_bytes")
    return (
        Value(float(record["accuracy"]), paper=None if accuracy is None else accuracy / 100),
        Value(points(record["zero_shot_accuracy"], record["accuracy"]), paper=gain),
        Value(time_of(record)),
        None if first is None else Value(time_of(record) / time_of(first)),
        None if peak is None else Value(float(peak)),
    )


def time_of(record: Record) -> float:
    """Seconds for `PER` samples, set-up included: a method that learns when it is made has not learned for nothing."""
    return PER * (float(record["seconds"]) + float(record["setup_seconds"])) / float(record["scored"])
