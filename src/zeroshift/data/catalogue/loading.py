"""A data set of the catalogue, found by its name and read from below a root."""

from __future__ import annotations

import builtins
import os
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from zeroshift.data.catalogue.data_sets import DATA_SETS, DataSetInfo
from zeroshift.data.catalogue.files import (
    ClassList,
    Place,
    class_list,
    locate,
    locate_split_file,
    read_aircraft,
    read_split_file,
)
from zeroshift.data.corruptions import KINDS, SEVERITIES
from zeroshift.data.image_set import ImageSet
from zeroshift.data.images import ImageFiles
from zeroshift.data.readers.folder import absent_files, read_class_folders
from zeroshift.suggest import did_you_mean

__all__ = ["CountWarning", "DataSetInfo", "get", "list", "load"]

SHOWN = 3
"""How many classes or files a message names."""


class CountWarning(UserWarning):
    """A data set that has more or fewer images than was published."""


def get(name: str) -> DataSetInfo:
    """The data set called `name`, by its id or another name it goes by; "-" and capitals do not matter.

    >>> get("ImageNet-V2").id
    'imagenetv2'
    """
    wanted = str(name).lower().replace("-", "_")
    for info in DATA_SETS:
        if wanted in (info.id, *info.aliases):
            return info
    known = [spelling for info in DATA_SETS for spelling in (info.id, *info.aliases)]
    ids = ", ".join(info.id for info in DATA_SETS)
    raise ValueError(f"no data set is called {name!r}. {did_you_mean(wanted, known)}Fix: one of {ids}.")


def load(
    name: str,
    root: str | os.PathLike[str],
    split: str = "test",
    *,
    corruption: str | None = None,
    severity: int = 5,
    class_names: str = "adapt",
) -> ImageSet:
    """A data set below `root`, in the layout of ADAPT, CoOp, AWT, TPT or MTA.

    A part of a data set can be loaded; that images are missing is a `CountWarning`. A file that a split lists and that
    is not there is an error.

    Parameters
    ----------
    name : see `get`.
    root : the folder the data sets lie below.
    split : "test" or, of fine-grained sets, "train" or "val". ADAPT's released code evaluates "train" on these, all
        other methods "test", which is therefore the default.
    corruption : of ImageNet-C, one of `KINDS`.
    severity : of ImageNet-C, 1 to 5. Published numbers are of 5.
    class_names : whose class names: "adapt" or, of EuroSAT, "coop", which most other methods use.
    """
    info = get(name)
    asked = _asked(info, corruption, severity)
    if split not in info.splits:
        raise ValueError(_no_split(info, split))
    if class_names not in info.class_lists:
        raise ValueError(
            f"class_names must be {' or '.join(map(repr, info.class_lists))} for {info.id}; got {class_names!r}. "
            f"{did_you_mean(class_names, info.class_lists)}Fix: leave it out for ADAPT's names."
        )
    classes = class_list(info.class_lists[class_names])
    place = locate(info, Path(root), **asked)
    names, labels = _read(info, Path(root), place, split, classes)
    images = ImageSet(
        name="_".join([info.id, *map(str, asked.values())]),
        images=ImageFiles(Path(root) / place.image_folder, tuple(names)),
        class_names=classes.names,
        labels=np.array(labels, np.int64),
        template=info.template,
        descriptions=info.descriptions,
        provenance={
            "source": "catalogue",
            "data_set": info.id,
            "split": split,
            **asked,
            "class_names": class_names,
            "layout": place.image_folder,
            "images": len(names),
            "published_images": info.counts[split],
        },
        class_ids=classes.wnids,
    )
    _warn_of_count(info, images, info.counts[split])
    return images


class Files(NamedTuple):
    """What a reader gives."""

    names: builtins.list[str]
    """Below the folder of images."""
    labels: builtins.list[int]


def _read(info: DataSetInfo, root: Path, place: Place, split: str, classes: ClassList) -> Files:
    folder = root / place.image_folder
    if classes.folders is not None:
        return Files(*read_class_folders(folder, classes.folders))
    if info.reader == "aircraft":
        files = Files(*read_aircraft(root / place.layout.folder, split, classes.names))
    else:
        path = locate_split_file(info, root, place.layout)
        splits = read_split_file(path, info.n_classes)
        if split not in splits:
            raise ValueError(f"{path} has no split {split!r}, only {', '.join(splits)}. Fix: download it again.")
        files = Files(*splits[split])
    if absent := absent_files(folder, files.names):
        raise FileNotFoundError(
            f"{len(absent)} of the {len(files.names)} {split} images of {info.id} are not in {folder}; the first is "
            f"{absent[0]}. Fix: extract the images again, so that this path exists."
        )
    return files


def _asked(info: DataSetInfo, corruption: str | None, severity: int) -> dict[str, Any]:
    """Corruption and severity where the data set has them."""
    if info.reader != "corrupted class folders":
        if corruption is not None:
            raise ValueError(
                f"{info.id} has no corruptions; got corruption={corruption!r}. Fix: load 'imagenet_c', or leave it out."
            )
        return {}
    if corruption not in KINDS:
        guess = did_you_mean(corruption, KINDS) if corruption else ""
        raise ValueError(
            f"corruption must be one of {', '.join(KINDS)} for {info.id}; got {corruption!r}. "
            f"{guess}Fix: such as corruption='fog' (--corruption fog)."
        )
    if severity not in SEVERITIES:
        raise ValueError(f"severity must be 1, 2, 3, 4 or 5; got {severity!r}. Fix: 5, that of published numbers.")
    return {"corruption": corruption, "severity": int(severity)}


def _no_split(info: DataSetInfo, split: str) -> str:
    if len(info.splits) > 1:
        why = f"must be {', '.join(map(repr, info.splits))}"
    else:
        why = f"can only be 'test': {info.title} has test images alone here, and nothing is trained"
    return (
        f"split {why}; got {split!r} for {info.id}. {did_you_mean(split, info.splits)}Fix: split='test' (--split test)."
    )


def _warn_of_count(info: DataSetInfo, images: ImageSet, published: int) -> None:
    if len(images) == published:
        return
    empty = images.empty_classes
    shown = ", ".join(empty[:SHOWN]) + (", ..." if len(empty) > SHOWN else "")
    without = f"; {len(empty)} of {images.n_classes} classes have none: {shown}" if empty else ""
    warnings.warn(
        f"{info.id} has {len(images):,} images here, {published:,} as published{without}. Numbers from it cannot be "
        "compared with published ones.",
        CountWarning,
        stacklevel=3,
    )


# Last, because it hides the builtin from whatever follows: outside, `catalogue.list()` reads better than any other.
def list() -> builtins.list[DataSetInfo]:
    """Every data set, the ImageNet family first.

    >>> from zeroshift.data import catalogue
    >>> for info in catalogue.list()[6:9]:
    ...     print(f"{info.id:16}{info.n_classes:4}{info.counts['test']:6}  {info.title}")
    oxford_flowers   102  2463  Oxford Flowers 102
    dtd               47  1692  Describable Textures (DTD)
    oxford_pets       37  3669  Oxford-IIIT Pets
    """
    return [*DATA_SETS]
