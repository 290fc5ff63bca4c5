"""Files of the catalogue's data sets: lists of class names, folders below a root, and lists of splits."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from zeroshift.data.catalogue.data_sets import DataSetInfo, Layout
from zeroshift.data.readers.folder import subfolders
from zeroshift.files import FileFormatError
from zeroshift.parsers import read_json, read_text
from zeroshift.suggest import did_you_mean

__all__ = [
    "SUFFIX",
    "VARIANTS",
    "ClassList",
    "LabelledFiles",
    "Location",
    "candidate_folders",
    "class_list",
    "find_data_set",
    "find_split_file",
    "read_aircraft",
    "read_split_file",
    "require_data_set",
    "require_split_file",
    "split_list",
]


LISTS = Path(__file__).parent / "lists"


class ClassList(NamedTuple):
    """Classes in label order."""

    names: tuple[str, ...]
    folders: tuple[str, ...] | None = None
    """The folder of each class, if the data set has one folder per class."""
    wnids: tuple[str, ...] | None = None
    """WordNet ids, for ImageNet."""


@cache
def class_list(name: str) -> ClassList:
    """The list called `name`: a file in `lists`, or a list derived from ImageNet's.

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
        imagenet = class_list("imagenet")
        assert imagenet.wnids is not None
        # Its folders are numbers, but are usually sorted as strings: label 2 is ImageNet's class 10.
        order = sorted(range(len(imagenet.names)), key=str)
        names, wnids = tuple(imagenet.names[k] for k in order), tuple(imagenet.wnids[k] for k in order)
        return ClassList(names, tuple(map(str, order)), wnids)
    if name in ("imagenet_a", "imagenet_r"):
        imagenet = class_list("imagenet")
        assert imagenet.wnids is not None
        name_of = dict(zip(imagenet.wnids, imagenet.names, strict=True))
        wnids = tuple(_lines(name))
        return ClassList(tuple(name_of[wnid] for wnid in wnids), wnids, wnids)
    return ClassList(tuple(_lines(name)))


def _lines(name: str) -> list[str]:
    return (LISTS / f"{name}.txt").read_text(encoding="utf-8").splitlines()


class Location(NamedTuple):
    """A layout that exists below the root."""

    layout: Layout
    image_folder: str
    """Below the root, with forward slashes."""


def candidate_folders(info: DataSetInfo, **variant: object) -> tuple[str, ...]:
    """Image folders below the root where the data set may be, in order; `variant` has the corruption and severity."""
    return tuple(layout.image_folder(**variant) for layout in info.layouts)


def find_data_set(info: DataSetInfo, root: Path, **variant: object) -> Location | None:
    """The first location with images and lists; if there is none, the first with images."""
    locations = map(Location, info.layouts, candidate_folders(info, **variant))
    with_images = [location for location in locations if _has_images(info, root / location.image_folder)]
    complete = [location for location in with_images if _has_lists(info, root, location.layout)]
    return next(iter([*complete, *with_images]), None)


def _has_images(info: DataSetInfo, folder: Path) -> bool:
    """Whether the folder exists and, if each class has a folder, contains at least one of these.

    An empty folder, or one with another layout, is not the data set.
    """
    if not folder.is_dir():
        return False
    expected = class_list(info.class_lists["adapt"]).folders
    return expected is None or not set(expected).isdisjoint(subfolders(folder))


def _has_lists(info: DataSetInfo, root: Path, layout: Layout) -> bool:
    if info.reader == "aircraft":
        return (root / layout.folder / VARIANTS).is_file()
    return info.split_file is None or find_split_file(info, root, layout) is not None


def require_data_set(info: DataSetInfo, root: Path, **variant: object) -> Location:
    """Like `find_data_set`, but raise an error that lists the searched folders."""
    if not root.is_dir():
        raise FileNotFoundError(f"no folder at {root}. Fix: pass the folder that contains the data sets.")
    location = find_data_set(info, root, **variant)
    if location is None:
        raise FileNotFoundError(
            f"{info.id} was not found in {root}; searched {', '.join(candidate_folders(info, **variant))}. "
            "Fix: move it to one of these, or pass another root; `zeroshift data check` shows what a root contains."
        )
    return location


def find_split_file(info: DataSetInfo, root: Path, layout: Layout) -> Path | None:
    """The first existing split file of a layout."""
    return next((root / name for name in info.split_files(layout) if (root / name).is_file()), None)


def require_split_file(info: DataSetInfo, root: Path, layout: Layout) -> Path:
    """Like `find_split_file`, but raise an error that lists the searched files."""
    path = find_split_file(info, root, layout)
    if path is None:
        raise FileNotFoundError(
            f"no {info.split_file} for {info.id} in {root}; searched {', '.join(info.split_files(layout))}. "
            "Fix: download it; CoOp's DATASETS.md has the link."
        )
    return path


class LabelledFiles(NamedTuple):
    """Image files and their labels."""

    names: list[str]
    """Relative to the folder of images."""
    labels: list[int]


def read_split_file(path: Path, n_classes: int) -> dict[str, LabelledFiles]:
    """The splits of a file split_zhou_*.json, {"train": [[path, label, class name], ...], "val": [...], "test": [...]}.

    Its class names are ignored, as in other readers: the names come from the catalogue.
    """
    try:
        read = read_json(path)
    except FileFormatError as error:
        raise ValueError(f"{path} is not JSON ({error}). Fix: download it again.") from error
    except OSError as error:
        raise OSError(f"{path} cannot be read ({error.strerror or error}). Fix: check its permissions.") from error
    if not isinstance(read, dict) or not all(isinstance(entries, list) for entries in read.values()):
        raise ValueError(f"{path} is not a split file: it must map splits to lists. Fix: download it again.")
    splits = {}
    for split, entries in read.items():
        for number, entry in enumerate(entries):
            _check_entry(entry, f"{path}, {split!r}, entry {number}", n_classes)
        splits[split] = LabelledFiles([entry[0] for entry in entries], [entry[1] for entry in entries])
    return splits


def _check_entry(entry: object, where: str, n_classes: int) -> None:
    match entry:
        case [str(), bool(), *_]:
            pass
        case [str(), int(label), *_] if 0 <= label < n_classes:
            return
        case [str(), int(label), *_]:
            raise ValueError(
                f"{where}: the label is {label}, but with {n_classes} classes labels go from 0 to {n_classes - 1}. "
                "Fix: check that it is this data set's file."
            )
    raise ValueError(f"{where}: {entry!r} is not [path, label, class name]. Fix: download the file again.")


VARIANTS = "variants.txt"
"""The file of FGVC-Aircraft that lists its classes."""
SUFFIX = ".jpg"


def split_list(split: str) -> str:
    """The file of FGVC-Aircraft that lists the images of a split."""
    return f"images_variant_{split}.txt"


def read_aircraft(folder: Path, split: str, class_names: Sequence[str]) -> LabelledFiles:
    """Image names (relative to `images`) and labels of a split; labels are line numbers of `variants.txt`."""
    variants = [line for _, line in _numbered_lines(folder / VARIANTS)]
    if len(variants) != len(class_names):
        raise ValueError(
            f"{folder / VARIANTS} lists {len(variants)} classes; FGVC-Aircraft has {len(class_names)} variants. "
            "Fix: download it again."
        )
    for number, (variant, name) in enumerate(zip(variants, class_names, strict=True), start=1):
        if variant != name:
            # Another order would silently give every image a wrong class.
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
    return LabelledFiles(names, labels)


def _numbered_lines(path: Path) -> list[tuple[int, str]]:
    """The lines that are not blank, with their line numbers."""
    try:
        text = read_text(path)
    except FileNotFoundError as error:
        raise FileNotFoundError(
            f"no file {path.name} in {path.parent}. Fix: copy it there from the data set's folder `data`."
        ) from error
    except OSError as error:
        raise OSError(f"{path} cannot be read ({error.strerror or error}). Fix: check its permissions.") from error
    return [(number, line.strip()) for number, line in enumerate(text.splitlines(), start=1) if line.strip()]
