"""Anything that is worked out once for a feature set and kept: a method's run, or a look at the features themselves."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Protocol, TypeVar

import numpy as np

from zeroshift.arrays import to_numpy
from zeroshift.features import FeatureSet

__all__ = ["AnyJob", "Job", "keyed", "run_job"]

KEY_LETTERS = 20


class Job(Protocol):
    """What the runner, the ledger and the processes know of a piece of work."""

    @property
    def features(self) -> str:
        """Name of the set; not part of the key."""

    @property
    def digest(self) -> str:
        """What the set holds: see `zeroshift.evaluate.digest`."""

    @property
    def slug(self) -> str:
        """The word a record's file name begins with."""

    @property
    def key(self) -> str:
        """The same for the same work, on every machine; other code has other keys."""

    @property
    def code(self) -> str:
        """The code that does it: see `zeroshift.evaluate.code`."""

    @property
    def timed(self) -> bool:
        """Whether its time is what it is for: such work is done alone, after all other."""

    def what(self) -> dict[str, Any]:
        """What it is, for the record."""

    def sound(self, record: Mapping[str, Any]) -> bool:
        """Whether a record holds what one of this work must hold."""

    def do(self, features: FeatureSet) -> dict[str, Any]:
        """Do it: numbers and words only."""


AnyJob = TypeVar("AnyJob", bound=Job)


def run_job(job: Job, features: FeatureSet) -> dict[str, Any]:
    return job.do(features)


def keyed(content: Mapping[str, Any]) -> str:
    """A short text that differs wherever `content` does.

    >>> keyed({"seed": 0, "shots": None}) == keyed({"shots": None, "seed": 0})
    True
    >>> keyed({"seed": 0}) == keyed({"seed": 1})
    False
    """
    text = json.dumps(content, sort_keys=True, default=_plain)
    return hashlib.sha256(text.encode()).hexdigest()[:KEY_LETTERS]


def _plain(value: Any) -> Any:
    """What JSON does not know, whole: the repr of an array would leave out its middle."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray) or hasattr(value, "detach"):
        array = to_numpy(value)
        return [str(array.dtype), list(array.shape), hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()]
    raise TypeError(
        f"a {type(value).__name__} cannot be part of a key; got {value!r}. "
        "Fix: numbers, words, arrays, or lists of them."
    )
