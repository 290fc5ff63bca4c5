"""Image files below a folder, found by their names alone; no file is opened."""

from __future__ import annotations

import os
import posixpath
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from zeroshift.data.images import SUFFIXES

__all__ = ["Listing", "absent_files", "entries", "is_folder", "is_image", "list_images", "sub_folders"]


class Listing(NamedTuple):
    """What lies below a folder."""

    names: list[str]
    """Image files relative to the folder, with forward slashes, sorted folder by folder."""
    ignored: int
    """Visible files whose names do not end as an image's does."""


def list_images(folder: Path, below: str = "") -> Listing:
    """Every image file below `folder`, or below its sub-folder `below`, through links to folders, too.

    Hidden files and folders are left out: they hold thumbnails, version control and the like.
    """
    names: list[str] = []
    ignored = 0
    # With each folder go the folders it lies in: a link back to one of them would lead round in circles.
    waiting: list[tuple[str, frozenset[tuple[int, int]]]] = [(below, frozenset())]
    while waiting:
        relative, above = waiting.pop()
        inside = entries(folder / relative)
        status = os.stat(folder / relative)
        here = (status.st_dev, status.st_ino)
        if here in above:
            continue
        for entry in inside:
            name = posixpath.join(relative, entry.name)
            if is_folder(entry):
                waiting.append((name, above | {here}))
            elif is_image(entry.name) and _is_file(entry):
                names.append(name)
            else:
                ignored += 1
    # By parts, so that the folder "a" with all it holds comes before "a-b", as in a listing of the folders.
    return Listing(sorted(names, key=lambda name: name.split("/")), ignored)


def entries(folder: Path) -> list[os.DirEntry[str]]:
    """What lies in `folder` itself, hidden entries left out."""
    try:
        with os.scandir(folder) as scanned:
            return [entry for entry in scanned if not entry.name.startswith(".")]
    except FileNotFoundError as error:
        raise FileNotFoundError(f"no folder at {folder}. Fix: check the path.") from error
    except NotADirectoryError as error:
        raise NotADirectoryError(f"{folder} is a file, not a folder. Fix: name the folder it lies in.") from error
    except OSError as error:
        raise OSError(
            f"the folder {folder} cannot be read ({error.strerror or error}). Fix: check its permissions."
        ) from error


def is_folder(entry: os.DirEntry[str]) -> bool:
    """Whether an entry is a folder or a link to one, mostly without asking the disk again."""
    try:
        return entry.is_dir()
    except OSError:  # a link that leads to itself
        return False


def _is_file(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_file()
    except OSError:
        return False


def sub_folders(folder: Path) -> list[str]:
    """Names of the visible folders in `folder`, sorted as strings."""
    return sorted(entry.name for entry in entries(folder) if is_folder(entry))


def is_image(name: str) -> bool:
    """Whether a file's name ends as an image's does.

    >>> is_image("ILSVRC2012_val_00000293.JPEG"), is_image("README.txt")
    (True, False)
    """
    return name.lower().endswith(SUFFIXES)


def absent_files(folder: Path, names: Iterable[str]) -> list[str]:
    """Those of `names`, paths relative to `folder`, that are not there; each folder they lie in is looked at once."""
    by_parent: dict[str, list[str]] = defaultdict(list)
    for name in names:
        by_parent[posixpath.dirname(name)].append(name)
    absent = []
    for parent, children in by_parent.items():
        try:
            present = set(os.listdir(folder / parent))
        except (FileNotFoundError, NotADirectoryError):
            present = set()
        except OSError as error:
            raise OSError(
                f"the folder {folder / parent} cannot be read ({error.strerror or error}). Fix: check its permissions."
            ) from error
        absent += [name for name in children if posixpath.basename(name) not in present]
    return absent
