"""Where features come from on the command line: a file, or a bundled pack as `pack:NAME`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from zeroshift.arrays import UnitLengthError
from zeroshift.cli.console import print_warning
from zeroshift.data import catalogue, packs
from zeroshift.data.image_set import ImageSet
from zeroshift.data.readers import open_images
from zeroshift.data.readers.table import TABLE_SUFFIXES
from zeroshift.encode.prompts import parse_class_names
from zeroshift.features import FeatureSet
from zeroshift.features.checks import normalize_fields
from zeroshift.features.files import BAD_FILE_ERRORS, FileArgumentError
from zeroshift.files import FileFormatError
from zeroshift.report.formatting import counted
from zeroshift.suggest import did_you_mean

__all__ = ["holds_features_alone", "is_pack", "load_features", "load_images", "load_rows"]

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
        except FileArgumentError as error:
            raise ValueError(error.message_with(_option)) from error
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
        return FeatureSet(**(normalize_fields(fields) if normalize else fields))
    except UnitLengthError as error:
        raise FileFormatError(f"{path}: {error} Here: --normalize does it.") from error
    except (TypeError, ValueError) as error:
        raise FileFormatError(f"{path}: {error}") from error


def _option(name: str, value: str = "") -> str:
    """What an argument of `FeatureSet.load` is called on the command line."""
    return f"--{name.replace('_', '-')} {value}".rstrip()


# Where images come from on the command line: a data set of the catalogue by its id, or something of the user's own.


DATA_VARIABLE = "ZEROSHIFT_DATA"


def load_images(
    source: str,
    *,
    classes: str | None = None,
    root: Path | None = None,
    split: str | None = None,
    corruption: str | None = None,
    severity: int = 5,
    labelled: bool | None = None,
    labels: Path | None = None,
    upright: bool = True,
) -> ImageSet:
    """The images `source` names. A path that exists is taken for one, also where a data set is called the same."""
    names = None if classes is None else parse_class_names(classes)
    if os.path.exists(source):
        if split is not None:
            raise ValueError(f"--split is for data sets of the catalogue; {source} is a path. Fix: leave it out.")
        if root is not None and Path(source).suffix.lower() not in TABLE_SUFFIXES:
            raise ValueError(f"--data is for data sets and tables; {source} is neither. Fix: leave it out.")
        images = open_images(source, names, labelled=labelled, root=root, labels=labels, upright=upright)
        if images.ignored_files:
            # Said, because a folder of .heic photographs beside a few .jpg would else be a folder of a few.
            left = counted(images.ignored_files, "file")
            print_warning(f"{source}: {left} left out, because their names do not end as those of images read here do")
        return images
    try:
        info = catalogue.get(source)
    except ValueError:
        ids = [info.id for info in catalogue.list()]
        raise ValueError(
            f"{source} is neither a file or folder nor a data set of the catalogue. {did_you_mean(source, ids)}"
            "Fix: check the path, or see `zeroshift data list`."
        ) from None
    where = root or (Path(os.environ[DATA_VARIABLE]) if os.environ.get(DATA_VARIABLE) else None)
    if where is None:
        raise ValueError(
            f"{info.id} is a data set; the folder it lies below is needed. Fix: --data ROOT, or {DATA_VARIABLE}=ROOT; "
            "`zeroshift data check ROOT` says what is there."
        )
    for option, given in (("--classes", names), ("--labelled or --unlabelled", labelled), ("--labels", labels)):
        if given is not None:
            raise ValueError(f"{info.id} has its own classes and labels; got {option}. Fix: leave it out.")
    stored = corruption if info.id == "imagenet_c" else None
    return catalogue.load(info.id, where, split or "test", corruption=stored, severity=severity)
