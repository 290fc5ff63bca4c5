"""The files of the catalogue's data sets."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from zeroshift.data.catalogue.data_sets import DataSetInfo, Layout
from zeroshift.data.readers.folder import sub_folders
from zeroshift.suggest import did_you_mean

__all__ = [
    "SUFFIX",
    "VARIANTS",
    "ClassList",
    "Place",
    "candidates",
    "class_list",
    "find",
    "find_split_file",
    "locate",
    "locate_split_file",
    "read_aircraft",
    "read_split_file",
    "split_list",
]


LISTS = Path(__file__).parent / "lists"


class ClassList(NamedTuple):
    """Classes in label order."""

    names: tuple[str, ...]
    folders: tuple[str, ...] | None = None
    """What the folder of each class is called, where the data set has one a class."""
    wnids: tuple[str, ...] | None = None
    """WordNet ids, for ImageNet's."""


@cache
def class_list(name: str) -> ClassList:
    """The list called `name`: a file in `lists`, or one of the lists made from ImageNet's.

    >>> class_list("imagenet_a").names[:3], class_list("imagenet_a").wnids[0]
    (('stingray', 'goldfinch', 'junco'), 'n01498041')
    >>> class_list("imagenetv2").folders[:4], class_list("imagenetv2").names[2] == class_list("imagenet").names[10]
    (('0', '1', '10', '100'), True)
    """
    if name == "imagenet":
        lines = [line.split(" ", 1) for line in _lines(name)]
        wnids = tuple(wnid for wnid, _ in lines)
        return ClassList(tuple(label for _, label in lines), wnids, wnids)
    if name == "imagenetv2":
        whole = class_list("imagenet")
        assert whole.wnids is not None
        # Its folders are numbers, but the field's readers sort them as strings: label 2 is ImageNet's class 10.
        order = sorted(range(len(whole.names)), key=str)
        names, wnids = tuple(whole.names[k] for k in order), tuple(whole.wnids[k] for k in order)
        return ClassList(names, tuple(map(str, order)), wnids)
    if name in ("imagenet_a", "imagenet_r"):
        whole = class_list("imagenet")
        assert whole.wnids is not None
        name_of = dict(zip(whole.wnids, whole.names, strict=True))
        wnids = tuple(_lines(name))
        return ClassList(tuple(name_of[wnid] for wnid in wnids), wnids, wnids)
    return ClassList(tuple(_lines(name)))


def _lines(name: str) -> list[str]:
    return (LISTS / f"{name}.txt").read_text(encoding="utf-8").splitlines()


# Where below a root a data set lies.


class Place(NamedTuple):
    """A layout that is there."""

    layout: Layout
    image_folder: str
    """Below the root, with forward slashes."""


def candidates(info: DataSetInfo, **asked: object) -> tuple[str, ...]:
    """Folders of images, below the root, where the data set is looked for, in that order; `asked` says which corruption
    and severity."""
    return tuple(layout.image_folder(**asked) for layout in info.layouts)


def find(info: DataSetInfo, root: Path, **asked: object) -> Place | None:
    """The first place that has both images and lists; failing that, the first with a folder of images."""
    places = [Place(layout, folder) for layout, folder in zip(info.layouts, candidates(info, **asked), strict=True)]
    there = [place for place in places if _has_images(info, root / place.image_folder)]
    whole = [place for place in there if _has_lists(info, root, place.layout)]
    return next(iter([*whole, *there]), None)


def _has_images(info: DataSetInfo, folder: Path) -> bool:
    """Whether the folder is there and, where each class has a folder, at least one of those in it: an empty folder of
    the right name, or one that holds another layout, is not the data set."""
    if not folder.is_dir():
        return False
    expected = class_list(info.class_lists["adapt"]).folders
    return expected is None or not set(expected).isdisjoint(sub_folders(folder))


def _has_lists(info: DataSetInfo, root: Path, layout: Layout) -> bool:
    if info.reader == "aircraft":
        return (root / layout.folder / VARIANTS).is_file()
    return info.split_file is None or find_split_file(info, root, layout) is not None


def locate(info: DataSetInfo, root: Path, **asked: object) -> Place:
    """As `find`; an error that lists the places where the data set is not."""
    if not root.is_dir():
        raise FileNotFoundError(f"no folder at {root}. Fix: name the folder the data sets lie below.")
    place = find(info, root, **asked)
    if place is None:
        raise FileNotFoundError(
            f"{info.id} is not below {root}; looked in {', '.join(candidates(info, **asked))}. "
            "Fix: put it into one of these, or name another root; `zeroshift data check` shows what a root has."
        )
    return place


def find_split_file(info: DataSetInfo, root: Path, layout: Layout) -> Path | None:
    """The first split file there is, of those a layout may have."""
    return next((root / name for name in info.split_files(layout) if (root / name).is_file()), None)


def locate_split_file(info: DataSetInfo, root: Path, layout: Layout) -> Path:
    """As `find_split_file`; an error that lists the places where the file is not."""
    path = find_split_file(info, root, layout)
    if path is None:
        raise FileNotFoundError(
            f"no {info.split_file} for {info.id} below {root}; looked for {', '.join(info.split_files(layout))}. "
            "Fix: download it; CoOp's DATASETS.md has the link."
        )
    return path


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
            _check_entry(entry, f"{path}, {split!r}, entry {number}", n_classes)
        splits[split] = [entry[0] for entry in entries], [entry[1] for entry in entries]
    return splits


def _check_entry(entry: object, place: str, n_classes: int) -> None:
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
    variants = [line for _, line in _numbered_lines(folder / VARIANTS)]
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
    for number, line in _numbered_lines(path):
        image, _, variant = line.partition(" ")
        if variant not in label_of:
            raise ValueError(
                f"{path}, line {number}: {variant!r} is none of the variants in {VARIANTS}. "
                f"{did_you_mean(variant, variants)}Fix: download it again."
            )
        names.append(image + SUFFIX)
        labels.append(label_of[variant])
    return names, labels


def _numbered_lines(path: Path) -> list[tuple[int, str]]:
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
