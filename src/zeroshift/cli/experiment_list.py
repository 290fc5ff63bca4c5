"""`zeroshift experiment list`: every experiment, what it asks and where the paper has it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from zeroshift.cli.console import console, print_json
from zeroshift.experiments import Experiment, list_experiments

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["print_experiments"]

WHERE_WIDTH = 18
"""Of the column that says where in the paper: the room is for the questions."""

QUESTION_WIDTH = 24
"""Where less is left for the questions, names and questions stand below each other."""


def print_experiments(*, as_json: bool) -> None:
    listed = list_experiments()
    if as_json:
        fields = ("name", "title", "question", "where")
        print_json([{**{f: getattr(e, f) for f in fields}, "paper_tables": list(e.tables)} for e in listed])
        return
    from rich.text import Text

    screen = console()
    if screen.width < max(len(one.name) for one in listed) + QUESTION_WIDTH + WHERE_WIDTH + 4:
        for one in listed:
            screen.print(Text(one.name, style="bold"))
            screen.print(one.question if not one.where else f"{one.question} ({one.where})")
            screen.print()
    else:
        screen.print(_table(listed))
    screen.print("Do one with: zeroshift experiment NAME; all of them with: zeroshift experiment all", style="dim")


def _table(listed: Sequence[Experiment]) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, pad_edge=False, header_style="dim")
    table.add_column("name", no_wrap=True, style="bold")
    table.add_column("question", overflow="fold")
    table.add_column("in the paper", overflow="fold", max_width=WHERE_WIDTH)
    for experiment in listed:
        table.add_row(experiment.name, experiment.question, experiment.where or "-")
    return table
