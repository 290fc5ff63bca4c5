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
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from zeroshift.cli.console import console

__all__ = ["ProgressBar", "progress_bar"]


class ProgressBar:
    """A bar that is shown; a call advances it by `units` and says what is being done."""

    def __init__(self, bars: Progress, task: TaskID) -> None:
        self._bars, self._task = bars, task

    def __call__(self, units: int, what: str) -> None:
        self._bars.update(self._task, advance=units, description=what)

    def add_line(self, what: str, total: int, unit: str) -> Callable[[int], None]:
        """A second bar above this one; the returned function advances it, and removes it when it is full."""
        task = self._bars.add_task(what, total=total, unit=unit)

        def advance(units: int) -> None:
            self._bars.update(task, advance=units)
            if self._bars.tasks[self._bars.task_ids.index(task)].finished:
                self._bars.remove_task(task)

        return advance


@contextmanager
def progress_bar(
    what: str, total: int, *, quiet: bool = False, counted: bool = True, unit: str = "samples"
) -> Iterator[ProgressBar]:
    """A bar on stderr for `total` units, removed when the block ends; without `counted` it only shows activity."""
    columns = [TextColumn("{task.description}", markup=False), BarColumn()]
    columns += [MofNCompleteColumn(), _Rate(), TimeRemainingColumn()] if counted else [TimeElapsedColumn()]
    screen = console(stderr=True)
    # In a log file a bar would be an empty line.
    with Progress(*columns, console=screen, transient=True, disable=quiet or not screen.is_terminal) as bars:
        yield ProgressBar(bars, bars.add_task(what, total=total if counted else None, unit=unit))


class _Rate(ProgressColumn):
    def render(self, task: Task) -> Text:
        return Text(f"{task.speed:,.0f} {task.fields['unit']}/s" if task.speed else "", style="dim")
