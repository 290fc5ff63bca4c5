"""Files to be written, looked at before anything is computed: an hour's work must not end in a refused file name."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable
from pathlib import Path

__all__ = ["check_folder", "check_targets", "check_writable"]


def check_targets(targets: Iterable[Path], *, inputs: Iterable[Path], force: bool) -> None:
    """Refuse a target that cannot be written, one that is an input or named twice and, unless `force`, one that
    exists."""
    read = {path.resolve() for path in inputs}
    taken: set[Path] = set()
    for target in targets:
        if not os.path.isdir(target.parent):
            raise FileNotFoundError(f"the folder {target.parent} does not exist. Fix: create it, or write elsewhere.")
        check_writable(target)
        if target.is_dir():
            raise ValueError(f"{target} is a folder; the name of a file is needed. Fix: {target / 'predictions.csv'}.")
        if target.resolve() in read:
            raise ValueError(f"{target} is also read from; it would be lost. Fix: write to another file.")
        if target.resolve() in taken:
            raise ValueError(f"{target} is to be written twice. Fix: give each output its own file.")
        if target.exists() and not force:
            raise FileExistsError(f"{target} exists. Fix: pass --force to replace it, or write to another file.")
        taken.add(target.resolve())


def check_writable(target: Path) -> None:
    """Refuse a target that could not be written at the end: a read-only folder, a full disk, a name too long."""
    # The name `zeroshift.files.atomic_path` will write to first, through links as it does: longer than the target's.
    real = Path(os.path.realpath(target))
    probe = real.with_name(f".{real.name}.{secrets.token_hex(6)}.tmp")
    try:
        with open(probe, "xb"):
            pass
        probe.unlink()
    except OSError as error:
        raise OSError(
            f"{target} cannot be written ({error.strerror or error}). "
            "Fix: write to another folder, or take a shorter name."
        ) from error


def check_folder(folder: Path, files: Iterable[Path] = ()) -> None:
    """Create `folder` where it is missing; refuse a file of that name, and a folder that `files` cannot be put in."""
    try:
        taken = folder.exists() and not folder.is_dir()
        if not taken:
            folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OSError(
            f"the folder {folder} cannot be made ({error.strerror or error}). Fix: name another folder."
        ) from error
    if taken:
        raise FileExistsError(f"{folder} is a file, not a folder. Fix: name another folder.")
    for file in files:
        check_writable(file)
