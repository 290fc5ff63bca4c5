"""A data set with one folder a class whose names are known, as ImageNet and its relatives are kept."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from zeroshift.data.readers.walking import list_images, sub_folders

__all__ = ["read_class_folders"]

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
