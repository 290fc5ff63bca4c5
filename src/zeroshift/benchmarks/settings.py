"""What is measured: a problem, where, with which engines, how thoroughly; and the grids of sizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import product
from typing import Any

from zeroshift.adapt.engines import ENGINES
from zeroshift.parameters import Number
from zeroshift.suggest import did_you_mean

__all__ = ["DEFAULT", "FULL", "QUICK", "Settings", "Size", "Where", "checked_engines", "sizes"]

FORMAT = 2
"""Raised when measuring or the generator changes so much that older cells must not be gone on with."""

MADE_UP = "clip_like"
"""The source that is generated; any other is a feature set."""

Size = tuple[int, int, int]
"""(classes, dimension, samples)."""

QUICK: tuple[Size, ...] = ((10, 256, 1000), (100, 256, 1000), (1000, 256, 1000), (1000, 512, 1000))
"""A minute or two on two cores."""

DEFAULT: tuple[Size, ...] = (
    (10, 512, 5000),
    (100, 512, 5000),
    (1000, 256, 5000),
    (1000, 512, 5000),
    (1000, 1024, 5000),
    (1000, 512, 20000),
)
"""One line over K, one over d, one over the length of the stream, crossing at ImageNet's size: a few minutes."""

FULL: tuple[Size, ...] = tuple(product((10, 100, 1000), (256, 512, 1024), (1000, 5000, 20000)))
"""All of them: the better part of an hour."""

POINTS = (0.0, 0.01, 0.05, 0.2, 0.4, 0.7, 0.97)
"""Where along a stream engines are stepped from a saved state, as shares of its length."""


@dataclass(frozen=True)
class Where:
    library: str = "numpy"
    device: str = "cpu"
    threads: int | None = None
    """None leaves the libraries their own choice."""


@dataclass(frozen=True)
class Settings:
    """One cell of the table. Two cells with equal settings measure the same thing."""

    classes: int
    dimension: int
    samples: int
    where: Where
    engines: tuple[str, ...]
    source: str = MADE_UP
    steps: int = 3
    """Sampled steps of each kind (entering a bank, or not) at every point."""
    repeats: int = 3
    seed: int = 0
    memory: bool = True

    @property
    def key(self) -> str:
        where = f"{self.where.library} {self.where.device} threads {self.where.threads or 'default'}"
        return f"{self.source} K={self.classes} d={self.dimension} N={self.samples} {where}"

    def record(self) -> dict[str, Any]:
        record = asdict(self)
        record["engines"] = list(self.engines)
        return {"format": FORMAT, **record}

    def points(self) -> list[int]:
        """Samples seen at the points; the last leaves rows to step through."""
        return sorted({min(int(share * self.samples), self.samples - 1) for share in POINTS})


def sizes(classes: Sequence[int], dimensions: Sequence[int], samples: Sequence[int]) -> tuple[Size, ...]:
    """Every combination, checked."""
    for name, values in (("classes", classes), ("dimensions", dimensions), ("samples", samples)):
        low = {"classes": 2, "dimensions": 8, "samples": 10}[name]
        for value in values:
            Number(low, integer=True).check(name, value)
    return tuple(product(classes, dimensions, samples))


def checked_engines(names: Sequence[str] | None) -> tuple[str, ...]:
    """Engines by name, all of them by default; `direct`, which the others are compared with, always comes first."""
    known = tuple(ENGINES)
    for name in names or ():
        if name not in known:
            hint = did_you_mean(name, known)
            raise ValueError(f"engines must be among {', '.join(known)}; got {name!r}. {hint}".rstrip())
    wanted = known if names is None else names
    return tuple(dict.fromkeys(["direct", *wanted]))
