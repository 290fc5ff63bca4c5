"""Readers of users' images: folders, tables of paths, and arrays of pixels."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from zeroshift.data.image_set import ImageSet, checked_names
from zeroshift.data.images import (
    HEIF_FIX,
    HEIF_SUFFIXES,
    IMAGE_SUFFIXES,
    TRANSPARENCY,
    ImageArrays,
    ImageFiles,
    is_image,
)
from zeroshift.data.readers.folder import read_folder
from zeroshift.data.readers.table import TABLE_SUFFIXES, read_table
from zeroshift.features.files import FEATURE_SUFFIXES
from zeroshift.parsers import read_npy

__all__ = ["open_images", "read_array", "read_folder", "read_table"]


def open_images(
    source: str | os.PathLike[str],
    classes: Sequence[str] | None = None,
    *,
    labelled: bool | None = None,
    root: str | os.PathLike[str] | None = None,
    labels: str | os.PathLike[str] | Sequence[int] | np.ndarray | None = None,
    upright: bool = True,
    transparency: str = "white",
) -> ImageSet:
    """The images at `source`: a folder, an image file, a .csv or .parquet table, or an .npy array.

    Parameters
    ----------
    source : what to read. `read_folder`, `read_table` and `read_array` are the functions for each kind.
    classes : names of the classes.
    labelled : only for a folder: whether its subfolders are the classes.
    root : only for a table: the folder its paths are relative to.
    labels : only for an array: class indices, or an .npy file with them.
    upright : rotate photographs as their EXIF orientation says; arrays have none.
    transparency : "white" or "black", what shows through transparent pixels; "drop" ignores transparency.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as top:
    ...     open(os.path.join(top, "a.jpg"), "w").close()
    ...     len(open_images(top))
    1
    """
    if not isinstance(source, (str, os.PathLike)):
        raise TypeError(f"source must be a path; got {type(source).__name__}. Fix: open_images('photos').")
    path = Path(source)
    suffix = path.suffix.lower()
    if path.is_dir():
        _refuse_arguments("a folder", source, root=root, labels=labels)
        return read_folder(path, classes, labelled=labelled, upright=upright, transparency=transparency)
    if not path.exists():
        raise FileNotFoundError(f"no such file or folder: {source}. Fix: check the path.")
    if suffix in TABLE_SUFFIXES:
        _refuse_arguments("a table", source, labelled=labelled, labels=labels)
        return read_table(path, root, classes, upright=upright, transparency=transparency)
    if suffix == ".npy":
        _refuse_arguments("an array", source, labelled=labelled, root=root)
        return read_array(path, labels, classes)
    if suffix in HEIF_SUFFIXES and not is_image(path.name):
        raise ValueError(f"{source} cannot be read. Fix: {HEIF_FIX}.")
    if is_image(path.name):
        _refuse_arguments("an image", source, labelled=labelled, root=root, labels=labels)
        return ImageSet(
            name=path.name,
            images=ImageFiles(path.parent, (path.name,), upright, TRANSPARENCY.check("transparency", transparency)),
            class_names=None if classes is None else checked_names("classes", classes),
            provenance={"source": "file", "images": 1, "upright": upright, "transparency": transparency},
        )
    if suffix in FEATURE_SUFFIXES:
        raise ValueError(f"{source} has features, by its suffix, and images are needed. Fix: zeroshift adapt {source}.")
    raise ValueError(
        "images are read from a folder, an image file, a .csv or .parquet table or an .npy array; got the file "
        f"{source}. Fix: pass the folder of the images, or a file that ends in {', '.join(IMAGE_SUFFIXES)}; "
        "a video is read by open_video, or zeroshift classify --stream."
    )


def _refuse_arguments(kind: str, source: str | os.PathLike[str], **given: Any) -> None:
    """Refuse arguments that this kind of source does not use, instead of ignoring them."""
    for name, value in given.items():
        if value is not None:
            raise ValueError(f"{name} cannot be used with {kind}, which {source} is. Fix: omit it.")


def read_array(
    path: str | os.PathLike[str],
    labels: str | os.PathLike[str] | Sequence[int] | np.ndarray | None = None,
    classes: Sequence[str] | None = None,
) -> ImageSet:
    """The images of an .npy file of type uint8: (N, H, W, 3), (N, H, W, 1) or (N, H, W).

    Parameters
    ----------
    path : the file. It is memory-mapped, not loaded.
    labels : class indices into `classes`, or an .npy file with them.
    classes : names of the classes.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as top:
    ...     np.save(os.path.join(top, "digits.npy"), np.zeros((3, 8, 8), np.uint8))
    ...     digits = read_array(os.path.join(top, "digits.npy"), labels=[1, 0, 1], classes=("zero", "one"))
    >>> digits
    ImageSet('digits', 3 images, 2 classes, labelled)
    """
    images = ImageArrays(Path(path))
    if len(images) == 0:
        raise ValueError(f"{path} contains no images (0 rows). Fix: write the file again.")
    if isinstance(labels, (str, os.PathLike)):
        labels = _load_labels(Path(labels))
    return ImageSet(
        name=images.file.stem,
        images=images,
        class_names=None if classes is None else checked_names("classes", classes),
        labels=None if labels is None else np.asarray(labels),
        provenance={"source": "array", "images": len(images)},
    )


def _load_labels(path: Path) -> np.ndarray:
    if not path.exists():
        raise FileNotFoundError(f"no file of labels at {path}. Fix: check the path.")
    try:
        return read_npy(path)
    except (ValueError, OSError) as error:
        raise ValueError(
            f"{path} is not a readable .npy file of labels ({error}). Fix: np.save(path, labels), class indices."
        ) from error
