"""Folders of images: listing them, and labels from the names of subfolders. No image is opened."""

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

from zeroshift.data.image_set import ImageSet, checked_names
from zeroshift.data.images import HEIF_FIX, HEIF_SUFFIXES, IMAGE_SUFFIXES, TRANSPARENCY, ImageFiles, is_image
from zeroshift.suggest import did_you_mean, first_few, name_key

__all__ = [
    "ImageListing",
    "is_folder",
    "list_images",
    "missing_files",
    "parse_labels",
    "read_class_folders",
    "read_folder",
    "subfolders",
    "visible_entries",
]


class ImageListing(NamedTuple):
    """The image files in a folder and its subfolders."""

    names: list[str]
    """Paths relative to the folder, with forward slashes, sorted folder by folder."""
    ignored: int
    """Number of visible files without an image suffix."""
    needs_heif: int
    """Of these, photographs of telephones that pillow-heif would read."""


def list_images(folder: Path, below: str = "") -> ImageListing:
    """All image files in `folder`, or in its subfolder `below`, recursively; links to folders are followed.

    Hidden files and folders are ignored: they contain thumbnails, version control data and the like.
    """
    names: list[str] = []
    ignored = needs_heif = 0
    # Each folder is stored with its parents, to detect links back to one of them.
    pending: list[tuple[str, frozenset[tuple[int, int]]]] = [(below, frozenset())]
    while pending:
        relative, parents = pending.pop()
        children = visible_entries(folder / relative)
        status = os.stat(folder / relative)
        identity = (status.st_dev, status.st_ino)
        if identity in parents:
            continue
        for entry in children:
            name = posixpath.join(relative, entry.name)
            if is_folder(entry):
                pending.append((name, parents | {identity}))
            elif is_image(entry.name) and _is_file(entry):
                names.append(name)
            else:
                ignored += 1
                needs_heif += name.lower().endswith(HEIF_SUFFIXES)
    # Sorted by path components, so that everything in the folder "a" comes before "a-b".
    return ImageListing(sorted(names, key=lambda name: name.split("/")), ignored, needs_heif)


def visible_entries(folder: Path) -> list[os.DirEntry[str]]:
    """The entries of `folder` itself, without hidden ones."""
    try:
        with os.scandir(folder) as scanned:
            return [entry for entry in scanned if not entry.name.startswith(".")]
    except FileNotFoundError as error:
        raise FileNotFoundError(f"no folder at {folder}. Fix: check the path.") from error
    except NotADirectoryError as error:
        raise NotADirectoryError(f"{folder} is a file, not a folder. Fix: pass the folder that contains it.") from error
    except OSError as error:
        raise OSError(
            f"the folder {folder} cannot be read ({error.strerror or error}). Fix: check its permissions."
        ) from error


def is_folder(entry: os.DirEntry[str]) -> bool:
    """Whether an entry is a folder or a link to one."""
    try:
        return entry.is_dir()
    except OSError:  # a link to itself
        return False


def _is_file(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_file()
    except OSError:
        return False


def subfolders(folder: Path) -> list[str]:
    """Names of the visible folders in `folder`, sorted as strings."""
    return sorted(entry.name for entry in visible_entries(folder) if is_folder(entry))


def missing_files(folder: Path, names: Iterable[str]) -> list[str]:
    """Those of `names`, paths relative to `folder`, that do not exist; each folder is listed once."""
    by_parent: dict[str, list[str]] = defaultdict(list)
    for name in names:
        by_parent[posixpath.dirname(name)].append(name)
    missing = []
    for parent, children in by_parent.items():
        try:
            present = set(os.listdir(folder / parent))
        except (FileNotFoundError, NotADirectoryError):
            present = set()
        except OSError as error:
            raise OSError(
                f"the folder {folder / parent} cannot be read ({error.strerror or error}). Fix: check its permissions."
            ) from error
        missing += [name for name in children if posixpath.basename(name) not in present]
    return missing


NUMBER = re.compile(r"[+-]?\d+")


def parse_labels(
    texts: Sequence[str], classes: Sequence[str] | None, location: Callable[[int], str], fix: str
) -> tuple[tuple[str, ...], np.ndarray]:
    """Class names, and the class index of each label as users write it: a name or a number.

    Without `classes`, the sorted labels are the classes; labels that are all numbers are refused. With `classes`,
    labels are class names or, if none of them is one, numbers counted from 0.

    Parameters
    ----------
    texts : the labels.
    classes : the class names, if known.
    location : where label `i` comes from, for messages.
    fix : what to do about an unknown label, for messages.

    >>> parse_labels(["dog", "cat", "dog"], None, str, fix="...")
    (('cat', 'dog'), array([1, 0, 1]))
    >>> parse_labels(["1", "0"], ["cat", "dog"], str, fix="...")
    (('cat', 'dog'), array([1, 0]))
    """
    numbers = all(NUMBER.fullmatch(label) for label in texts)
    if classes is not None:
        classes = checked_names("classes", classes)
    elif numbers and texts:
        raise ValueError(
            f"{location(0)}: the label {texts[0]!r} is a number, like all others, and there are no class names. "
            "Fix: pass classes= (--classes), the names in the order of the numbers."
        )
    else:
        classes = _distinct(texts, location)
    index_of = {name: k for k, name in reversed(list(enumerate(classes)))}
    if numbers and not any(label in index_of for label in texts):
        index_of = {str(k): k for k in range(len(classes))}
        texts = [str(int(label)) for label in texts]  # "007" is 7
    indices = np.empty(len(texts), np.int64)
    for i, label in enumerate(texts):
        if label not in index_of:
            raise ValueError(f"{location(i)}: {_unknown_label_message(label, classes, numbers)}Fix: {fix}.")
        indices[i] = index_of[label]
    return tuple(classes), indices


def _distinct(texts: Sequence[str], location: Callable[[int], str]) -> list[str]:
    """The labels, each once and sorted; an error for two spellings of the same name."""
    names = sorted(set(texts))
    spelled: dict[str, str] = {}
    for name in names:
        if (other := spelled.setdefault(name_key(name), name)) != name:
            where = location(texts.index(name))
            raise ValueError(f"{where}: {other!r} and {name!r} are the same name. Fix: spell it in one way.")
    return names


def _unknown_label_message(label: str, classes: Sequence[str], numbers: bool) -> str:
    if numbers:
        return f"the label is {label}, but the {len(classes)} classes are numbered 0 to {len(classes) - 1}. "
    shown = first_few([*map(repr, classes)], limit=5)
    return f"the label {label!r} is none of the {len(classes)} classes ({shown}). {did_you_mean(label, classes)}"


def read_folder(
    path: str | os.PathLike[str],
    classes: Sequence[str] | None = None,
    *,
    labelled: bool | None = None,
    upright: bool = True,
    transparency: str = "white",
) -> ImageSet:
    """The images in a folder and its subfolders, sorted by name.

    Parameters
    ----------
    path : the folder. Hidden files and files without an image suffix are ignored.
    classes : names of the classes; by default, the names of the subfolders if these are the classes.
    labelled : whether the subfolders are the classes of the images in them. By default they are if two or more contain
        images, all images are in a subfolder and, if `classes` is given, every subfolder is a class, by name or by
        number; if it is not given, most subfolders must contain images directly, not only in subfolders of their own.
    upright : rotate photographs as their EXIF orientation says.
    transparency : "white" or "black", what shows through transparent pixels; "drop" ignores transparency.

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
    names, ignored, needs_heif = list_images(folder)
    if needs_heif:
        message = f"{needs_heif} .heic files in {folder} cannot be read. Fix: {HEIF_FIX}."
        if not names:
            raise ValueError(message)
        warnings.warn(f"skipped: {message}", stacklevel=2)
    if not names:
        other = f"; it contains {ignored} other file{'s' * (ignored > 1)}" if ignored else ""
        raise ValueError(
            f"no images found in {folder}{other}. "
            f"Fix: pass another folder; the image suffixes are {', '.join(IMAGE_SUFFIXES)}."
        )
    tops = [name.split("/", 1)[0] if "/" in name else None for name in names]
    loose = names[tops.index(None)] if None in tops else None
    if labelled is None:
        labelled = (
            loose is None
            and len(set(tops)) >= 2
            and (classes is not None or _are_mostly_direct(names))
            and _subfolders_are_classes({top or "" for top in tops}, classes)
        )
    elif labelled and loose is not None:
        raise ValueError(
            f"labelled=True (--labelled) needs one subfolder per class, but {loose} in {folder} is in none. "
            "Fix: move it into one, or omit labelled."
        )
    labels = None
    if labelled:
        folders = [top or "" for top in tops]
        fix = "rename the subfolder, or pass labelled=False (--unlabelled) if subfolders are not classes"

        def where(i: int) -> str:
            return f"{names[i]} in {folder}"

        if classes is None:
            classes = _distinct(folders, where)
        classes, labels = parse_labels(folders, classes, where, fix)
    return ImageSet(
        name=folder.resolve().name,
        images=ImageFiles(folder, tuple(names), upright, TRANSPARENCY.check("transparency", transparency)),
        class_names=None if classes is None else checked_names("classes", classes),
        labels=labels,
        provenance={"source": "folder", "images": len(names), "upright": upright, "transparency": transparency},
        ignored_files=ignored - needs_heif,
    )


def _are_mostly_direct(names: Sequence[str]) -> bool:
    """Whether most subfolders have images directly in them; train/cat/1.jpg and test/cat/2.jpg are not of the classes
    "train" and "test"."""
    folders = {name.split("/", 1)[0] for name in names}
    direct = {name.split("/", 1)[0] for name in names if name.count("/") == 1}
    return 2 * len(direct) > len(folders)


def _subfolders_are_classes(folders: set[str], classes: Sequence[str] | None) -> bool:
    """Whether subfolders are the classes; folders by month or by camera, for example, are not."""
    if classes is None or folders <= set(classes):
        return True
    if not folders.isdisjoint(classes):
        warnings.warn(
            f"the subfolders {first_few(sorted(folders - set(classes)))} are not classes, but other subfolders are: "
            "the images get no labels. Fix: pass labelled=True (--labelled) if subfolders are classes, labelled=False "
            "(--unlabelled) if not.",
            UserWarning,
            stacklevel=3,
        )
        return False
    return all(name.isdecimal() and int(name) < len(classes) for name in folders)


def read_class_folders(folder: Path, expected: Sequence[str]) -> tuple[list[str], list[int]]:
    """Names and labels of the images in `folder`: a label is the position of the image's folder in `expected`.

    If all folders are present, this is the order of torchvision's ImageFolder. A folder of another name is refused if
    it contains images: the labels could be wrong. Missing folders are accepted, so that a part of a data set can be
    used.
    """
    names: list[str] = []
    labels: list[int] = []
    present = subfolders(folder)
    unexpected = [name for name in sorted(set(present) - set(expected)) if list_images(folder, name).names]
    if unexpected:
        raise ValueError(
            f"{folder} has {len(unexpected)} folders with images that are none of the {len(expected)} expected "
            f"classes: {first_few(unexpected)}. Fix: check that it is this data set, and move other folders out of it."
        )
    label_of = {name: label for label, name in enumerate(expected)}
    for name in sorted(present, key=lambda name: label_of.get(name, -1)):
        if name in label_of:
            listed = list_images(folder, name).names
            names += listed
            labels += [label_of[name]] * len(listed)
    return names, labels
