"""Experiments that vary one parameter of a method: rows, curves and evidence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from zeroshift.evaluate import Trial
from zeroshift.experiments._shared.claims import ClaimEvidence, all_hold, effective_samples, higher, within
from zeroshift.experiments._shared.experiment import JobResults
from zeroshift.experiments._shared.findings import Lines, Series, Value
from zeroshift.experiments._shared.suite import NO_ORDER, Member, Suite, Task
from zeroshift.experiments._shared.tables import Variant
from zeroshift.experiments._shared.trials import mean_of_sets, points, runs

__all__ = ["ORDER_NOTE", "Curve", "Sweep", "curves", "rising_evidence", "stability_evidence", "sweep_lines"]

ORDERS = 1
"""Number of random orders of a sweep; all values see the same order."""

ORDER_NOTE = f"Online: one random order, the same for every value. {NO_ORDER} Means over the sets of a task."


@dataclass(frozen=True)
class Curve:
    """Mean accuracy over the sets of a task by value of the parameter; failed values are omitted."""

    task: Task
    values: Mapping[float, Value]
    whole: bool
    """Whether no value failed; nothing is concluded from incomplete curves."""
    samples: float
    """Number of samples for each accuracy: see `effective_samples`."""

    @classmethod
    def of(cls, task: Task, found: Mapping[float, Value | None], samples: float) -> Curve:
        values = {at: value for at, value in found.items() if value is not None}
        return cls(task, values, len(values) == len(found), samples)


@dataclass(frozen=True)
class Sweep:
    """A parameter and its values."""

    method: str
    """Name in the registry."""
    parameter: str
    values: tuple[float, ...]
    default: float
    protocol: str
    """"online" or "transductive"; the group of the rows."""
    paper: Mapping[float, Mapping[str, float | None]] = field(default_factory=dict)
    """Numbers of the paper in percent, by value and by task name."""

    def trials(self, member: Member, value: float) -> list[Trial]:
        return runs(member, self.method, ORDERS, {self.parameter: value})

    def variants(self) -> list[Variant]:
        """One row per value."""
        return [
            Variant(
                label=_label(value, self.default),
                trials=partial(self.trials, value=value),
                group=self.protocol,
                paper=self.paper.get(value, {}),
                strong=value == self.default,
            )
            for value in self.values
        ]

    def curve(self, task: Task, suite: Suite, results: JobResults) -> Curve:
        members = suite.of_task(task.id)
        found = {
            value: mean_of_sets(results, [self.trials(member, value) for member in members]) for value in self.values
        }
        return Curve.of(task, found, effective_samples(member.dataset.n_samples for member in members))


def curves(sweep: Sweep, suite: Suite, results: JobResults) -> list[Curve]:
    """The curves of all tasks that have values."""
    found = (sweep.curve(task, suite, results) for task in suite.tasks)
    return [curve for curve in found if curve.values]


def sweep_lines(
    name: str,
    title: str,
    sweep: Sweep,
    suite: Suite,
    results: JobResults,
    *,
    x_label: str,
    caption: str = "",
    log_x: bool = False,
) -> Lines:
    """Accuracy against the parameter, one line per task, with the default marked."""
    series = [
        Series(curve.task.title, tuple(curve.values), tuple(100 * value.value for value in curve.values.values()))
        for curve in curves(sweep, suite, results)
    ]
    return Lines(name, title, x_label, "accuracy, percent", tuple(series), caption, log_x, sweep.default, steps=True)


def stability_evidence(found: Sequence[Curve], tolerance: float, start: float = 0.0) -> list[ClaimEvidence]:
    """Whether accuracy varies by at most `tolerance` points over all values from `start`; complete curves only."""
    evidence = []
    for curve in found:
        reached = [value.value for at, value in curve.values.items() if at >= start]
        if curve.whole and len(reached) > 1:
            least, most = min(reached), max(reached)
            detail = f"{points(least, most):.1f} points, {100 * least:.1f}% to {100 * most:.1f}%"
            holds = within(least, most, tolerance / 100, samples=curve.samples)
            evidence.append(ClaimEvidence(curve.task.title, holds, detail))
    return evidence


def rising_evidence(found: Sequence[Curve], tolerance: float) -> list[ClaimEvidence]:
    """Whether accuracy ends higher than it starts and never falls more than `tolerance` points below an earlier value;
    complete curves with at least two values only."""
    evidence = []
    for curve in found:
        reached = [value.value for _, value in sorted(curve.values.items())]
        if not curve.whole or len(reached) < 2:
            continue
        best, fallen = reached[0], (reached[0], reached[0])
        for accuracy in reached:
            best = max(best, accuracy)
            fallen = max(fallen, (accuracy, best), key=lambda pair: pair[1] - pair[0])
        first, *_, last = reached
        ends = f"{100 * first:.1f}% at {min(curve.values):g}, {100 * last:.1f}% at {max(curve.values):g}"
        top = max(curve.values, key=lambda at: curve.values[at].value)
        rises = higher(last, first, samples=curve.samples)
        steady = within(*fallen, tolerance / 100, samples=curve.samples)
        evidence.append(ClaimEvidence(curve.task.title, all_hold((rises, steady)), f"{ends}, highest at {top:g}"))
    return evidence


def _label(value: float, default: float) -> str:
    return f"{value:g} (default)" if value == default else f"{value:g}"
