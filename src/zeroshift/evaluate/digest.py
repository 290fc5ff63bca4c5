"""What a feature set holds, as one short text: two sets with the same text give every method the same answers."""

from __future__ import annotations

import hashlib
import json

import numpy as np

from zeroshift.feature_checks import blocks
from zeroshift.features import FeatureSet

__all__ = ["digest"]

BYTES = 16
"""Enough that two sets never share a digest by chance."""


def digest(features: FeatureSet) -> str:
    """Hexadecimal digits of features, views, labels, prototypes of every prompt mode and logit scale; names do not
    count.

    >>> pets = FeatureSet(np.eye(2), prototypes=np.eye(2), labels=[0, 1])
    >>> digest(pets) == digest(FeatureSet(np.eye(2), prototypes=np.eye(2), labels=[0, 1], class_names=["cat", "dog"]))
    True
    >>> digest(pets) == digest(FeatureSet(np.eye(2), prototypes=np.eye(2), labels=[1, 1]))
    False
    """
    found = hashlib.blake2b(digest_size=BYTES)
    head = {"logit_scale": features.logit_scale, "default_prompt": features.default_prompt}
    found.update(json.dumps(head, sort_keys=True).encode())
    arrays: dict[str, np.ndarray | None] = {"features": features.features, "labels": features.labels}
    arrays |= {f"prototypes {mode}": matrix for mode, matrix in sorted(features.prototypes.items())}
    arrays["views"] = features.views
    for name, array in arrays.items():
        if array is not None:
            _add(found, name, array)
    return found.hexdigest()


def _add(found: hashlib.blake2b, name: str, array: np.ndarray) -> None:
    # The kind and shape as well: the same bytes can be read in more than one way.
    found.update(f"\n{name} {array.dtype.newbyteorder('<').str} {array.shape}\n".encode())
    little = array.dtype.newbyteorder("<")
    width = int(np.prod(array.shape[1:]))
    for rows in blocks(len(array), width):
        found.update(np.ascontiguousarray(array[rows], dtype=little).tobytes())
