"""A record beside corrupted copies that says what was done to them, so that copies of two kinds never mix."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from zeroshift._version import __version__
from zeroshift.data.corruptions.corruption import Corruption
from zeroshift.files import atomic_path

__all__ = ["RECORD", "begin"]

RECORD = "corruption.json"
"""Holds what `Corruption.describe` says, and the version of zeroshift."""

FIX = "Fix: name another folder to write to, or replace the copies with --force (force=True)."


def begin(folder: Path, corruption: Corruption, names: Sequence[str], *, force: bool) -> None:
    """Make `folder` ready for copies called `names`; refuse it where it holds copies that are not of this corruption.

    With `force` the copies that are there are deleted, and their record replaced.
    """
    record = folder / RECORD
    if force:
        # Before the new record is written: copies made with another seed must never lie beside it.
        for name in names:
            (folder / name).unlink(missing_ok=True)
    elif record.exists():
        if not _says(record, corruption):
            raise FileExistsError(f"{folder} holds copies made with another seed or other constants. {FIX}")
        return
    elif folder.exists():
        present = next((folder / name for name in names if (folder / name).exists()), None)
        if present is not None:
            raise FileExistsError(f"{present} exists, and no {RECORD} says what it is. {FIX}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OSError(
            f"the folder {folder} cannot be made ({error.strerror or error}). Fix: name another folder to write to."
        ) from error
    with atomic_path(record) as temporary:
        said = {"zeroshift": __version__, **corruption.describe()}
        temporary.write_text(json.dumps(said, indent=2) + "\n", encoding="utf-8")


def _says(record: Path, corruption: Corruption) -> bool:
    try:
        said = json.loads(record.read_text(encoding="utf-8"))
    except ValueError:
        return False
    # Whichever version wrote it.
    return isinstance(said, dict) and {key: said[key] for key in said if key != "zeroshift"} == corruption.describe()
