"""Every number of the anchored mixture, and the values around its default that it is tried at."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from zeroshift.evaluate import Contestant

__all__ = ["CONSTANTS", "METHODS", "Constant", "constants_of"]

METHODS = {"online": "anchored_mixture_online", "transductive": "anchored_mixture_transductive"}
"""By protocol."""

BOTH = tuple(METHODS)
ONLINE, TRANSDUCTIVE = BOTH[:1], BOTH[1:]

CENTRES, LIKELIHOOD, CAUTION, ANSWERS = "class means", "likelihood", "caution", "answers and renewal"
"""What a constant is about: constants of one kind are drawn together."""


@dataclass(frozen=True)
class Constant:
    """A number that is varied alone."""

    name: str
    """Of the parameter."""
    values: tuple[float, ...]
    """Tried beside the default: about half and double of it, and further where the parameter allows."""
    about: str
    protocols: tuple[str, ...] = BOTH
    """Those whose method takes it, and where it makes a difference."""
    end: int | None = None
    """Which of two, where the parameter is a pair; the other stays."""
    end_name: str = ""

    @property
    def label(self) -> str:
        return self.name if self.end is None else f"{self.name}, {self.end_name}"

    def default(self, protocol: str) -> float:
        """The value it has where none is given.

        >>> CONSTANTS[0].default("online")
        1.0
        """
        given = Contestant(METHODS[protocol]).settings[self.name]
        return float(given if self.end is None else given[self.end])

    def parameters(self, protocol: str, value: float) -> Mapping[str, Any]:
        """What the method is made with.

        >>> least = next(constant for constant in CONSTANTS if constant.label == "balance, least")
        >>> least.parameters("online", 0.2)
        {'balance': (0.2, 0.8)}
        """
        if self.end is None:
            return {self.name: value}
        pair = list(Contestant(METHODS[protocol]).settings[self.name])
        pair[self.end] = value
        return {self.name: tuple(pair)}


CONSTANTS = (
    Constant("anchor_count", (0.25, 0.5, 2.0, 4.0), CENTRES),
    Constant("cautious_anchor_count", (1.0, 2.0, 8.0, 16.0), CENTRES),
    Constant("spread_range", (0.1, 0.15, 0.6, 0.9), CENTRES, end=0, end_name="least"),
    Constant("spread_range", (1.0, 1.5, 6.0, 12.0), CENTRES, end=1, end_name="greatest"),
    Constant("spread_samples", (0.5, 1.0, 4.0, 8.0), CENTRES),
    Constant("shrinkage", (0.375, 0.6, 0.85, 0.95), LIKELIHOOD),
    Constant("shrinkage_samples", (1.0, 2.0, 8.0, 16.0), LIKELIHOOD),
    Constant("reliability_samples", (8.0, 16.0, 64.0, 128.0), LIKELIHOOD),
    Constant("weight", (0.25, 0.5, 2.0, 4.0), LIKELIHOOD),
    # A whole set has more samples than any of these, or is too small to learn from.
    Constant("first_samples", (2, 4, 16, 32), ANSWERS, ONLINE),
    Constant("correlation", (0.015, 0.03, 0.12, 0.24), CAUTION, ONLINE),
    Constant("balance", (0.1, 0.2, 0.6, 0.75), CAUTION, end=0, end_name="least"),
    Constant("balance", (0.45, 0.6, 0.9, 1.0), CAUTION, end=1, end_name="enough"),
    Constant("relief", (0.125, 0.25, 0.5, 0.75), CAUTION, ONLINE),
    Constant("calm", (0.015625, 0.03125, 0.125, 0.25), ANSWERS),
    Constant("staleness", (0.015625, 0.0625, 0.125, 0.25), ANSWERS, ONLINE),
    Constant("rounds", (2, 5, 20, 40), ANSWERS, TRANSDUCTIVE),
)


def constants_of(protocol: str) -> list[Constant]:
    """Those that make a difference there."""
    return [constant for constant in CONSTANTS if protocol in constant.protocols]
