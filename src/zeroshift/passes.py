"""Learning from a set that is stored in parts, on several machines: passes over the parts whose results are added up.

A method that can do this has `learn_in_passes`, a generator. It yields a `Pass`, gets back the sum of its results over
all parts, and so on, until the method has learned the set. It may also yield `RowsWanted` and gets these rows.
`zeroshift.distributed` runs the passes.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from zeroshift.arrays import Array

__all__ = ["Learning", "Pass", "RowsWanted", "on_device"]

Numbers = dict[str, np.ndarray]
"""The result of a pass over a part of the rows: NumPy arrays by name."""


class Pass(ABC):
    """A function of a part of the rows, sent to other processes, whose results are added in the order of the parts."""

    sample: int | None = None
    """Number of the sample of the rows that is enough; None for all rows. Different samples have different rows, as far
    as there are enough."""
    first_visit: bool = True
    """Whether no earlier pass has seen the rows; if so, they are checked."""

    @abstractmethod
    def part(self, rows: Array, first_row: int, device: str | None) -> Numbers:
        """The result for rows of the set, of which the first has the number `first_row`; computed with torch on
        `device`, or with NumPy if it is None."""

    @abstractmethod
    def add(self, total: Numbers, part: Mapping[str, np.ndarray]) -> Numbers:
        """The result for all rows so far, `total`, with that of the next part. `total` may be changed."""


@dataclass(frozen=True)
class RowsWanted:
    """The rows with these numbers are needed, in this order."""

    numbers: np.ndarray


Learning = Generator[Pass | RowsWanted, Any, None]


def on_device(params: Mapping[str, Any], device: str | None) -> dict[str, Any]:
    """Parameters of a method with its prototypes as a torch tensor on this device; unchanged for None."""
    if device is None:
        return dict(params)
    __import__("torch")  # optional
    prototypes = sys.modules["torch"].as_tensor(params["prototypes"], device=device)
    return {**params, "prototypes": prototypes}
