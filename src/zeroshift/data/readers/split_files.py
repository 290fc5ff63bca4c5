"""CoOp's split files, split_zhou_*.json: {"train": [[path, label, class name], ...], "val": [...], "test": [...]}."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from zeroshift.suggest import did_you_mean

__all__ = ["SUFFIX", "VARIANTS", "read_aircraft", "read_split_file", "split_list"]

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


# FGVC-Aircraft's text files: `variants.txt` lists the classes, `images_variant_<split>.txt` the images of a split.


VARIANTS = "variants.txt"
SUFFIX = ".jpg"


def split_list(split: str) -> str:
    """Name of the file that lists a split's images."""
    return f"images_variant_{split}.txt"


def read_aircraft(folder: Path, split: str, class_names: Sequence[str]) -> tuple[list[str], list[int]]:
    """Names of the images (below `images`) and labels of a split; labels count the lines of `variants.txt`."""
    variants = [line for _, line in _lines(folder / VARIANTS)]
    if len(variants) != len(class_names):
        raise ValueError(
            f"{folder / VARIANTS} lists {len(variants)} classes; FGVC-Aircraft has {len(class_names)} variants. "
            "Fix: download it again."
        )
    for number, (variant, name) in enumerate(zip(variants, class_names, strict=True), start=1):
        if variant != name:
            # Another order would give every image a wrong class, and nobody would notice.
            raise ValueError(
                f"{folder / VARIANTS}, line {number}: {variant!r} where FGVC-Aircraft has {name!r}. "
                "Fix: download it again."
            )
    label_of = {name: label for label, name in enumerate(variants)}
    names, labels = [], []
    path = folder / split_list(split)
    for number, line in _lines(path):
        image, _, variant = line.partition(" ")
        if variant not in label_of:
            raise ValueError(
                f"{path}, line {number}: {variant!r} is none of the variants in {VARIANTS}. "
                f"{did_you_mean(variant, variants)}Fix: download it again."
            )
        names.append(image + SUFFIX)
        labels.append(label_of[variant])
    return names, labels


def _lines(path: Path) -> list[tuple[int, str]]:
    """The lines that are not blank, with their numbers."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise FileNotFoundError(
            f"no file {path.name} in {path.parent}. Fix: copy it there from the data set's folder `data`."
        ) from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text ({error}). Fix: download it again.") from error
    except OSError as error:
        raise OSError(f"{path} cannot be read ({error.strerror or error}). Fix: check its permissions.") from error
    return [(number, line.strip()) for number, line in enumerate(text.splitlines(), start=1) if line.strip()]
