"""Labels as users write them, names or numbers, to class indices."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import numpy as np

from zeroshift.suggest import did_you_mean

__all__ = ["class_indices"]

NUMBER = re.compile(r"[+-]?\d+")


def class_indices(
    written: Sequence[str], classes: Sequence[str] | None, place: Callable[[int], str], fix: str
) -> tuple[tuple[str, ...], np.ndarray]:
    """Class names and the class index of each label.

    Without `classes`, the different names in their order are the classes; numbers alone cannot say what they mean. With
    them, labels are names of theirs or, where none of the labels is a name, numbers from 0.

    Parameters
    ----------
    written : the labels as text.
    classes : the class names, where known.
    place : where label `i` stands, for messages.
    fix : what to do about a label that is none of the classes, for messages.

    >>> class_indices(["dog", "cat", "dog"], None, str, fix="...")
    (('cat', 'dog'), array([1, 0, 1]))
    >>> class_indices(["1", "0"], ["cat", "dog"], str, fix="...")
    (('cat', 'dog'), array([1, 0]))
    """
    numbers = all(NUMBER.fullmatch(label) for label in written)
    if classes is None:
        if numbers and written:
            raise ValueError(
                f"{place(0)}: the label {written[0]!r} is a number, as are all, and no class names say what it means. "
                "Fix: pass classes= (--classes), the names in the order of the numbers."
            )
        classes = sorted(set(written))
    index_of = {name: k for k, name in reversed(list(enumerate(classes)))}
    if numbers and not any(label in index_of for label in written):
        index_of = {str(k): k for k in range(len(classes))}
        written = [str(int(label)) for label in written]  # "007" is 7
    indices = np.empty(len(written), np.int64)
    for i, label in enumerate(written):
        if label not in index_of:
            raise ValueError(f"{place(i)}: {_unknown(label, classes, numbers)}Fix: {fix}.")
        indices[i] = index_of[label]
    return tuple(classes), indices


def _unknown(label: str, classes: Sequence[str], numbers: bool) -> str:
    if numbers:
        return f"the label is {label}, but the {len(classes)} classes are numbered 0 to {len(classes) - 1}. "
    shown = ", ".join(map(repr, classes[:5])) + (", ..." if len(classes) > 5 else "")
    return f"the label {label!r} is none of the {len(classes)} classes ({shown}). {did_you_mean(label, classes)}"
