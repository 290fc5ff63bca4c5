"""The folder of records, a file a run: written whole or not at all, so that whatever stops the work, it goes on."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from zeroshift._version import __version__
from zeroshift.evaluate.job import Job
from zeroshift.evaluate.streams.domains import domain_names
from zeroshift.files import FileFormatError, atomic_path

__all__ = ["KIND", "SCHEMA", "Ledger", "UnrecordableError", "is_newer", "read_record", "relabel_record"]

KIND = "zeroshift run"
SCHEMA = 1

ABANDONED_SECONDS = 3600.0
"""How old a file that was being written must be before it is taken for one that a killed process left behind."""


class Ledger:
    """Records in `folder`, which is made where it is missing. Other files there are left alone."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        if not isinstance(folder, (str, os.PathLike)) or not os.fspath(folder):
            raise TypeError(f"folder must be the name of a folder; got {folder!r}. Fix: Ledger('runs').")
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
            record = read_record(path)
        except FileNotFoundError:
            return None
        if is_newer(record):
            raise FileFormatError(
                f"{path} has schema version {record['schema']}; this zeroshift reads up to {SCHEMA}. "
                "Fix: upgrade zeroshift, or take another folder."
            )
        if not _sound(record, job):
            self.damaged.append(path)
            return None
        return relabel_record(job, record)

    def write(self, job: Job, found: Mapping[str, Any], notes: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Keep what a run found, and `notes` of how it was done; returns the whole record, just as it will be read."""
        notes = notes or {}
        made_by = {"zeroshift": __version__, "code": job.code}
        identity = {"kind": KIND, "schema": SCHEMA, "key": job.key, **made_by, **job.describe()}
        if taken := sorted(identity.keys() & notes.keys()):
            raise UnrecordableError(f"notes go by names of the record's own: {', '.join(taken)}")
        if taken := sorted((identity.keys() | notes.keys()) & found.keys()):
            raise UnrecordableError(f"what it found goes by names of the record's own: {', '.join(taken)}")
        try:
            text = json.dumps({**identity, **found, **notes}, indent=1, allow_nan=False, default=_plain)
        except (ValueError, TypeError, RecursionError) as error:
            raise UnrecordableError(f"what it found cannot be kept as JSON ({error})") from error
        self.folder.mkdir(parents=True, exist_ok=True)
        with atomic_path(self.path(job)) as temporary:
            temporary.write_text(text + "\n", encoding="utf-8", newline="\n")
        kept: dict[str, Any] = json.loads(text)
        return kept

    def remove_abandoned(self) -> None:
        """Delete what processes that were killed in the middle of writing left behind; nothing reads it."""
        for path in self.folder.glob(".*.json.*.tmp"):
            with suppress(OSError):  # another process may have been quicker
                if time.time() - path.stat().st_mtime > ABANDONED_SECONDS:
                    path.unlink()


class UnrecordableError(ValueError):
    """An answer that cannot be kept: a number that is none, or a name that is taken."""


def relabel_record(job: Job, record: Mapping[str, Any]) -> dict[str, Any]:
    """A record of equal work, under this job's own names: the set, a parameter or a domain may have had others then."""
    what: dict[str, Any] = json.loads(json.dumps(job.describe(), default=_plain))
    answer = {**record, **what}
    before, now = (stream if isinstance(stream, dict) else {} for stream in (record.get("stream"), what.get("stream")))
    if isinstance(record.get("groups"), dict) and now.get("domains"):
        called = dict(zip(domain_names(before), domain_names(now), strict=False))
        answer["groups"] = {called.get(name, name): value for name, value in record["groups"].items()}
    return answer


def read_record(path: Path) -> Any:
    """What a file holds as JSON, of which NaN and infinities are no part; None where it holds none."""
    try:
        return json.loads(path.read_text(encoding="utf-8"), parse_constant=_finite, parse_float=_finite)
    except (ValueError, RecursionError):  # not UTF-8, not JSON, or a number that is none
        return None


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(text)
    return number


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
    return job.is_valid(record)
