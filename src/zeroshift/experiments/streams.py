"""Not in the paper: online methods on streams that are no random order, and what is left of their gain there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from zeroshift.evaluate import Arrangement, Job, Trial
from zeroshift.experiments.parts.choice import one_a_task
from zeroshift.experiments.parts.domain_sets import DOMAIN_ROWS, StackedMember, stacked_members
from zeroshift.experiments.parts.experiment import Answers, Experiment, Options
from zeroshift.experiments.parts.findings import Cell, Column, Finding, HeatMap, HeatMaps, Remark, Row, Table, Value
from zeroshift.experiments.parts.suite import Member, Suite
from zeroshift.experiments.parts.trials import runs

__all__ = ["EXPERIMENT", "METHODS", "STREAMS"]

METHODS = {"adapt_online": "ADAPT", "tda": "TDA", "dmn": "DMN", "oga": "OGA"}
"""Ours, and three that keep memories of other kinds; what each is called."""

OURS = "adapt_online"


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


STREAMS = (
    Kind("random", "random"),
    Kind("class-sorted", "class_sorted"),
    Kind("correlated", "dirichlet", {"concentration": 0.1}),
    Kind("few classes a batch", "few_classes", {"classes_per_batch": 2, "batch_size": 64}),
    Kind("long tail", "long_tail", {"imbalance": 50}),
    Kind("few confident", "few_confident", {"per_class": 2}),
    Kind("continual", "continual", domains=True),
    Kind("gradual", "gradual", {"overlap": 0.5}, domains=True),
    Kind("mixed", "mixed", domains=True),
)

NOTES = (
    "Gain over zero-shot on the very rows that came, in points; mean over sets, one a task, each counting the same. "
    "ADAPT in several orders within each set, the peers and streams across domains in one.",
    "class-sorted: one class after the other. correlated: a Dirichlet draw of concentration 0.1 spreads each class "
    "over time. few classes a batch: two in every 64. long tail: 50 times as many of one class as of another. few "
    "confident: all but two of each class's surest half never come.",
)


def _members(kind: Kind, suite: Suite) -> Sequence[Member]:
    if kind.domains:
        return [member for member in suite.members if isinstance(member, StackedMember)]
    return one_a_task(_plain(suite)).members


def _plain(suite: Suite) -> Suite:
    """Without the sets made of others."""
    return Suite(tuple(member for member in suite.members if not isinstance(member, StackedMember)))


def _trials(kind: Kind, method: str, member: Member, options: Options) -> list[Trial]:
    orders = options.orders if method == OURS and not kind.domains else 1
    return runs(member, method, orders, arrangement=kind.arrangement(member))


def _plan(suite: Suite, options: Options) -> Sequence[Job]:
    return [
        trial
        for kind in STREAMS
        for member in _members(kind, suite)
        for method in METHODS
        for trial in _trials(kind, method, member, options)
    ]


def _find(suite: Suite, options: Options, answers: Answers) -> Sequence[Finding]:
    kinds = [kind for kind in STREAMS if _members(kind, suite)]
    gains = {(kind.label, method): _gain(kind, method, suite, options, answers) for kind in kinds for method in METHODS}
    rows = [
        Row(
            (kind.label, _baseline(kind, suite, options, answers), *(gains[kind.label, method] for method in METHODS)),
            "across domains" if kind.domains else "within each set",
        )
        for kind in kinds
    ]
    worst = {method: _worst([kind.label for kind in kinds], method, gains) for method in METHODS}
    rows.append(Row(("worst stream", None, *map(_told, worst.values())), "worst", strong=True))
    columns = (
        Column("stream", "text"),
        Column("Zero-shot", "percent"),
        *(Column(title, "points") for title in METHODS.values()),
    )
    notes = (*NOTES, _domains(suite))
    table = Table("streams", "Gain over zero-shot, by stream and method", columns, tuple(rows), notes)
    return [table, *_map(kinds, gains), _losers(gains), *_fall(worst, gains)]


def _gain(kind: Kind, method: str, suite: Suite, options: Options, answers: Answers) -> Value | None:
    """Mean over sets order by order, in points; None unless every run is there."""
    by_set = []
    for member in _members(kind, suite):
        trials = _trials(kind, method, member, options)
        records = answers.all_of(trials)
        if len(records) < len(trials):
            return None
        by_set.append([100 * (record["accuracy"] - record["zero_shot_accuracy"]) for record in records])
    orders = [float(np.mean(order)) for order in zip(*by_set, strict=True)]
    if len(orders) == 1:
        return Value(orders[0])
    return Value(float(np.mean(orders)), min(orders), max(orders))


def _baseline(kind: Kind, suite: Suite, options: Options, answers: Answers) -> Value | None:
    trials = [t for member in _members(kind, suite) for t in _trials(kind, OURS, member, options)]
    found = [float(record["zero_shot_accuracy"]) for record in answers.all_of(trials)]
    return Value(float(np.mean(found))) if found else None


Gains = Mapping[tuple[str, str], Value | None]
"""By stream and method."""


def _worst(labels: Sequence[str], method: str, gains: Gains) -> tuple[str, float] | None:
    found = [(value.value, label) for label in labels if (value := gains[label, method]) is not None]
    return min(found)[::-1] if found else None


def _told(worst: tuple[str, float] | None) -> Cell:
    return None if worst is None else f"{worst[0]} ({worst[1]:+.1f})"


def _map(kinds: Sequence[Kind], gains: Gains) -> list[HeatMaps]:
    values = [[gains[kind.label, method] for method in METHODS] for kind in kinds]
    if any(value is None for row in values for value in row):
        return []
    field = HeatMap(
        "",
        np.array([[value.value for value in row if value is not None] for row in values]),
        tuple(kind.label for kind in kinds),
        tuple(METHODS.values()),
    )
    return [
        HeatMaps(
            "gains-by-stream",
            "Gain over zero-shot",
            (field,),
            "Rows are streams, columns are methods; below zero a method does harm.",
            unit="points",
            diverging=True,
            written=True,
        )
    ]


def _losers(gains: Gains) -> Remark:
    lost = [
        f"{METHODS[method]} on {label} ({value.value:+.1f})"
        for (label, method), value in gains.items()
        if value is not None and value.value < 0
    ]
    if not lost:
        return Remark("No method ends below zero-shot on any stream.")
    return Remark(f"Below zero-shot, in points: {'; '.join(lost)}.", kind="warning")


def _fall(worst: Mapping[str, tuple[str, float] | None], gains: Gains) -> list[Remark]:
    """What the worst stream costs online ADAPT."""
    ours, random = worst[OURS], gains["random", OURS]
    if ours is None or random is None:
        return []
    return [
        Remark(
            f"{METHODS[OURS]} gains {random.value:+.1f} points in a random order and {ours[1]:+.1f} on its worst "
            f"stream ({ours[0]})."
        )
    ]


def _domains(suite: Suite) -> str:
    made = [member for member in suite.members if isinstance(member, StackedMember)]
    if not made:
        return "No streams across domains: no two sets have the same classes, prototypes and logit scale."
    said = "; ".join(", ".join(member.domain_names) for member in made)
    return f"Across domains, in this order: {said}; at most {DOMAIN_ROWS:,} samples of each."


EXPERIMENT = Experiment(
    name="streams",
    title="Streams that are no random order",
    question="What is left of the gain of online methods when neighbours share a class, when classes are of unequal "
    "size, when sure samples are rare, or when the domain changes on the way?",
    plan=_plan,
    find=_find,
    sets=stacked_members,
)
