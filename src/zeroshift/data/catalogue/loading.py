"""Loading a data set of the catalogue by name from a root folder."""

from __future__ import annotations

import builtins
import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from zeroshift.data.catalogue.data_sets import DATA_SETS, DataSetInfo
from zeroshift.data.catalogue.files import (
    ClassList,
    LabelledFiles,
    Location,
    class_list,
    read_aircraft,
    read_split_file,
    require_data_set,
    require_split_file,
)
from zeroshift.data.corruptions import KINDS, SEVERITIES
from zeroshift.data.image_set import ImageSet
from zeroshift.data.images import ImageFiles
from zeroshift.data.readers.folder import missing_files, read_class_folders
from zeroshift.suggest import did_you_mean, first_few

__all__ = ["CountWarning", "DataSetInfo", "get", "list", "load"]


class CountWarning(UserWarning):
    """A data set has more or fewer images than the published one."""


def get(name: str) -> DataSetInfo:
    """The data set with this id or alias; "-" and "_" are equivalent, and case does not matter.

    >>> get("ImageNet-V2").id
    'imagenetv2'
    """
    wanted = str(name).lower().replace("-", "_")
    for info in DATA_SETS:
        if wanted in (info.id, *info.aliases):
            return info
    known = [spelling for info in DATA_SETS for spelling in (info.id, *info.aliases)]
    ids = ", ".join(info.id for info in DATA_SETS)
    raise ValueError(f"there is no data set {name!r}. {did_you_mean(wanted, known)}Fix: one of {ids}.")


def load(
    name: str,
    root: str | os.PathLike[str],
    split: str = "test",
    *,
    corruption: str | None = None,
    severity: int = 5,
    class_names: str = "adapt",
) -> ImageSet:
    """A data set in `root`, in the layout of ADAPT, CoOp, AWT, TPT or MTA.

    A part of a data set can be loaded, with a `CountWarning` that images are missing. A missing file that a split lists
    is an error.

    Parameters
    ----------
    name : see `get`.
    root : the folder that contains the data sets.
    split : "test" or, for fine-grained sets, "train" or "val". ADAPT's released code evaluates these on "train", all
        other methods on "test", which is therefore the default.
    corruption : for ImageNet-C, one of `KINDS`.
    severity : for ImageNet-C, 1 to 5. Published numbers use 5.
    class_names : which class names: "adapt" or, for EuroSAT, "coop", which most other methods use.
    """
    info = get(name)
    variant = _variant(info, corruption, severity)
    if split not in info.splits:
        raise _split_error(info, split)
    if class_names not in info.class_lists:
        raise ValueError(
            f"class_names must be {' or '.join(map(repr, info.class_lists))} for {info.id}; got {class_names!r}. "
            f"{did_you_mean(class_names, info.class_lists)}Fix: omit it for ADAPT's names."
        )
    classes = class_list(info.class_lists[class_names])
    location = require_data_set(info, Path(root), **variant)
    names, labels = _read(info, Path(root), location, split, classes)
    images = ImageSet(
        name="_".join([info.id, *map(str, variant.values())]),
        images=ImageFiles(Path(root) / location.image_folder, tuple(names)),
        class_names=classes.names,
        labels=np.array(labels, np.int64),
        template=info.template,
        descriptions=info.descriptions,
        provenance={
            "source": "catalogue",
            "data_set": info.id,
            "split": split,
            **variant,
            "class_names": class_names,
            "layout": location.image_folder,
            "images": len(names),
            "published_images": info.counts[split],
        },
        class_ids=classes.wnids,
    )
    _warn_about_count(info, images, info.counts[split])
    return images


def _read(info: DataSetInfo, root: Path, location: Location, split: str, classes: ClassList) -> LabelledFiles:
    folder = root / location.image_folder
    if classes.folders is not None:
        return LabelledFiles(*read_class_folders(folder, classes.folders))
    if info.reader == "aircraft":
        files = read_aircraft(root / location.layout.folder, split, classes.names)
    else:
        path = require_split_file(info, root, location.layout)
        splits = read_split_file(path, info.n_classes)
        if split not in splits:
            raise ValueError(f"{path} has no split {split!r}, only {', '.join(splits)}. Fix: download it again.")
        files = splits[split]
    if missing := missing_files(folder, files.names):
        raise FileNotFoundError(
            f"{len(missing)} of the {len(files.names)} {split} images of {info.id} are missing from {folder}; the "
            f"first is {missing[0]}. Fix: extract the images again, so that this path exists."
        )
    return files


def _variant(info: DataSetInfo, corruption: str | None, severity: int) -> dict[str, Any]:
    """Corruption and severity, for a data set that has them."""
    if info.reader != "corrupted class folders":
        if corruption is not None:
            raise ValueError(
                f"{info.id} has no corruptions; got corruption={corruption!r}. Fix: load 'imagenet_c', or omit it."
            )
        return {}
    if corruption not in KINDS:
        guess = did_you_mean(corruption, KINDS) if corruption else ""
        raise ValueError(
            f"corruption must be one of {', '.join(KINDS)} for {info.id}; got {corruption!r}. "
            f"{guess}Fix: for example corruption='fog' (--corruption fog)."
        )
    if severity not in SEVERITIES:
        raise ValueError(f"severity must be 1, 2, 3, 4 or 5; got {severity!r}. Fix: 5, as in published numbers.")
    return {"corruption": corruption, "severity": int(severity)}


def _split_error(info: DataSetInfo, split: str) -> ValueError:
    if len(info.splits) > 1:
        allowed = f"must be {', '.join(map(repr, info.splits))}"
    else:
        allowed = f"must be 'test', the only split of {info.title}"
    return ValueError(
        f"split {allowed}; got {split!r} for {info.id}. "
        f"{did_you_mean(split, info.splits)}Fix: split='test' (--split test)."
    )


def _warn_about_count(info: DataSetInfo, images: ImageSet, published: int) -> None:
    if len(images) == published:
        return
    empty = images.empty_classes
    without = f"; {len(empty)} of {images.n_classes} classes have none: {first_few(empty)}" if empty else ""
    warnings.warn(
        f"{info.id} has {len(images):,} images, {published:,} were published{without}. Its numbers cannot be "
        "compared with published ones.",
        CountWarning,
        stacklevel=3,
    )


# At the end of the module, because it hides the builtin from the code that follows.
def list() -> builtins.list[DataSetInfo]:
    """All data sets, the ImageNet family first.

    >>> from zeroshift.data import catalogue
    >>> for info in catalogue.list()[6:9]:
    ...     print(f"{info.id:16}{info.n_classes:4}{info.counts['test']:6}  {info.title}")
    oxford_flowers   102  2463  Oxford Flowers 102
    dtd               47  1692  Describable Textures (DTD)
    oxford_pets       37  3669  Oxford-IIIT Pets
    """
    return [*DATA_SETS]
