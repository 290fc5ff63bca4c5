"""The streams that are no random order: by kind, parameters and what they are called, and what they are in words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from zeroshift.evaluate import Arrangement
from zeroshift.evaluate.streams.correlated import CONCENTRATION
from zeroshift.evaluate.streams.long_tail import IMBALANCE
from zeroshift.experiments.parts.domain_sets import StackedMember
from zeroshift.experiments.parts.neighbours import WINDOW
from zeroshift.experiments.parts.suite import Member

__all__ = ["LONG_TAIL", "RANDOM", "STREAMS", "STREAMS_TOLD", "Kind"]


@dataclass(frozen=True)
class Kind:
    """A row: a kind of stream."""

    label: str
    kind: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    domains: bool = False
    """Whether it runs over stacked sets, not over each alone."""

    def arrangement(self, member: Member) -> Arrangement:
        if not isinstance(member, StackedMember):
            return Arrangement(self.kind, self.parameters)
        where = {"domains": list(member.domains), "names": list(member.domain_names)}
        return Arrangement(self.kind, {**self.parameters, **where})


BATCH, CLASSES, SURE = WINDOW, 2, 2
"""Samples of a batch and classes in it, where they are few; confident samples a class that stay."""

RANDOM, LONG_TAIL = Kind("random", "random"), Kind("long tail", "long_tail", {"imbalance": IMBALANCE})

STREAMS = (
    RANDOM,
    Kind("class-sorted", "class_sorted"),
    Kind("correlated", "dirichlet", {"concentration": CONCENTRATION}),
    Kind("few classes a batch", "few_classes", {"classes_per_batch": CLASSES, "batch_size": BATCH}),
    LONG_TAIL,
    Kind("few confident", "few_confident", {"per_class": SURE}),
    Kind("continual", "continual", domains=True),
    Kind("gradual", "gradual", {"overlap": 0.5}, domains=True),
    Kind("mixed", "mixed", domains=True),
)

STREAMS_TOLD = (
    f"class-sorted: one class after the other. correlated: a Dirichlet draw for each class, of concentration "
    f"{CONCENTRATION:g} in all, says how it falls on as many stretches of time as there are classes. few classes a "
    f"batch: at most {CLASSES} in every {BATCH}, as far as classes have samples enough; those that have not come last. "
    f"long tail: up to {IMBALANCE:g} times as many of one class as of another, and never more than the smallest class "
    f"has. few confident: of the surest half of what is taken for a class only {SURE} come."
)
"""What stands under a table of them."""
