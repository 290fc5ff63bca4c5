"""Checksums of JSON content and of arrays: SHA-256, which detects damage and careless edits, not forgery."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import numpy as np

__all__ = ["array_checksum", "has_valid_checksum", "with_checksum"]

LETTERS = 32


def with_checksum(content: Mapping[str, Any]) -> dict[str, Any]:
    """JSON content with a field `checksum` of everything else in it.

    >>> has_valid_checksum(with_checksum({"accuracy": 0.5}))
    True
    >>> has_valid_checksum({**with_checksum({"accuracy": 0.5}), "accuracy": 0.9})
    False
    """
    rest = {name: value for name, value in content.items() if name != "checksum"}
    text = json.dumps(rest, sort_keys=True)
    return {**rest, "checksum": hashlib.sha256(text.encode()).hexdigest()[:LETTERS]}


def has_valid_checksum(content: Mapping[str, Any]) -> bool:
    return with_checksum(content)["checksum"] == content.get("checksum")


def array_checksum(name: str, array: np.ndarray) -> str:
    """A checksum of the name, type, shape and numbers of an array."""
    little = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
    found = hashlib.sha256(json.dumps([name, little.dtype.str, list(array.shape)]).encode())
    found.update(little.reshape(-1).view(np.uint8).data)
    return found.hexdigest()[:LETTERS]
