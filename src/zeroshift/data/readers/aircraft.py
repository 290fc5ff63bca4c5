"""FGVC-Aircraft's text files: `variants.txt` lists the classes, `images_variant_<split>.txt` the images of a split."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from zeroshift.suggest import did_you_mean

__all__ = ["SUFFIX", "VARIANTS", "read_aircraft", "split_list"]

VARIANTS = "variants.txt"
SUFFIX = ".jpg"


def split_list(split: str) -> str:
    """Name of the file that lists a split's images."""
    return f"images_variant_{split}.txt"


def read_aircraft(folder: Path, split: str, class_names: Sequence[str]) -> tuple[list[str], list[int]]:
    """Names of the images (below `images`) and labels of a split; labels count the lines of `variants.txt`."""
    variants = [line for _, line in _lines(folder / VARIANTS)]
    if len(variants) != len(class_names):
        raise ValueError(
            f"{folder / VARIANTS} lists {len(variants)} classes; FGVC-Aircraft has {len(class_names)} variants. "
            "Fix: download it again."
        )
    for number, (variant, name) in enumerate(zip(variants, class_names, strict=True), start=1):
        if variant != name:
            # Another order would give every image a wrong class, and nobody would notice.
            raise ValueError(
                f"{folder / VARIANTS}, line {number}: {variant!r} where FGVC-Aircraft has {name!r}. "
                "Fix: download it again."
            )
    label_of = {name: label for label, name in enumerate(variants)}
    names, labels = [], []
    path = folder / split_list(split)
    for number, line in _lines(path):
        image, _, variant = line.partition(" ")
        if variant not in label_of:
            raise ValueError(
                f"{path}, line {number}: {variant!r} is none of the variants in {VARIANTS}. "
                f"{did_you_mean(variant, variants)}Fix: download it again."
            )
        names.append(image + SUFFIX)
        labels.append(label_of[variant])
    return names, labels


def _lines(path: Path) -> list[tuple[int, str]]:
    """The lines that are not blank, with their numbers."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise FileNotFoundError(
            f"no file {path.name} in {path.parent}. Fix: copy it there from the data set's folder `data`."
        ) from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text ({error}). Fix: download it again.") from error
    except OSError as error:
        raise OSError(f"{path} cannot be read ({error.strerror or error}). Fix: check its permissions.") from error
    return [(number, line.strip()) for number, line in enumerate(text.splitlines(), start=1) if line.strip()]
