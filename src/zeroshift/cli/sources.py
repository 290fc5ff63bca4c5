"""Where features come from on the command line: a file, or a bundled pack as `pack:NAME`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from zeroshift.arrays import UnitLengthError
from zeroshift.data import packs
from zeroshift.feature_files import BesideError
from zeroshift.features import FeatureSet
from zeroshift.files import FileFormatError

__all__ = ["is_pack", "load_features"]

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


def _option(name: str, value: str = "") -> str:
    """What an argument of `FeatureSet.load` is called on the command line."""
    return f"--{name.replace('_', '-')} {value}".rstrip()
