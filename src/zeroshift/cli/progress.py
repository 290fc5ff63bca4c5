"""Progress bars."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from zeroshift.cli.console import console

__all__ = ["progress_bar"]

Advance = Callable[[int, str], None]
"""(units done since the last call, what is being done)."""


@contextmanager
def progress_bar(
    what: str, total: int, *, quiet: bool = False, counted: bool = True, unit: str = "samples"
) -> Iterator[Advance]:
    """A bar on stderr for `total` units, removed when the block ends; without `counted` it only shows activity."""
    columns = [TextColumn("{task.description}", markup=False), BarColumn()]
    columns += [MofNCompleteColumn(), _Rate(unit), TimeRemainingColumn()] if counted else [TimeElapsedColumn()]
    screen = console(stderr=True)
    # In a log file a bar would be an empty line.
    with Progress(*columns, console=screen, transient=True, disable=quiet or not screen.is_terminal) as bar:
        task = bar.add_task(what, total=total if counted else None)
        yield lambda units, what: bar.update(task, advance=units, description=what)


class _Rate(ProgressColumn):
    def __init__(self, unit: str) -> None:
        super().__init__()
        self.unit = unit

    def render(self, task: Task) -> Text:
        return Text(f"{task.speed:,.0f} {self.unit}/s" if task.speed else "", style="dim")
