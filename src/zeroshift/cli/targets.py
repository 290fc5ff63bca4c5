"""Files to be written, looked at before anything is computed: an hour's work must not end in a refused file name."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

__all__ = ["check_folder", "check_targets"]


def check_targets(targets: Iterable[Path], *, inputs: Iterable[Path], force: bool) -> None:
    """Refuse a target without a folder, one that is an input or named twice and, unless `force`, one that exists."""
    read = {path.resolve() for path in inputs}
    taken: set[Path] = set()
    for target in targets:
        if not target.parent.is_dir():
            raise FileNotFoundError(f"the folder {target.parent} does not exist. Fix: create it, or write elsewhere.")
        if target.is_dir():
            raise ValueError(f"{target} is a folder; the name of a file is needed. Fix: {target / 'predictions.csv'}.")
        if target.resolve() in read:
            raise ValueError(f"{target} is also read from; it would be lost. Fix: write to another file.")
        if target.resolve() in taken:
            raise ValueError(f"{target} is to be written twice. Fix: give each output its own file.")
        if target.exists() and not force:
            raise FileExistsError(f"{target} exists. Fix: pass --force to replace it, or write to another file.")
        taken.add(target.resolve())


def check_folder(folder: Path) -> None:
    """Create `folder` where it is missing; refuse a file of that name."""
    if folder.exists() and not folder.is_dir():
        raise FileExistsError(f"{folder} is a file, not a folder. Fix: name another folder.")
    folder.mkdir(parents=True, exist_ok=True)
