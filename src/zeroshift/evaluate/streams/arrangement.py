"""A stream by name and parameters, before there is a set: what a run's key and record hold."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from zeroshift.evaluate.streams.checks import checked_seed
from zeroshift.evaluate.streams.clues import Clues
from zeroshift.evaluate.streams.kinds import KINDS, checked, parameters_of
from zeroshift.evaluate.streams.stream import Stream
from zeroshift.features import FeatureSet
from zeroshift.suggest import did_you_mean

__all__ = ["UNIMPORTANT", "Arrangement"]

UNIMPORTANT = ("names",)
"""Parameters that change no row and no order."""

NEEDED = (
    " It says how many rows each domain has, in the order they lie in the set. Fix: stacked([first, second]) makes one "
    "set of several; then {'domains': [first.n_samples, second.n_samples]}."
)
"""What `domains` is, the one parameter that has no default."""


@dataclass(frozen=True)
class Arrangement:
    """How the rows of any set are put in order.

    `kind` is one of `KINDS`, each a function of `zeroshift.evaluate.streams` with the parameters it takes: random
    (`random_order`), easy_to_hard, hard_to_easy, class_sorted, dirichlet, few_classes, long_tail, few_confident; and
    over a set that is `stacked` from several, for which `domains` says how many rows each has, continual, gradual,
    mixed.

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
        known = parameters_of(self.kind)
        for name in self.parameters:
            if name not in known:
                offer = f"It takes {', '.join(known)}." if known else "It takes none."
                raise ValueError(
                    f"the stream {self.kind} has no parameter {name!r}. {did_you_mean(name, known)}{offer}"
                )
        for name, parameter in known.items():
            if parameter.default is inspect.Parameter.empty and name not in self.parameters:
                raise ValueError(f"the stream {self.kind} needs the parameter {name!r}, and it is not given.{NEEDED}")
        checked(self.kind, self.parameters)

    def describe(self) -> dict[str, Any]:
        """What it is, as JSON holds it: the defaults as well, however the numbers were typed.

        >>> Arrangement("long_tail", {"imbalance": 20}).describe()
        {'kind': 'long_tail', 'imbalance': 20.0, 'most': None}
        """
        return {"kind": self.kind, **checked(self.kind, self.parameters)}

    @property
    def identity(self) -> dict[str, Any]:
        """What the stream depends on: not what its domains are called."""
        return {name: value for name, value in self.describe().items() if name not in UNIMPORTANT}

    def stream(self, features: FeatureSet, *, seed: int, prompt: str | None = None) -> Stream:
        """The stream of a set; the same for the same seed."""
        return KINDS[self.kind](Clues(features, prompt), checked_seed(seed), **self.parameters)
