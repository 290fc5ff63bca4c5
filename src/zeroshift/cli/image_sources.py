"""Where images come from on the command line: a data set of the catalogue by its id, or something of the user's own."""

from __future__ import annotations

import os
from pathlib import Path

from zeroshift.cli.console import print_warning
from zeroshift.data import catalogue
from zeroshift.data.image_set import ImageSet
from zeroshift.data.readers.opening import open_images
from zeroshift.data.readers.table import TABLE_SUFFIXES
from zeroshift.encode.prompts import parse_class_names
from zeroshift.report.words import counted
from zeroshift.suggest import did_you_mean

__all__ = ["load_images"]

DATA_VARIABLE = "ZEROSHIFT_DATA"


def load_images(
    source: str,
    *,
    classes: str | None = None,
    root: Path | None = None,
    split: str | None = None,
    corruption: str | None = None,
    severity: int = 5,
    labelled: bool | None = None,
    labels: Path | None = None,
    upright: bool = True,
) -> ImageSet:
    """The images `source` names. A path that exists is taken for one, also where a data set is called the same."""
    names = None if classes is None else parse_class_names(classes)
    if os.path.exists(source):
        if split is not None:
            raise ValueError(f"--split is for data sets of the catalogue; {source} is a path. Fix: leave it out.")
        if root is not None and Path(source).suffix.lower() not in TABLE_SUFFIXES:
            raise ValueError(f"--data is for data sets and tables; {source} is neither. Fix: leave it out.")
        images = open_images(source, names, labelled=labelled, root=root, labels=labels, upright=upright)
        if images.ignored_files:
            # Said, because a folder of .heic photographs beside a few .jpg would else be a folder of a few.
            left = counted(images.ignored_files, "file")
            print_warning(f"{source}: {left} left out, because their names do not end as those of images read here do")
        return images
    try:
        info = catalogue.get(source)
    except ValueError:
        ids = [info.id for info in catalogue.list()]
        raise ValueError(
            f"{source} is neither a file or folder nor a data set of the catalogue. {did_you_mean(source, ids)}"
            "Fix: check the path, or see `zeroshift data list`."
        ) from None
    where = root or (Path(os.environ[DATA_VARIABLE]) if os.environ.get(DATA_VARIABLE) else None)
    if where is None:
        raise ValueError(
            f"{info.id} is a data set; the folder it lies below is needed. Fix: --data ROOT, or {DATA_VARIABLE}=ROOT; "
            "`zeroshift data check ROOT` says what is there."
        )
    for option, given in (("--classes", names), ("--labelled or --unlabelled", labelled), ("--labels", labels)):
        if given is not None:
            raise ValueError(f"{info.id} has its own classes and labels; got {option}. Fix: leave it out.")
    stored = corruption if info.id == "imagenet_c" else None
    return catalogue.load(info.id, where, split or "test", corruption=stored, severity=severity)
