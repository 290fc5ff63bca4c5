"""One parameter of a method over several values, all else at its default: what all such experiments share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from zeroshift.evaluate import Trial
from zeroshift.experiments.parts.claims import Evidence
from zeroshift.experiments.parts.experiment import Answers
from zeroshift.experiments.parts.findings import Lines, Series, Value
from zeroshift.experiments.parts.suite import Member, Suite, Task
from zeroshift.experiments.parts.task_table import Variant
from zeroshift.experiments.parts.trials import mean_of_sets, runs

__all__ = ["ORDER_NOTE", "Curve", "Sweep", "curves", "flat", "points", "rising", "sweep_lines"]

ORDERS = 1
"""Random orders of a sweep. All values see the same one, so that what differs is not the order."""

ORDER_NOTE = "One random order, the same for every value; means over the sets of a task."

Curve = Mapping[float, Value]
"""Accuracy by value of the parameter."""


@dataclass(frozen=True)
class Sweep:
    """What is varied, and how its rows are called."""

    method: str
    """Name in the registry."""
    parameter: str
    values: tuple[float, ...]
    default: float
    protocol: str
    """"online" or "transductive": what the rows stand under."""
    paper: Mapping[float, Mapping[str, float | None]] = field(default_factory=dict)
    """What the paper printed, in percent, by value and by what it calls the task."""

    def trials(self, member: Member, value: float) -> list[Trial]:
        return runs(member, self.method, ORDERS, {self.parameter: value})

    def variants(self) -> list[Variant]:
        """A row for each value."""
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

    def curve(self, task: Task, suite: Suite, answers: Answers) -> Curve:
        """Mean accuracy over the sets of a task; values that failed are left out."""
        found = {
            value: mean_of_sets(answers, [self.trials(member, value) for member in suite.of_task(task.id)])
            for value in self.values
        }
        return {value: mean for value, mean in found.items() if mean is not None}


def curves(sweep: Sweep, suite: Suite, answers: Answers) -> list[tuple[Task, Curve]]:
    """The curve of every task that has one."""
    found = ((task, sweep.curve(task, suite, answers)) for task in suite.tasks)
    return [(task, curve) for task, curve in found if curve]


def sweep_lines(
    name: str,
    title: str,
    sweep: Sweep,
    suite: Suite,
    answers: Answers,
    *,
    x_label: str,
    caption: str = "",
    log_x: bool = False,
) -> Lines:
    """Accuracy against the parameter, a line for each task, the default marked."""
    series = [
        Series(task.title, tuple(curve), tuple(100 * value.value for value in curve.values()))
        for task, curve in curves(sweep, suite, answers)
    ]
    return Lines(name, title, x_label, "accuracy, percent", tuple(series), caption, log_x, sweep.default, steps=True)


def flat(found: Sequence[tuple[Task, Curve]], tolerance: float, start: float = 0.0) -> list[Evidence]:
    """Whether accuracy moves by at most `tolerance` points over all values from `start` on."""
    evidence = []
    for task, curve in found:
        reached = [value.value for at, value in curve.items() if at >= start]
        if reached:
            least, most = min(reached), max(reached)
            moved = points(least, most)
            told = f"{moved:.1f} points, {100 * least:.1f} to {100 * most:.1f}"
            evidence.append(Evidence(task.title, moved <= tolerance, told))
    return evidence


def rising(found: Sequence[tuple[Task, Curve]], tolerance: float) -> list[Evidence]:
    """Whether accuracy ends above where it began, and on the way never falls more than `tolerance` points below what
    a smaller value reached."""
    evidence = []
    for task, curve in found:
        reached = [value.value for _, value in sorted(curve.items())]
        best, fall = reached[0], 0.0
        for accuracy in reached:
            best = max(best, accuracy)
            fall = max(fall, points(accuracy, best))
        ends = f"{100 * reached[0]:.1f} at {min(curve):g}, {100 * reached[-1]:.1f} at {max(curve):g}"
        top = max(curve, key=lambda at: curve[at].value)
        told = f"{ends}, highest at {top:g}"
        evidence.append(Evidence(task.title, reached[-1] > reached[0] and fall <= tolerance, told))
    return evidence


def points(low: float, high: float) -> float:
    """From one fraction to another, in percentage points.

    >>> points(0.25, 0.5)
    25.0
    """
    return 100 * (high - low)


def _label(value: float, default: float) -> str:
    return f"{value:g} (default)" if value == default else f"{value:g}"
