"""The folder of records, a file a run: written whole or not at all, so that whatever stops a comparison, it goes on."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from zeroshift._version import __version__
from zeroshift.evaluate.code import code_digest
from zeroshift.evaluate.trial import Trial
from zeroshift.files import FileFormatError, atomic_path

__all__ = ["Ledger"]

KIND = "zeroshift run"
SCHEMA = 1

NUMBERS = (
    "scored",
    "accuracy",
    "zero_shot_accuracy",
    "calibration_error",
    "zero_shot_calibration_error",
    "seconds",
    "setup_seconds",
)
"""What every record holds, as a number."""


class Ledger:
    """Records in `folder`, which is made where it is missing. Other files there are left alone."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        if self.folder.exists() and not self.folder.is_dir():
            raise NotADirectoryError(f"{self.folder} is a file; records are kept in a folder. Fix: name a folder.")
        self.damaged: list[Path] = []
        """Files that should hold a record and do not; their runs count as not done."""

    def path(self, trial: Trial) -> Path:
        return self.folder / f"{trial.contestant.method}-{trial.key}.json"

    def read(self, trial: Trial) -> dict[str, Any] | None:
        """The record of a run that is done; None for one that is not, or whose file is damaged."""
        path = self.path(trial)
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except (UnicodeDecodeError, json.JSONDecodeError):
            record = None
        if isinstance(record, dict) and record.get("kind") == KIND and _newer(record.get("schema")):
            raise FileFormatError(
                f"{path} has schema version {record['schema']}; this zeroshift reads up to {SCHEMA}. "
                "Fix: upgrade zeroshift, or take another folder."
            )
        if not _sound(record, trial):
            self.damaged.append(path)
            return None
        return {**record, "features": trial.features}  # the same set may have had another name then

    def write(self, trial: Trial, found: Mapping[str, Any]) -> dict[str, Any]:
        """Keep what a run found; returns the whole record."""
        made_by = {"zeroshift": __version__, "code": code_digest(trial.contestant.info.cls)}
        record = {"kind": KIND, "schema": SCHEMA, "key": trial.key, **made_by, **_what(trial), **found}
        self.folder.mkdir(parents=True, exist_ok=True)
        with atomic_path(self.path(trial)) as temporary:
            text = json.dumps(record, indent=1, allow_nan=False, default=repr)
            temporary.write_text(text + "\n", encoding="utf-8", newline="\n")
        return record


def _what(trial: Trial) -> dict[str, Any]:
    return {
        "features": trial.features,
        "digest": trial.digest,
        "prompt": trial.prompt,
        "contestant": trial.contestant.label,
        "method": trial.contestant.method,
        "given": list(trial.contestant.given),
        "protocol": trial.contestant.protocol,
        "seed": trial.seed,
        "shots": trial.shots,
    }


def _newer(schema: Any) -> bool:
    return isinstance(schema, int) and schema > SCHEMA


def _sound(record: Any, trial: Trial) -> bool:
    if not isinstance(record, dict) or record.get("kind") != KIND or record.get("key") != trial.key:
        return False
    peak = record.get("peak_bytes")
    return (peak is None or _number(peak)) and all(_number(record.get(name)) for name in NUMBERS)


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
