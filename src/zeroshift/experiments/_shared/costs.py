"""Tables of accuracy, gain, time and memory of methods on one set, as in the paper."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from zeroshift.evaluate import Job
from zeroshift.experiments._shared.experiment import JobResults, Record
from zeroshift.experiments._shared.findings import Cell, Column, Row, Table, Value
from zeroshift.experiments._shared.paper import PaperRow
from zeroshift.experiments._shared.suite import Member, is_paper_imagenet
from zeroshift.experiments._shared.trials import points

__all__ = ["TIMED_SAMPLES", "CostRow", "cost_table", "seconds_per_thousand"]

TIMED_SAMPLES = 1000
"""Number of samples that reported times refer to."""

COLUMNS = (
    Column("", "text"),
    Column("accuracy"),
    Column("gain", "points", "over zero-shot"),
    Column("time", "seconds", f"for {TIMED_SAMPLES:,} samples"),
    Column("ratio", "number", "to zero-shot"),
    Column("peak memory", "bytes", "beyond the features"),
)


@dataclass(frozen=True)
class CostRow:
    """A row: one run, and the row of the paper's table for ImageNet."""

    label: str
    trial: Job
    group: str
    paper: PaperRow | None = None
    strong: bool = False


def cost_table(
    name: str, title: str, costs: Sequence[CostRow], member: Member, results: JobResults, notes: Sequence[str] = ()
) -> Table:
    """A table of costs; times are relative to zero-shot, the first row. The paper's accuracies are shown if the set
    is the paper's; its times and memory are from a GPU and are never shown."""
    same = is_paper_imagenet(member)
    first = results.record(costs[0].trial)
    rows = []
    for cost in costs:
        record = results.record(cost.trial)
        cells = (None,) * (len(COLUMNS) - 1) if record is None else _cells(record, first, cost.paper if same else None)
        rows.append(Row((cost.label, *cells), cost.group, cost.strong))
    return Table(name, title, COLUMNS, tuple(rows), tuple(notes))


def _cells(record: Record, first: Record | None, paper: PaperRow | None) -> tuple[Cell, ...]:
    accuracy, gain = (None if paper is None else paper.number(column) for column in ("Acc (%)", "Gain (%)"))
    peak = record.get("peak_bytes")
    return (
        Value(float(record["accuracy"]), paper=None if accuracy is None else accuracy / 100),
        Value(points(record["zero_shot_accuracy"], record["accuracy"]), paper=gain),
        Value(seconds_per_thousand(record)),
        None if first is None else Value(seconds_per_thousand(record) / seconds_per_thousand(first)),
        None if peak is None else Value(float(peak)),
    )


def seconds_per_thousand(record: Record) -> float:
    """Seconds per `TIMED_SAMPLES` samples, including set-up."""
    return TIMED_SAMPLES * (float(record["seconds"]) + float(record["setup_seconds"])) / float(record["scored"])
