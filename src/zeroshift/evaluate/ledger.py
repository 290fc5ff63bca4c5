"""The folder of records, a file a run: written whole or not at all, so that whatever stops the work, it goes on."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from zeroshift._version import __version__
from zeroshift.evaluate.job import Job
from zeroshift.files import FileFormatError, atomic_path

__all__ = ["KIND", "SCHEMA", "Ledger", "UnrecordableError", "is_newer"]

KIND = "zeroshift run"
SCHEMA = 1

ABANDONED_SECONDS = 3600.0
"""How old a file that was being written must be before it is taken for one that a killed process left behind."""


class Ledger:
    """Records in `folder`, which is made where it is missing. Other files there are left alone."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        if self.folder.exists() and not self.folder.is_dir():
            raise NotADirectoryError(f"{self.folder} is a file; records are kept in a folder. Fix: name a folder.")
        self.damaged: list[Path] = []
        """Files that should hold a record and do not; their runs count as not done."""

    def path(self, job: Job) -> Path:
        return self.folder / f"{job.slug}-{job.key}.json"

    def read(self, job: Job) -> dict[str, Any] | None:
        """The record of a run that is done; None for one that is not, or whose file is damaged."""
        path = self.path(job)
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except (UnicodeDecodeError, json.JSONDecodeError):
            record = None
        if is_newer(record):
            raise FileFormatError(
                f"{path} has schema version {record['schema']}; this zeroshift reads up to {SCHEMA}. "
                "Fix: upgrade zeroshift, or take another folder."
            )
        if not _sound(record, job):
            self.damaged.append(path)
            return None
        return {**record, "features": job.features}  # the same set may have had another name then

    def write(self, job: Job, found: Mapping[str, Any]) -> dict[str, Any]:
        """Keep what a run found; returns the whole record, just as it will be read."""
        made_by = {"zeroshift": __version__, "code": job.code}
        identity = {"kind": KIND, "schema": SCHEMA, "key": job.key, **made_by, **job.what()}
        if taken := sorted(identity.keys() & found.keys()):
            raise UnrecordableError(f"what it found goes by names of the record's own: {', '.join(taken)}")
        record = {**identity, **found}
        try:
            text = json.dumps(record, indent=1, allow_nan=False, default=_plain)
        except ValueError as error:
            raise UnrecordableError(f"what it found cannot be kept as JSON ({error})") from error
        self.folder.mkdir(parents=True, exist_ok=True)
        with atomic_path(self.path(job)) as temporary:
            temporary.write_text(text + "\n", encoding="utf-8", newline="\n")
        kept: dict[str, Any] = json.loads(text)
        return kept

    def tidy(self) -> None:
        """Delete what processes that were killed in the middle of writing left behind; nothing reads it."""
        for path in self.folder.glob(".*.json.*.tmp"):
            with suppress(OSError):  # another process may have been quicker
                if time.time() - path.stat().st_mtime > ABANDONED_SECONDS:
                    path.unlink()


class UnrecordableError(ValueError):
    """An answer that cannot be kept: a number that is none, or a name that is taken."""


def is_newer(record: Any) -> bool:
    """Whether it is a record of a zeroshift newer than this one."""
    if not isinstance(record, dict) or record.get("kind") != KIND:
        return False
    schema = record.get("schema")
    return isinstance(schema, int) and schema > SCHEMA


def _plain(value: Any) -> Any:
    """NumPy's numbers and arrays as Python's; what else JSON does not know, as words."""
    return value.tolist() if hasattr(value, "tolist") else repr(value)


def _sound(record: Any, job: Job) -> bool:
    if not isinstance(record, dict) or record.get("kind") != KIND or record.get("key") != job.key:
        return False
    return job.sound(record)
