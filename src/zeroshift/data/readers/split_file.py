"""CoOp's split files, split_zhou_*.json: {"train": [[path, label, class name], ...], "val": [...], "test": [...]}."""

from __future__ import annotations

import json
from pathlib import Path

__all__ = ["read_split_file"]

Split = tuple[list[str], list[int]]
"""Paths relative to the folder of images, and labels."""


def read_split_file(path: Path, n_classes: int) -> dict[str, Split]:
    """Every split of the file.

    The class names in it are passed over, as the field's readers do: the label says which class, and the catalogue what
    it is called.
    """
    try:
        read = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not JSON ({error}). Fix: download it again.") from error
    except OSError as error:
        raise OSError(f"{path} cannot be read ({error.strerror or error}). Fix: check its permissions.") from error
    if not isinstance(read, dict) or not all(isinstance(entries, list) for entries in read.values()):
        raise ValueError(f"{path} is no split file: it must map splits to lists. Fix: download it again.")
    splits = {}
    for split, entries in read.items():
        for number, entry in enumerate(entries):
            _check(entry, f"{path}, {split!r}, entry {number}", n_classes)
        splits[split] = [entry[0] for entry in entries], [entry[1] for entry in entries]
    return splits


def _check(entry: object, place: str, n_classes: int) -> None:
    match entry:
        case [str(), bool(), *_]:
            pass
        case [str(), int(label), *_] if 0 <= label < n_classes:
            return
        case [str(), int(label), *_]:
            raise ValueError(
                f"{place}: the label is {label}, but with {n_classes} classes labels go from 0 to {n_classes - 1}. "
                "Fix: check that it is this data set's file."
            )
    raise ValueError(f"{place}: {entry!r} is not [path, label, class name]. Fix: download the file again.")
