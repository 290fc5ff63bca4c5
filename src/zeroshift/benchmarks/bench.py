"""Many cells into one JSON file, rewritten whole after each: a run that is broken off is gone on with."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from zeroshift.arrays import Home
from zeroshift.benchmarks.case import Settings, measure_cell
from zeroshift.benchmarks.machine import surroundings
from zeroshift.benchmarks.problems import ClipLike
from zeroshift.benchmarks.tables import growth
from zeroshift.files import FileFormatError, atomic_path

__all__ = ["Progress", "is_measured", "read_cells", "run"]

Cells = dict[str, Any]
Progress = Callable[[Settings, str, bool], None]
"""(cell, what is being done, whether the cell is done)."""


def run(
    cells: Sequence[Settings],
    *,
    out: Path | None = None,
    again: bool = False,
    problems: Mapping[str, ClipLike] | None = None,
    progress: Progress = lambda cell, what, done: None,
) -> dict[str, Any]:
    """Measure `cells`; those that `out` holds with the same settings are taken from there unless `again`.

    `problems` holds the real features of cells whose source is not made up. Returns the records of these cells;
    the file keeps others it held.
    """
    held = read_cells(out) if out is not None else {}
    for settings in cells:
        if again or not is_measured(held, settings):
            problem = (problems or {}).get(settings.source)
            notify = _notifier(progress, settings)
            record = measure_cell(settings, problem, notify)
            home = Home.named(settings.where.library, settings.where.device)
            held[settings.key] = {**record, "surroundings": surroundings(home)}
            if out is not None:
                _write(out, held)
        progress(settings, "done", True)
    chosen = {settings.key: held[settings.key] for settings in cells}
    return {"cells": chosen, "growth": growth(chosen)}


def is_measured(held: Cells, settings: Settings) -> bool:
    return settings.key in held and held[settings.key]["settings"] == settings.record()


def read_cells(path: Path) -> Cells:
    """The cells of a file an earlier run wrote; none where there is no file."""
    if not path.exists():
        return {}
    try:
        cells = json.loads(path.read_text())["cells"]
        if not all(isinstance(cell["settings"], dict) for cell in cells.values()):
            raise TypeError
    except (json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError, AttributeError) as error:
        raise FileFormatError(
            f"{path} is not a file of `zeroshift bench`. Fix: write to another file, or remove this one."
        ) from error
    return dict(cells)


def _notifier(progress: Progress, settings: Settings) -> Callable[[str], None]:
    return lambda what: progress(settings, what, False)


def _write(path: Path, cells: Cells) -> None:
    with atomic_path(path) as temporary:
        content = {"cells": cells, "growth": growth(cells)}
        temporary.write_text(json.dumps(content, indent=1, sort_keys=True, allow_nan=False) + "\n")
