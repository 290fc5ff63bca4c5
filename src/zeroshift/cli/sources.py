"""Where features come from on the command line: a file, or a bundled pack as `pack:NAME`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from zeroshift.arrays import UnitLengthError
from zeroshift.data import packs
from zeroshift.feature_checks import normalized
from zeroshift.feature_files import BAD_FILE_ERRORS, BesideError
from zeroshift.features import FeatureSet
from zeroshift.files import FileFormatError

__all__ = ["holds_features_alone", "is_pack", "load_features", "load_rows"]

PACK_PREFIX = "pack:"


def is_pack(source: str) -> bool:
    return source.startswith(PACK_PREFIX)


def load_features(source: str, *, normalize: bool, beside: dict[str, Any]) -> FeatureSet:
    """The set `source` names; `beside` holds what the file lacks (prototypes, labels, class names, logit scale)."""
    given = {name: value for name, value in beside.items() if value is not None}
    if not is_pack(source):
        try:
            # Hints are for the caller to print: no Python warning beside them.
            return FeatureSet.load(Path(source), normalize=normalize, check=False, **given)
        except BesideError as error:
            raise ValueError(error.said_with(_option)) from error
        except FileFormatError as error:
            if isinstance(error.__cause__, UnitLengthError):
                raise FileFormatError(f"{error} Here: --normalize does it.") from error
            raise
    if given:
        options = ", ".join(map(_option, given))
        raise ValueError(f"{source} is a bundled pack and holds its own; leave out {options}.")
    return packs.load(source.removeprefix(PACK_PREFIX))


def holds_features_alone(source: str) -> bool:
    return Path(source).suffix == ".npy" and not is_pack(source)


def load_rows(source: str, *, normalize: bool) -> FeatureSet:
    """Features whose classes do not matter, from a bare .npy too: its prototype is then a mere stand-in."""
    if not holds_features_alone(source):
        return load_features(source, normalize=normalize, beside={})
    path = Path(source)
    if not path.is_file():
        raise FileNotFoundError(f"no file at {path}. Fix: check the path.")
    try:
        rows = np.load(path, mmap_mode="r", allow_pickle=False)
    except BAD_FILE_ERRORS as error:
        raise FileFormatError(f"{path} cannot be read ({error}). Fix: write it with numpy.save.") from error
    fields = {"features": rows, "prototypes": np.eye(1, max([1, *rows.shape[1:]]))}
    try:
        return FeatureSet(**(normalized(fields) if normalize else fields))
    except UnitLengthError as error:
        raise FileFormatError(f"{path}: {error} Here: --normalize does it.") from error
    except (TypeError, ValueError) as error:
        raise FileFormatError(f"{path}: {error}") from error


def _option(name: str, value: str = "") -> str:
    """What an argument of `FeatureSet.load` is called on the command line."""
    return f"--{name.replace('_', '-')} {value}".rstrip()
