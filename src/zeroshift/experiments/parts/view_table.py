"""Accuracy, and what it cost: a row a method on the image alone or with its views, one set."""

from __future__ import annotations

from collections.abc import Sequence

from zeroshift.experiments.parts.costs import PER, time_of
from zeroshift.experiments.parts.experiment import Answers
from zeroshift.experiments.parts.findings import Cell, Column, Row, Table, Value
from zeroshift.experiments.parts.suite import Member
from zeroshift.experiments.parts.trials import measured, points, spread
from zeroshift.experiments.parts.view_rows import ViewRow

__all__ = ["view_table"]

COLUMNS = (
    Column("", "text"),
    Column("accuracy"),
    Column("gain", "points", "over zero-shot on the image"),
    Column("calibration error"),
    Column("views encoded", "number", "for an image"),
    Column("gradient steps", "number", "for an image"),
    Column("time", "seconds", f"for {PER:,} images"),
    Column("peak memory", "bytes", "beyond the features"),
)


def view_table(name: str, member: Member, rows: Sequence[ViewRow], answers: Answers, orders: int) -> Table:
    """The paper's accuracies stand beside ours where the set is its own."""
    lines = [Row((row.name, *_cells(row, member, answers)), row.group, row.ours and not row.viewed) for row in rows]
    ran = "one random order" if orders == 1 else f"the mean of {orders} random orders where they are quick"
    notes = (
        f"Accuracy, gain and calibration error of online methods: {ran}. Time and memory: one run each, one after the "
        "other with no other run beside it, one thread.",
        "The features of all views are already there: time is what adapting adds. What encoding adds is the views "
        "encoded, each a pass of the image encoder.",
        "All methods run at their default parameters, view 0 being the image itself. AWT weighs the "
        f"{member.entry.n_prompts} prompt modes of the set as if they were descriptions.",
    )
    return Table(name, f"What views of an image buy and cost on {member.title}", COLUMNS, tuple(lines), notes)


def _cells(row: ViewRow, member: Member, answers: Answers) -> tuple[Cell, ...]:
    records = answers.all_of(row.jobs)
    if not records:
        return (None,) * (len(COLUMNS) - 1)
    first = answers.of(row.timed)
    peak = None if first is None else first.get("peak_bytes")
    gains = [points(record["zero_shot_accuracy"], record["accuracy"]) for record in records]
    return (
        spread([float(record["accuracy"]) for record in records], row.printed(member)),
        spread(gains),
        measured(answers, row.jobs, "calibration_error"),
        *(Value(float(records[0][field])) for field in ("image_passes", "gradient_steps")),  # in any order the same
        None if first is None else Value(time_of(first)),
        None if peak is None else Value(float(peak)),
    )
