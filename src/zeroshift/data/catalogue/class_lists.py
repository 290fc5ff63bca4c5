"""Class names of the catalogue's data sets, from the text files in `lists`."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import NamedTuple

__all__ = ["ClassList", "class_list"]

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
