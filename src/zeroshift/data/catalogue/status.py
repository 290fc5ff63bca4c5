"""Which data sets of the catalogue a root folder contains, and what is missing. No image is opened."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from zeroshift.data.catalogue import loading
from zeroshift.data.catalogue.data_sets import DataSetInfo
from zeroshift.data.catalogue.files import (
    Location,
    candidate_folders,
    class_list,
    find_data_set,
    find_split_file,
    read_aircraft,
    read_split_file,
)
from zeroshift.data.corruptions import KINDS
from zeroshift.data.readers.folder import missing_files, read_class_folders, subfolders, visible_entries
from zeroshift.suggest import first_few

__all__ = ["DataSetStatus", "State", "check"]


State = Literal["complete", "differs", "incomplete", "missing"]
"""`differs`: all listed images are present, but their number is not the published one."""

CHECKED_SEVERITY = 5
"""For ImageNet-C: the severity of published numbers."""


@dataclass(frozen=True)
class DataSetStatus:
    """What a root folder contains of one data set."""

    id: str
    title: str
    state: State
    location: str | None
    """Its image folder in the root (for ImageNet-C, its folder); None if it is missing."""
    looked_in: tuple[str, ...]
    """All folders where it may be, in the order they are searched."""
    found: int
    """Number of test images found; for ImageNet-C, of corruptions."""
    expected: int
    """Published number of test images; for ImageNet-C, 15 corruptions."""
    unit: str
    """What is counted: "test images" or "corruptions"."""
    problems: tuple[str, ...]
    """What is missing or wrong, one sentence each."""


def check(root: str | os.PathLike[str], only: Sequence[str] | None = None) -> list[DataSetStatus]:
    """The status of all data sets, or of those named in `only`, in `root`.

    Image files are listed, not opened. For ImageNet-C, which has millions of images, only the class folders at
    severity 5 are counted.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as root:
    ...     (status,) = check(root, only=["dtd"])
    >>> status.state, status.looked_in
    ('missing', ('fine-grained/dtd/images', 'dtd/images', 'DTD/images'))
    """
    chosen = loading.list() if only is None else [loading.get(name) for name in only]
    visible_entries(Path(root))  # raises for a root that cannot be read: every data set would seem to be missing
    return [_status(info, Path(root)) for info in chosen]


def _status(info: DataSetInfo, root: Path) -> DataSetStatus:
    if info.reader == "corrupted class folders":
        return _check_corruptions(info, root)
    location = find_data_set(info, root)
    if location is None:
        return _make_status(info, "missing", None, 0, ("not found",))
    count = _check_class_folders if info.reader == "class folders" else _check_splits
    found, problems = 0, list[str]()
    try:
        found, problems = count(info, root, location)
    except (OSError, ValueError) as error:  # a damaged list must not stop the check of the other data sets
        problems = [str(error)]
    expected = info.counts["test"]
    state: State = "incomplete" if problems else "complete"
    if not problems and found != expected:
        state, problems = "differs", [f"{found:,} test images, {expected:,} were published"]
    return _make_status(info, state, location.image_folder, found, problems)


def _check_class_folders(info: DataSetInfo, root: Path, location: Location) -> tuple[int, list[str]]:
    folders = class_list(info.class_lists["adapt"]).folders or ()
    names, labels = read_class_folders(root / location.image_folder, folders)
    problems = []
    if empty := [folders[label] for label in sorted(set(range(len(folders))) - set(labels))]:
        problems.append(f"{len(empty):,} of {len(folders):,} class folders missing or empty: {first_few(empty)}")
    if len(names) < info.counts["test"]:
        problems.append(f"{len(names):,} of {info.counts['test']:,} images")
    return len(names), problems


def _check_splits(info: DataSetInfo, root: Path, location: Location) -> tuple[int, list[str]]:
    """Number of test images found, and what is missing of each split."""
    listed, problems = _read_lists(info, root, location)
    found = 0
    for split, files in listed.items():
        missing = missing_files(root / location.image_folder, files)
        if missing:
            problems.append(f"{len(missing):,} of {len(files):,} {split} images missing: {first_few(missing)}")
        if split == "test":
            found = len(files) - len(missing)
    return found, problems


def _read_lists(info: DataSetInfo, root: Path, location: Location) -> tuple[dict[str, list[str]], list[str]]:
    """The listed images of each split, and problems with the lists."""
    listed: dict[str, list[str]] = {}
    problems: list[str] = []
    if info.reader == "aircraft":
        names = class_list(info.class_lists["adapt"]).names
        for split in info.splits:
            try:
                listed[split] = read_aircraft(root / location.layout.folder, split, names)[0]
            except (OSError, ValueError) as error:
                problems.append(str(error))
        return listed, list(dict.fromkeys(problems))
    path = find_split_file(info, root, location.layout)
    if path is None:
        return {}, [f"no split file; searched {', '.join(info.split_files(location.layout))}"]
    splits = read_split_file(path, info.n_classes)
    problems = [f"the split file has no split {split!r}" for split in info.splits if split not in splits]
    return {split: splits[split][0] for split in info.splits if split in splits}, problems


def _check_corruptions(info: DataSetInfo, root: Path) -> DataSetStatus:
    layout = next((layout for layout in info.layouts if (root / layout.folder).is_dir()), None)
    if layout is None:
        return _make_status(info, "missing", None, 0, ("not found",))
    folders = set(class_list(info.class_lists["adapt"]).folders or ())
    missing, problems = [], []
    for corruption in KINDS:
        folder = root / layout.image_folder(corruption=corruption, severity=CHECKED_SEVERITY)
        if not folder.is_dir():
            missing.append(f"{corruption}/{CHECKED_SEVERITY}")
        elif len(present := folders.intersection(subfolders(folder))) < len(folders):
            problems.append(f"{corruption}/{CHECKED_SEVERITY}: {len(present):,} of {len(folders):,} class folders")
    complete = len(KINDS) - len(missing) - len(problems)
    if missing:
        problems.append(f"missing: {', '.join(missing)}")
    return _make_status(info, "incomplete" if problems else "complete", layout.folder, complete, problems)


def _make_status(
    info: DataSetInfo, state: State, location: str | None, found: int, problems: Sequence[str]
) -> DataSetStatus:
    corrupted = info.reader == "corrupted class folders"
    return DataSetStatus(
        id=info.id,
        title=info.title,
        state=state,
        location=location,
        looked_in=candidate_folders(info, corruption="CORRUPTION", severity=CHECKED_SEVERITY),
        found=found,
        expected=len(KINDS) if corrupted else info.counts["test"],
        unit="corruptions" if corrupted else "test images",
        problems=tuple(problems),
    )
