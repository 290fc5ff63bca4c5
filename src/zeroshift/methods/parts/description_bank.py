"""Descriptions of classes as one bank of rows, each with its class: as many of a class as there are."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from zeroshift.arrays import Array, Home, check_labels, check_matrix
from zeroshift.methods.parts.prompts import checked_prompts
from zeroshift.methods.parts.rows import unit_rows

__all__ = ["DescriptionBank", "checked_descriptions"]

Descriptions = Array | tuple[Array, np.ndarray]
"""(K, P, d), or a pair: (R, d), and the class of each row (R,)."""


class DescriptionBank(NamedTuple):
    rows: Array
    """(R, d)."""
    classes: Array
    """(R,), at home where the rows are."""

    @classmethod
    def of(cls, descriptions: Descriptions) -> DescriptionBank:
        """Of checked descriptions in either form.

        >>> DescriptionBank.of(np.ones((2, 3, 1))).classes
        array([0, 0, 0, 1, 1, 1])
        """
        if isinstance(descriptions, tuple):
            rows, classes = descriptions
        else:
            rows = descriptions.reshape(-1, descriptions.shape[2])
            classes = np.repeat(np.arange(descriptions.shape[0]), descriptions.shape[1])
        return cls(rows, Home.of(rows).index(classes))


def checked_descriptions(name: str, given: Any, prototypes: Array) -> Descriptions:
    """Unit embeddings (K, P, d), or a pair of them (R, d) and their classes (R,); refused by `name`; copied.

    In either form, descriptions that mostly lie nearer to another class's prototype than to their own are warned of.
    """
    if not isinstance(given, (tuple, list)):
        return checked_prompts(given, prototypes)
    if len(given) != 2:
        raise TypeError(
            f"{name} must be an array (K, P, d) or a pair (descriptions, classes); got a {type(given).__name__} of "
            f"{len(given)}. Fix: {name}=(descriptions, classes)."
        )
    check_matrix(f"{name} descriptions", given[0], columns=prototypes.shape[1])
    classes = check_labels(f"{name} classes", given[1], rows=given[0].shape[0], classes=prototypes.shape[0])
    home = Home.of(prototypes)
    with home.computing():
        rows = home.copy(home.bring(given[0]))
        checked_prompts(_mean_of_each_class(rows, classes, prototypes), prototypes)
    return rows, classes


def _mean_of_each_class(rows: Array, classes: np.ndarray, prototypes: Array) -> Array:
    """(K, 1, d), of unit length; the prototype of a class without descriptions, or with such as cancel out."""
    xp = Home.of(rows).xp
    means = xp.stack([xp.sum(rows[Home.of(rows).index(classes == k)], axis=0) for k in range(prototypes.shape[0])])
    means = unit_rows(means)
    lost = xp.linalg.vector_norm(means, axis=-1, keepdims=True) < 0.5
    return xp.where(lost, Home.of(rows).bring(prototypes, means.dtype), means)[:, None, :]
