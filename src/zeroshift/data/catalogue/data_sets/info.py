"""What the catalogue knows about a data set, and about the places where it may lie."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["DataSetInfo", "Layout", "Reader"]

Reader = Literal["class folders", "corrupted class folders", "split file", "aircraft"]
"""How a data set is stored: a folder a class; the same for each corruption and severity; with CoOp's JSON file that
lists the images of each split; with FGVC-Aircraft's own text files."""


@dataclass(frozen=True)
class Layout:
    """A place below the root where a data set may lie."""

    folder: str
    """The data set's own folder."""
    images: str = ""
    """Folder of the images in it; {corruption} and {severity} stand for what is asked for."""

    def image_folder(self, **asked: object) -> str:
        """
        >>> Layout("dtd", "images").image_folder()
        'dtd/images'
        >>> Layout("imagenet-c", "{corruption}/{severity}").image_folder(corruption="fog", severity=5)
        'imagenet-c/fog/5'
        """
        return f"{self.folder}/{self.images}".rstrip("/").format(**asked)


@dataclass(frozen=True)
class DataSetInfo:
    """What a data set is, before it is loaded."""

    id: str
    """What `load` takes."""
    title: str
    description: str
    reader: Reader
    n_classes: int
    counts: dict[str, int]
    """Published number of images by split; of ImageNet-C, for each corruption at each severity."""
    layouts: tuple[Layout, ...]
    """Where it may lie: in ADAPT's layout, in that of CoOp and AWT, in that of TPT and MTA."""
    class_lists: dict[str, str]
    """Its lists of class names (see `class_lists`), by whose they are; "adapt" is the default."""
    template: str
    """Its own prompt template, ADAPT's."""
    descriptions: str
    """Name of its file of class descriptions in ADAPT and AWT."""
    aliases: tuple[str, ...] = ()
    """Other names it goes by."""
    split_file: str | None = None
    """Name of CoOp's file that lists the images of each split."""

    @property
    def splits(self) -> tuple[str, ...]:
        return tuple(self.counts)

    def split_files(self, layout: Layout) -> tuple[str, ...]:
        """Where the split file may lie, below the root: in the data set's folder or, as TPT has it, with all others."""
        return tuple(f"{folder}/{self.split_file}" for folder in (layout.folder, "data_splits", "data/data_splits"))
