"""The sets experiments ran on, as a table like any other."""

from __future__ import annotations

from zeroshift.experiments import Member, Suite
from zeroshift.experiments.parts.findings import Cell, Column, Row, Table, Value
from zeroshift.experiments.parts.suite import TASKS

__all__ = ["sets_table", "task_name"]


def sets_table(suite: Suite) -> Table:
    """A row a set: what it is, how large, and whether it is the paper's own data."""
    columns = (
        Column("set", "text"),
        Column("what it is", "text"),
        Column("task", "text"),
        Column("encoder, prompts", "text"),
        Column("samples", "count"),
        Column("classes", "count"),
        Column("the paper's data", "text"),
    )
    return Table("sets", "The sets", columns, tuple(Row(_cells(member)) for member in suite.members))


def _cells(member: Member) -> tuple[Cell, ...]:
    entry = member.entry
    sizes = Value(entry.n_samples), Value(entry.n_classes)
    papers = "yes" if member.papers else "no"
    return (entry.name, entry.title, task_name(member), f"{member.encoder}, {entry.prompt}", *sizes, papers)


def task_name(member: Member) -> str:
    """What the paper calls the task of a set, or what we call it.

    >>> from zeroshift.data import packs
    >>> task_name(Member.of("fog", packs.load("cifar10c_fog_5")))
    'Task 2: corruption'
    """
    task = next(task for task in TASKS if task.id == member.task)
    return f"{task.paper}: {task.title}" if task.paper else task.title
