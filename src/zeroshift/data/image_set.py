"""`ImageSet`: images with their classes and labels. It is validated once, when it is made."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from zeroshift.data.images import ImageSource
from zeroshift.features.checks import validate_indices, validate_provenance

__all__ = ["ImageSet", "checked_names"]


@dataclass(frozen=True, eq=False)
class ImageSet:
    """Images and, if known, their classes and labels.

    >>> from pathlib import Path
    >>> from zeroshift.data.images import ImageFiles
    >>> files = ImageFiles(Path("pets"), ("cat/1.jpg", "dog/1.jpg", "dog/2.jpg"))
    >>> pets = ImageSet("pets", files, class_names=("cat", "dog"), labels=[0, 1, 1])
    >>> pets
    ImageSet('pets', 3 images, 2 classes, labelled)
    >>> pets.subset([0]).empty_classes
    ('dog',)
    """

    name: str
    images: ImageSource
    class_names: tuple[str, ...] | None = None
    """In label order; a name may occur twice (ImageNet has two classes "missile")."""
    labels: np.ndarray | None = None
    """Class indices, one per image; None if unknown."""
    template: str | None = None
    """The data set's own prompt template, with {} for the class name."""
    descriptions: str | None = None
    """Name of the data set's file of class descriptions."""
    provenance: dict[str, Any] = field(default_factory=dict)
    """Where the set comes from: JSON-serialisable, without absolute paths or times, the same on every machine."""
    ignored_files: int = 0
    """Number of files that are not images, by their suffix."""
    class_ids: tuple[str, ...] | None = None
    """Identifiers that distinguish classes of the same name, one per class: ImageNet's WordNet ids."""

    def __post_init__(self) -> None:
        checked: dict[str, Any] = {"provenance": validate_provenance(self.provenance)}
        if self.class_names is not None:
            checked["class_names"] = checked_names("class_names", self.class_names)
        if self.class_ids is not None:
            checked["class_ids"] = self._validate_ids(self.class_ids)
        if self.labels is not None:
            checked["labels"] = self._validate_labels(self.labels)
        if self.template is not None and self.template.count("{}") != 1:
            raise ValueError(
                f"template must have {{}} once, where the class name goes; got {self.template!r}. "
                "Fix: for example 'a photo of a {}.'."
            )
        for name, value in checked.items():
            object.__setattr__(self, name, value)  # the dataclass is frozen for everyone else

    def _validate_ids(self, given: Sequence[str]) -> tuple[str, ...]:
        ids = checked_names("class_ids", given)
        if len(ids) != self.n_classes or len(set(ids)) < len(ids):
            raise ValueError(
                f"class_ids must be different, one per class; got {len(ids)} ({len(set(ids))} different) "
                f"for {self.n_classes} classes. Fix: omit them, or list them in the order of class_names."
            )
        return ids

    def _validate_labels(self, given: Any) -> np.ndarray:
        try:
            labels = np.asarray(given)
        except (TypeError, ValueError, RuntimeError) as error:
            raise ValueError(
                "labels must be a flat list of integers, one per image; got entries of different lengths or kinds. "
                "Fix: [int(k) for k in labels], if every entry is one number."
            ) from error
        if self.class_names is None:
            raise ValueError(
                "labels are given without class_names. Fix: pass class_names= (--classes), in the order of the labels."
            )
        if labels.shape != (len(self.images),):
            raise ValueError(
                f"labels must have one entry per image, shape ({len(self.images)},); got shape {labels.shape}. "
                "Fix: check that images and labels come from the same list."
            )
        if labels.dtype.kind not in "iu" and labels.size:
            raise TypeError(
                f"labels must be integers, class indices 0 to {self.n_classes - 1}; got {labels.dtype}. "
                "Fix: [class_names.index(name) for name in labels]."
            )
        outside = (labels < 0) | (labels >= self.n_classes)
        if outside.any():
            i = int(np.argmax(outside))
            raise ValueError(
                f"the label of {self.images.name(i)} is {labels[i]}; with {self.n_classes} classes labels go from 0 to "
                f"{self.n_classes - 1}. Fix: count from 0, and check that class_names lists every class."
            )
        copied = labels.astype(np.int64)
        copied.flags.writeable = False
        return copied

    def __repr__(self) -> str:
        parts = [repr(self.name), f"{len(self)} images"]
        if self.class_names is not None:
            parts.append(f"{self.n_classes} classes")
        return f"ImageSet({', '.join(parts)}, {'labelled' if self.labels is not None else 'no labels'})"

    def __len__(self) -> int:
        return len(self.images)

    @property
    def n_classes(self) -> int:
        return len(self.class_names or ())

    @property
    def empty_classes(self) -> tuple[str, ...]:
        """Classes without any image; empty if labels are unknown."""
        if self.labels is None:
            return ()
        counts = np.bincount(self.labels, minlength=self.n_classes)
        return tuple(name for name, count in zip(self.unique_class_names(), counts, strict=True) if not count)

    def subset(self, indices: Sequence[int] | np.ndarray) -> ImageSet:
        """The images at `indices` (integers or a mask), in that order, with the same classes."""
        chosen = validate_indices(indices, len(self))
        provenance = {**self.provenance, "subset": {"images": len(chosen), "of": len(self)}}
        labels = None if self.labels is None else self.labels[chosen]
        return replace(self, images=self.images.take(chosen), labels=labels, provenance=provenance)

    def unique_class_names(self) -> tuple[str, ...]:
        """The class names made unique: repeated names get their class id or a number in brackets.

        >>> from pathlib import Path
        >>> from zeroshift.data.images import ImageFiles
        >>> names = ("missile", "crane", "missile")
        >>> ImageSet("two", ImageFiles(Path("."), ()), class_names=names).unique_class_names()
        ('missile', 'crane', 'missile (2)')
        """
        names = self.class_names or ()
        taken, seen, unique = set(names), Counter[str](), []
        for k, name in enumerate(names):
            seen[name] += 1
            if seen[name] > 1 and self.class_ids is not None:
                name = f"{name} ({self.class_ids[k]})"
            elif seen[name] > 1:
                while (numbered := f"{name} ({seen[name]})") in taken:
                    seen[name] += 1
                taken.add(numbered)
                name = numbered
            unique.append(name)
        return tuple(unique)

    def hash(self) -> str:
        """Hash of the file list: SHA-256 over the image names, in order, and the labels; pixels are not read."""
        digest = hashlib.sha256()
        for i in range(len(self)):
            label = None if self.labels is None else int(self.labels[i])
            # One JSON list per line, so that no name can be confused with two.
            digest.update(json.dumps([self.images.name(i), label]).encode() + b"\n")
        return digest.hexdigest()


def checked_names(argument: str, given: Sequence[str]) -> tuple[str, ...]:
    """The names of classes, which must not be a single string: its letters would be the names."""
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise TypeError(f"{argument} must be a sequence of names; got {given!r}. Fix: ('cat', 'dog').")
    for k, name in enumerate(given):
        if not isinstance(name, str) or not name.strip():
            raise ValueError(
                f"{argument}[{k}] must be a name that is not blank; got {name!r}. Fix: give every class one."
            )
    return tuple(given)
