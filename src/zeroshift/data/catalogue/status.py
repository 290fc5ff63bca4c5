"""Which data sets of the catalogue are complete below a root folder; no image is opened."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from zeroshift.data.catalogue import loading
from zeroshift.data.catalogue.data_sets import DataSetInfo
from zeroshift.data.catalogue.files import (
    Place,
    candidates,
    class_list,
    find,
    find_split_file,
    read_aircraft,
    read_split_file,
)
from zeroshift.data.corruptions import KINDS
from zeroshift.data.readers.folder import absent_files, entries, read_class_folders, sub_folders

__all__ = ["DataSetStatus", "State", "check"]


State = Literal["complete", "differs", "incomplete", "missing"]
"""`differs`: everything its lists name is there, but not as many images as were published."""

CHECKED_SEVERITY = 5
"""Of ImageNet-C: the one published numbers are of."""


@dataclass(frozen=True)
class DataSetStatus:
    """What lies below a root of one data set."""

    id: str
    title: str
    state: State
    location: str | None
    """Its folder of images below the root (of ImageNet-C, its folder); None where it is missing."""
    looked_in: tuple[str, ...]
    """Every folder where it may lie, in the order in which they are tried."""
    found: int
    """Test images that are there; of ImageNet-C, corruptions."""
    expected: int
    """Test images as published; of ImageNet-C, 15 corruptions."""
    unit: str
    """What is counted: "test images" or "corruptions"."""
    problems: tuple[str, ...]
    """What is missing or wrong, in words."""


def check(root: str | os.PathLike[str], only: Sequence[str] | None = None) -> list[DataSetStatus]:
    """Look for every data set, or for those named in `only`, below `root`.

    Test images are counted by their names; of the other splits, those that are missing. Of ImageNet-C, which has
    millions of images, only folders are counted, at severity 5.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as root:
    ...     (status,) = check(root, only=["dtd"])
    >>> status.state, status.looked_in
    ('missing', ('fine-grained/dtd/images', 'dtd/images', 'DTD/images'))
    """
    chosen = loading.list() if only is None else [loading.get(name) for name in only]
    entries(Path(root))  # refuses a root that cannot be read: every set would seem to be missing
    return [_status(info, Path(root)) for info in chosen]


def _status(info: DataSetInfo, root: Path) -> DataSetStatus:
    if info.reader == "corrupted class folders":
        return _status_of_corruptions(info, root)
    place = find(info, root)
    if place is None:
        return _built(info, "missing", None, 0, ("not found",))
    count = _class_folders if info.reader == "class folders" else _splits
    found, problems = 0, list[str]()
    try:
        found, problems = count(info, root, place)
    except (OSError, ValueError) as error:  # a damaged list must not keep the other sets from being looked at
        problems = [str(error)]
    expected = info.counts["test"]
    state: State = "incomplete" if problems else "complete"
    if not problems and found != expected:
        state, problems = "differs", [f"{found:,} test images, {expected:,} as published"]
    return _built(info, state, place.image_folder, found, problems)


def _class_folders(info: DataSetInfo, root: Path, place: Place) -> tuple[int, list[str]]:
    folders = class_list(info.class_lists["adapt"]).folders or ()
    names, labels = read_class_folders(root / place.image_folder, folders)
    problems = []
    if absent := [folders[label] for label in sorted(set(range(len(folders))) - set(labels))]:
        problems.append(f"{len(absent):,} of {len(folders):,} class folders missing or empty: {_few(absent)}")
    if len(names) < info.counts["test"]:
        problems.append(f"{len(names):,} of {info.counts['test']:,} images")
    return len(names), problems


def _splits(info: DataSetInfo, root: Path, place: Place) -> tuple[int, list[str]]:
    """Test images that are there, and what is missing of each split."""
    listed, problems = _listed(info, root, place)
    found = 0
    for split, files in listed.items():
        absent = absent_files(root / place.image_folder, files)
        if absent:
            problems.append(f"{len(absent):,} of {len(files):,} {split} images missing: {_few(absent)}")
        if split == "test":
            found = len(files) - len(absent)
    return found, problems


def _listed(info: DataSetInfo, root: Path, place: Place) -> tuple[dict[str, list[str]], list[str]]:
    """The images each split should have, and which splits have no list."""
    listed: dict[str, list[str]] = {}
    problems: list[str] = []
    if info.reader == "aircraft":
        names = class_list(info.class_lists["adapt"]).names
        for split in info.splits:
            try:
                listed[split] = read_aircraft(root / place.layout.folder, split, names)[0]
            except (OSError, ValueError) as error:
                problems.append(str(error))
        return listed, list(dict.fromkeys(problems))
    path = find_split_file(info, root, place.layout)
    if path is None:
        return {}, [f"no split file; looked for {', '.join(info.split_files(place.layout))}"]
    splits = read_split_file(path, info.n_classes)
    problems = [f"the split file has no split {split!r}" for split in info.splits if split not in splits]
    return {split: splits[split][0] for split in info.splits if split in splits}, problems


def _status_of_corruptions(info: DataSetInfo, root: Path) -> DataSetStatus:
    layout = next((layout for layout in info.layouts if (root / layout.folder).is_dir()), None)
    if layout is None:
        return _built(info, "missing", None, 0, ("not found",))
    folders = set(class_list(info.class_lists["adapt"]).folders or ())
    absent, problems = [], []
    for corruption in KINDS:
        folder = root / layout.image_folder(corruption=corruption, severity=CHECKED_SEVERITY)
        if not folder.is_dir():
            absent.append(f"{corruption}/{CHECKED_SEVERITY}")
        elif len(present := folders.intersection(sub_folders(folder))) < len(folders):
            problems.append(f"{corruption}/{CHECKED_SEVERITY}: {len(present):,} of {len(folders):,} class folders")
    whole = len(KINDS) - len(absent) - len(problems)
    if absent:
        problems.append(f"missing: {', '.join(absent)}")
    return _built(info, "incomplete" if problems else "complete", layout.folder, whole, problems)


def _built(info: DataSetInfo, state: State, location: str | None, found: int, problems: Sequence[str]) -> DataSetStatus:
    corrupted = info.reader == "corrupted class folders"
    return DataSetStatus(
        id=info.id,
        title=info.title,
        state=state,
        location=location,
        looked_in=candidates(info, corruption="CORRUPTION", severity=CHECKED_SEVERITY),
        found=found,
        expected=len(KINDS) if corrupted else info.counts["test"],
        unit="corruptions" if corrupted else "test images",
        problems=tuple(problems),
    )


def _few(names: Sequence[str], shown: int = 3) -> str:
    return ", ".join(names[:shown]) + (", ..." if len(names) > shown else "")
