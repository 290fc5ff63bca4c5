"""A stream by name and parameters, before there is a set: what a run's key and record hold."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from zeroshift.evaluate.streams.clues import Clues
from zeroshift.evaluate.streams.kinds import KINDS
from zeroshift.evaluate.streams.stream import Stream
from zeroshift.features import FeatureSet
from zeroshift.suggest import did_you_mean

__all__ = ["Arrangement"]


@dataclass(frozen=True)
class Arrangement:
    """How the rows of any set are put in order.

    >>> import numpy as np
    >>> pets = FeatureSet(np.eye(2)[[0, 1, 1]], prototypes=np.eye(2), labels=[0, 1, 1])
    >>> Arrangement("random").stream(pets, seed=0).rows.tolist()
    [2, 0, 1]
    """

    kind: str
    parameters: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            guess = did_you_mean(self.kind, KINDS)
            raise ValueError(f"kind must be one of {', '.join(KINDS)}; got {self.kind!r}. {guess}".rstrip())
        known = dict(list(inspect.signature(KINDS[self.kind]).parameters.items())[2:])
        for name in self.parameters:
            if name not in known:
                offer = f"It takes {', '.join(known)}." if known else "It takes none."
                raise ValueError(
                    f"the stream {self.kind} has no parameter {name!r}. {did_you_mean(name, known)}{offer}"
                )
        for name, parameter in known.items():
            if parameter.default is inspect.Parameter.empty and name not in self.parameters:
                raise ValueError(f"the stream {self.kind} needs the parameter {name!r}, and it is not given.")

    def describe(self) -> dict[str, Any]:
        """What it is, as JSON holds it."""
        return {"kind": self.kind, **self.parameters}

    def stream(self, features: FeatureSet, *, seed: int, prompt: str | None = None) -> Stream:
        """The stream of a set; the same for the same seed."""
        return KINDS[self.kind](Clues(features, prompt), seed, **self.parameters)
