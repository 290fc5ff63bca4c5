"""Which samples of a run were predicted correctly, as text in its record: a few bytes for every ten samples."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["Outcomes", "read_outcomes", "record_outcomes"]


@dataclass(frozen=True)
class Outcomes:
    """Flags for all rows of a set, in stored order."""

    scored: np.ndarray
    """(N,) whether the row was scored: labelled samples of few-shot methods are not."""
    right: np.ndarray
    """(N,) whether the method was right; False where the row was not scored."""
    zero_shot: np.ndarray
    """(N,) whether zero-shot was."""


def record_outcomes(scored: np.ndarray, right: np.ndarray, zero_shot: np.ndarray, n_rows: int) -> dict[str, Any]:
    """The outcomes for a record. `scored` holds the numbers of the scored rows in the order of the stream, `right` and
    `zero_shot` whether each of them was predicted correctly.

    >>> text = record_outcomes(np.array([2, 0]), np.array([True, False]), np.array([True, True]), 3)
    >>> read_outcomes(text, 3).right.tolist()
    [False, False, True]
    """
    return {
        "scored": None if len(scored) == n_rows else _pack(_place(scored, np.ones(len(scored), bool), n_rows)),
        "right": _pack(_place(scored, right, n_rows)),
        "zero_shot": _pack(_place(scored, zero_shot, n_rows)),
    }


def read_outcomes(recorded: Any, n_rows: int) -> Outcomes | None:
    """What `record_outcomes` wrote for a set of `n_rows` rows; None where the record has nothing that can be read."""
    if not isinstance(recorded, Mapping):
        return None
    scored = recorded.get("scored")
    found = [
        np.ones(n_rows, bool) if scored is None else _unpack(scored, n_rows),
        _unpack(recorded.get("right"), n_rows),
        _unpack(recorded.get("zero_shot"), n_rows),
    ]
    return None if any(flags is None for flags in found) else Outcomes(*found)  # type: ignore[arg-type]


def _place(rows: np.ndarray, flags: np.ndarray, n_rows: int) -> np.ndarray:
    placed = np.zeros(n_rows, bool)
    placed[rows] = flags
    return placed


def _pack(flags: np.ndarray) -> str:
    return base64.b64encode(np.packbits(flags).tobytes()).decode("ascii")


def _unpack(text: Any, n_rows: int) -> np.ndarray | None:
    try:
        packed = np.frombuffer(base64.b64decode(text, validate=True), np.uint8)
    except (TypeError, ValueError, binascii.Error):
        return None
    return np.unpackbits(packed, count=n_rows).astype(bool) if 8 * len(packed) >= n_rows else None
