"""A folder of images: loose pictures, or one sub-folder a class."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from pathlib import Path

from zeroshift.data.image_set import ImageSet
from zeroshift.data.images import SUFFIXES, ImageFiles
from zeroshift.data.readers.labelling import class_indices
from zeroshift.data.readers.walking import list_images

__all__ = ["read_folder"]

SHOWN = 3
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
