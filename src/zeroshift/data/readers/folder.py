"""Image files below a folder, found by their names alone; no file is opened."""

from __future__ import annotations

import os
import posixpath
import re
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from zeroshift.data.image_set import ImageSet
from zeroshift.data.images import SUFFIXES, ImageFiles
from zeroshift.suggest import did_you_mean

__all__ = [
    "Listing",
    "absent_files",
    "class_indices",
    "entries",
    "is_folder",
    "is_image",
    "list_images",
    "read_class_folders",
    "read_folder",
    "sub_folders",
]


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


# Labels as users write them, names or numbers, to class indices.


NUMBER = re.compile(r"[+-]?\d+")


def class_indices(
    written: Sequence[str], classes: Sequence[str] | None, place: Callable[[int], str], fix: str
) -> tuple[tuple[str, ...], np.ndarray]:
    """Class names and the class index of each label.

    Without `classes`, the different names in their order are the classes; numbers alone cannot say what they mean. With
    them, labels are names of theirs or, where none of the labels is a name, numbers from 0.

    Parameters
    ----------
    written : the labels as text.
    classes : the class names, where known.
    place : where label `i` stands, for messages.
    fix : what to do about a label that is none of the classes, for messages.

    >>> class_indices(["dog", "cat", "dog"], None, str, fix="...")
    (('cat', 'dog'), array([1, 0, 1]))
    >>> class_indices(["1", "0"], ["cat", "dog"], str, fix="...")
    (('cat', 'dog'), array([1, 0]))
    """
    numbers = all(NUMBER.fullmatch(label) for label in written)
    if classes is None:
        if numbers and written:
            raise ValueError(
                f"{place(0)}: the label {written[0]!r} is a number, as are all, and no class names say what it means. "
                "Fix: pass classes= (--classes), the names in the order of the numbers."
            )
        classes = sorted(set(written))
    index_of = {name: k for k, name in reversed(list(enumerate(classes)))}
    if numbers and not any(label in index_of for label in written):
        index_of = {str(k): k for k in range(len(classes))}
        written = [str(int(label)) for label in written]  # "007" is 7
    indices = np.empty(len(written), np.int64)
    for i, label in enumerate(written):
        if label not in index_of:
            raise ValueError(f"{place(i)}: {_unknown(label, classes, numbers)}Fix: {fix}.")
        indices[i] = index_of[label]
    return tuple(classes), indices


def _unknown(label: str, classes: Sequence[str], numbers: bool) -> str:
    if numbers:
        return f"the label is {label}, but the {len(classes)} classes are numbered 0 to {len(classes) - 1}. "
    shown = ", ".join(map(repr, classes[:5])) + (", ..." if len(classes) > 5 else "")
    return f"the label {label!r} is none of the {len(classes)} classes ({shown}). {did_you_mean(label, classes)}"


# A folder of images: loose pictures, or one sub-folder a class.


FOLDER_SHOWN = 3
"""How many folders a message names."""


def read_folder(
    path: str | os.PathLike[str],
    classes: Sequence[str] | None = None,
    *,
    labelled: bool | None = None,
    upright: bool = True,
) -> ImageSet:
    """The images below a folder, sorted by name.

    Parameters
    ----------
    path : the folder. Hidden files, and files whose names do not end as an image's does, are left out.
    classes : names of the classes; by default, those of the sub-folders where they are the classes.
    labelled : whether the sub-folders are the classes of the images in them. By default they are if there are two or
        more with images, no image lies beside them and, where `classes` are given, all are classes, by name or by
        number.
    upright : turn photographs as their EXIF orientation says.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as top:
    ...     for name in ("cat/1.jpg", "dog/1.jpg", "dog/notes.txt"):
    ...         os.makedirs(os.path.dirname(os.path.join(top, name)), exist_ok=True)
    ...         open(os.path.join(top, name), "w").close()
    ...     pets = read_folder(top)
    >>> pets.class_names, pets.labels.tolist(), pets.images.names
    (('cat', 'dog'), [0, 1], ('cat/1.jpg', 'dog/1.jpg'))
    """
    folder = Path(path)
    names, ignored = list_images(folder)
    if not names:
        other = f"; {ignored} other files are there" if ignored else ""
        raise ValueError(
            f"no image lies in {folder}{other}. Fix: name another folder; names of images end in {', '.join(SUFFIXES)}."
        )
    tops = [name.split("/", 1)[0] if "/" in name else None for name in names]
    loose = names[tops.index(None)] if None in tops else None
    if labelled is None:
        labelled = loose is None and len(set(tops)) >= 2 and _are_classes({top or "" for top in tops}, classes)
    elif labelled and loose is not None:
        raise ValueError(
            f"labelled=True (--labelled) needs one sub-folder a class, but {loose} in {folder} lies in none. "
            "Fix: move it into one, or leave out labelled."
        )
    labels = None
    if labelled:
        folders = [top or "" for top in tops]
        fix = "rename the sub-folder, or pass labelled=False (--unlabelled) where sub-folders are not classes"
        if classes is None:
            classes = sorted(set(folders))
        classes, labels = class_indices(folders, classes, lambda i: f"{names[i]} in {folder}", fix)
    return ImageSet(
        name=folder.resolve().name,
        images=ImageFiles(folder, tuple(names), upright),
        class_names=None if classes is None else tuple(classes),
        labels=labels,
        provenance={"source": "folder", "images": len(names), "upright": upright},
        ignored_files=ignored,
    )


def _are_classes(folders: set[str], classes: Sequence[str] | None) -> bool:
    """Whether sub-folders are the classes: by month or by camera they are not, whatever the classes are called."""
    if classes is None or folders <= set(classes):
        return True
    if not folders.isdisjoint(classes):
        strangers = sorted(folders - set(classes))
        warnings.warn(
            f"the sub-folders {', '.join(strangers[:SHOWN])}{', ...' if strangers[SHOWN:] else ''} are none of the "
            "classes, though others are: no image is taken to have a label. Fix: labelled=True (--labelled) insists on "
            "classes, labelled=False (--unlabelled) says there are none.",
            UserWarning,
            stacklevel=3,
        )
        return False
    return all(name.isdecimal() and int(name) < len(classes) for name in folders)


# A data set with one folder a class whose names are known, as ImageNet and its relatives are kept.


SHOWN = 3
"""How many folders a message names."""


def read_class_folders(folder: Path, expected: Sequence[str]) -> tuple[list[str], list[int]]:
    """Names and labels of the images below `folder`: a label is the position of the image's folder in `expected`.

    With every folder there, that is the order torchvision's ImageFolder would give. A folder of another name means that
    this is another data set, or that the labels would be wrong: it is refused, unless it holds no image. Folders that
    are missing are not, so that a part of a data set can be tried.
    """
    names: list[str] = []
    labels: list[int] = []
    present = sub_folders(folder)
    strangers = [name for name in sorted(set(present) - set(expected)) if list_images(folder, name).names]
    if strangers:
        shown = ", ".join(strangers[:SHOWN]) + (", ..." if len(strangers) > SHOWN else "")
        raise ValueError(
            f"{folder} has {len(strangers)} folders with images that are none of the {len(expected)} classes expected "
            f"there: {shown}. Fix: check that it is this data set, and move other folders out of it."
        )
    label_of = {name: label for label, name in enumerate(expected)}
    for name in sorted(present, key=lambda name: label_of.get(name, -1)):
        if name in label_of:
            listed = list_images(folder, name).names
            names += listed
            labels += [label_of[name]] * len(listed)
    return names, labels
