"""Checks of the files a command will write, before anything is computed: an hour's work must not end in a refused file
name."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable
from pathlib import Path

PAGE_SUFFIXES = (".html", ".htm")

__all__ = ["check_output_files", "check_output_folder", "check_writable"]


def check_output_files(outputs: Iterable[Path], *, inputs: Iterable[Path], force: bool) -> None:
    """Refuse an output that cannot be written, that is also an input, that is named twice or, unless `force`, that
    exists."""
    read = {path.resolve() for path in inputs}
    used: set[Path] = set()
    for output in outputs:
        if not os.path.isdir(output.parent):
            raise FileNotFoundError(f"the folder {output.parent} does not exist. Fix: create it, or write elsewhere.")
        check_writable(output)
        if output.is_dir():
            raise ValueError(f"{output} is a folder; the name of a file is needed. Fix: {output / 'predictions.csv'}.")
        if output.resolve() in read:
            raise ValueError(f"{output} is also an input and would be overwritten. Fix: write to another file.")
        if output.resolve() in used:
            raise ValueError(f"{output} is named for two outputs. Fix: give each output its own file.")
        if output.exists() and not force:
            raise FileExistsError(f"{output} exists. Fix: pass --force to replace it, or write to another file.")
        used.add(output.resolve())


def check_writable(output: Path) -> None:
    """Refuse a file that could not be written at the end: a read-only folder, a full disk, a name too long."""
    # The name `zeroshift.files.atomic_path` writes to first, with links resolved as it does: longer than the output's.
    real = Path(os.path.realpath(output))
    probe = real.with_name(f".{real.name}.{secrets.token_hex(6)}.tmp")
    try:
        with open(probe, "xb"):
            pass
        probe.unlink()
    except OSError as error:
        raise OSError(
            f"{output} cannot be written ({error.strerror or error}). Fix: write to another folder, or use a shorter "
            "name."
        ) from error


def check_output_folder(folder: Path, files: Iterable[Path] = ()) -> None:
    """Create `folder` if it is missing; refuse a file of that name, and a folder where `files` cannot be written."""
    if folder.suffix.lower() in PAGE_SUFFIXES and not os.path.exists(folder):
        raise ValueError(
            f"{folder} is the name of a page; the name of a folder is needed. Fix: {folder.with_suffix('')}."
        )
    try:
        is_file = folder.exists() and not folder.is_dir()
        if not is_file:
            folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OSError(
            f"the folder {folder} cannot be created ({error.strerror or error}). Fix: name another folder."
        ) from error
    if is_file:
        raise FileExistsError(f"{folder} is a file, not a folder. Fix: name another folder.")
    for file in files:
        check_writable(file)
