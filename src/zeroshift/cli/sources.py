"""Where features come from on the command line: a file, or a bundled pack as `pack:NAME`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from zeroshift.arrays import UnitLengthError
from zeroshift.data import packs
from zeroshift.features import FeatureSet
from zeroshift.files import FileFormatError

__all__ = ["load_features"]

PACK_PREFIX = "pack:"


def load_features(source: str, *, normalize: bool, beside: dict[str, Any]) -> FeatureSet:
    """The set `source` names; `beside` holds what an .npy file lacks (prototypes, labels, class names, logit scale)."""
    given = {name: value for name, value in beside.items() if value is not None}
    if not source.startswith(PACK_PREFIX):
        try:
            # Hints are for the caller to print: no Python warning beside them.
            return FeatureSet.load(Path(source), normalize=normalize, check=False, **given)
        except FileFormatError as error:
            if isinstance(error.__cause__, UnitLengthError):
                raise FileFormatError(f"{error} Here: --normalize does it.") from error
            raise
    if given:
        options = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        raise ValueError(f"{source} is a bundled pack and holds its own; leave out {options}.")
    return packs.load(source.removeprefix(PACK_PREFIX))
