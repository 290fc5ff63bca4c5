"""`zeroshift experiment list`: every experiment, what it asks and where the paper has it."""

from __future__ import annotations

from zeroshift.cli.console import console, print_json
from zeroshift.experiments import list_experiments

__all__ = ["print_experiments"]

WHERE_WIDTH = 18
"""Of the column that says where in the paper: the room is for the questions."""


def print_experiments(*, as_json: bool) -> None:
    listed = list_experiments()
    if as_json:
        fields = ("name", "title", "question", "where")
        print_json([{**{f: getattr(e, f) for f in fields}, "paper_tables": list(e.tables)} for e in listed])
        return
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, pad_edge=False, header_style="dim")
    table.add_column("name", no_wrap=True, style="bold")
    table.add_column("question", overflow="fold")
    table.add_column("in the paper", overflow="fold", max_width=WHERE_WIDTH)
    for experiment in listed:
        table.add_row(experiment.name, experiment.question, experiment.where or "-")
    screen = console()
    screen.print(table)
    screen.print("Do one with: zeroshift experiment NAME; all of them with: zeroshift experiment all", style="dim")
