"""A folder with one record file per job. Files are written atomically, so that interrupted work can resume.

Every record has a checksum of its content. A record that was damaged or edited is not used: its job runs again. So does
the job of a record with schema version 1, which has no checksum.
"""

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
from zeroshift.evaluate.streams.domains import domain_names
from zeroshift.files import FileFormatError, atomic_path, has_valid_checksum, with_checksum
from zeroshift.parsers import parse_json, read_json

__all__ = [
    "KIND",
    "SCHEMA",
    "Ledger",
    "UnrecordableError",
    "is_newer",
    "is_unverified",
    "read_record",
    "relabel_record",
]

KIND = "zeroshift run"
SCHEMA = 2

ABANDONED_SECONDS = 3600.0
"""Age after which a temporary file counts as the leftover of a killed process."""


class Ledger:
    """Records in `folder`, which is created if necessary. Other files in it stay untouched."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        if not isinstance(folder, (str, os.PathLike)) or not os.fspath(folder):
            raise TypeError(f"folder must be the name of a folder; got {folder!r}. Fix: Ledger('runs').")
        self.folder = Path(folder)
        if self.folder.exists() and not self.folder.is_dir():
            raise NotADirectoryError(f"{self.folder} is a file; records are kept in a folder. Fix: name a folder.")
        self.damaged: list[Path] = []
        """Files that should hold a record and do not, or one that was changed; their jobs run again."""

    def path(self, job: Job) -> Path:
        return self.folder / f"{job.slug}-{job.key}.json"

    def read(self, job: Job) -> dict[str, Any] | None:
        """The record of a job; None if there is none, its file is damaged, or it has no checksum."""
        path = self.path(job)
        try:
            record = read_record(path)
        except FileNotFoundError:
            return None
        if is_newer(record):
            raise FileFormatError(
                f"{path} has schema version {record['schema']}; this zeroshift reads up to {SCHEMA}. "
                "Fix: upgrade zeroshift, or use another folder."
            )
        if is_unverified(record):
            return None
        if not _is_valid(record, job):
            self.damaged.append(path)
            return None
        return relabel_record(job, record)

    def write(self, job: Job, result: Mapping[str, Any], notes: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Write the result of a job and `notes`; returns the record as `read` will return it."""
        notes = notes or {}
        made_by = {"zeroshift": __version__, "code": job.code}
        identity = {"kind": KIND, "schema": SCHEMA, "key": job.key, **made_by, **job.describe()}
        if taken := sorted(identity.keys() & notes.keys()):
            raise UnrecordableError(f"notes use field names of the record: {', '.join(taken)}")
        if taken := sorted((identity.keys() | notes.keys()) & result.keys()):
            raise UnrecordableError(f"the result uses field names of the record: {', '.join(taken)}")
        try:
            # Through JSON and back: the checksum is of the record as `read` will return it.
            text = json.dumps({**identity, **result, **notes}, allow_nan=False, default=_plain)
            record: dict[str, Any] = parse_json(text, "it")
        except (ValueError, TypeError, RecursionError) as error:
            raise UnrecordableError(f"the result cannot be written as JSON ({error})") from error
        self.folder.mkdir(parents=True, exist_ok=True)
        with atomic_path(self.path(job)) as temporary:
            temporary.write_text(json.dumps(with_checksum(record), indent=1) + "\n", encoding="utf-8", newline="\n")
        return record

    def remove_abandoned(self) -> None:
        """Delete old temporary files of processes that were killed while writing."""
        for path in self.folder.glob(".*.json.*.tmp"):
            with suppress(OSError):  # another process may have deleted it
                if time.time() - path.stat().st_mtime > ABANDONED_SECONDS:
                    path.unlink()


class UnrecordableError(ValueError):
    """A result that cannot be recorded: not JSON, or with a reserved field name."""


def relabel_record(job: Job, record: Mapping[str, Any]) -> dict[str, Any]:
    """The record of an equal job with the names of this one: set, parameters and domains may be named differently."""
    description: dict[str, Any] = json.loads(json.dumps(job.describe(), default=_plain))
    relabelled = {**record, **description}
    before, now = (
        stream if isinstance(stream, dict) else {} for stream in (record.get("stream"), description.get("stream"))
    )
    if isinstance(record.get("groups"), dict) and now.get("domains"):
        new_names = dict(zip(domain_names(before), domain_names(now), strict=False))
        relabelled["groups"] = {new_names.get(name, name): value for name, value in record["groups"].items()}
    return relabelled


def read_record(path: Path) -> Any:
    """The record of a file, without its checksum; None if it is damaged or was edited."""
    try:
        record = read_json(path)
    except FileFormatError:
        return None
    if not isinstance(record, dict) or is_newer(record) or is_unverified(record):
        return record
    if not has_valid_checksum(record):
        return None
    del record["checksum"]
    return record


def is_unverified(record: Any) -> bool:
    """Whether an earlier version of zeroshift wrote the record, without a checksum."""
    return isinstance(record, dict) and record.get("schema") == 1 and "checksum" not in record


def is_newer(record: Any) -> bool:
    """Whether a later version of zeroshift wrote the record."""
    if not isinstance(record, dict) or record.get("kind") != KIND:
        return False
    schema = record.get("schema")
    return type(schema) is int and schema > SCHEMA


def _plain(value: Any) -> Any:
    """Convert NumPy numbers and arrays to Python; anything else to its repr."""
    return value.tolist() if hasattr(value, "tolist") else repr(value)


def _is_valid(record: Any, job: Job) -> bool:
    if not isinstance(record, dict) or record.get("kind") != KIND or record.get("key") != job.key:
        return False
    return job.is_valid(record)
