"""A progress bar on stderr: samples done, rate and time left."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from zeroshift.cli.console import console

__all__ = ["progress_bar"]

Advance = Callable[[int, str], None]
"""(samples done since the last call, what is being done)."""


@contextmanager
def progress_bar(
    what: str, total: int, *, quiet: bool = False, counted: bool = True, unit: str = "samples"
) -> Iterator[Advance]:
    """A bar for `total` samples, gone when the block ends; where they cannot be counted it moves to and fro."""
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

    class Rate(ProgressColumn):
        def render(self, task: Task) -> Text:
            return Text(f"{task.speed:,.0f} {unit}/s" if task.speed else "", style="dim")

    columns = [TextColumn("{task.description}", markup=False), BarColumn()]
    columns += [MofNCompleteColumn(), Rate(), TimeRemainingColumn()] if counted else [TimeElapsedColumn()]
    screen = console(stderr=True)
    # In a log file a bar is but an empty line.
    with Progress(*columns, console=screen, transient=True, disable=quiet or not screen.is_terminal) as bar:
        task = bar.add_task(what, total=total if counted else None)
        yield lambda samples, what: bar.update(task, advance=samples, description=what)
