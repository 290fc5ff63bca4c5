"""Not in the paper: each constant of the anchored mixture varied by itself; is its default on a plateau?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from zeroshift.evaluate import Job, MethodSpec, Trial
from zeroshift.experiments._shared.experiment import Experiment, JobResults, Options, slug
from zeroshift.experiments._shared.findings import Column, Finding, Lines, Remark, Row, Series, Table, Value
from zeroshift.experiments._shared.suite import NO_ORDER, Member, Suite, describe_sets
from zeroshift.experiments._shared.trials import mean_of_sets, measured, points, runs

__all__ = ["CONSTANTS", "EXPERIMENT", "METHODS", "PLATEAU", "Constant", "constants_of"]


METHODS = {"online": "anchored_mixture_online", "transductive": "anchored_mixture_transductive"}
"""By protocol."""

BOTH = tuple(METHODS)
ONLINE, TRANSDUCTIVE = BOTH[:1], BOTH[1:]

CENTRES, LIKELIHOOD, CAUTION, ANSWERS = "class means", "likelihood", "caution", "answers and renewal"
"""Topics of constants; one figure per topic."""


@dataclass(frozen=True)
class Constant:
    """A constant that is varied by itself."""

    name: str
    """Name of the parameter."""
    values: tuple[float, ...]
    """Values other than the default: about half and twice the default, and further if allowed."""
    about: str
    protocols: tuple[str, ...] = BOTH
    """Protocols whose method has the parameter and depends on it."""
    end: int | None = None
    """Index of the varied value if the parameter is a pair."""
    end_name: str = ""

    @property
    def label(self) -> str:
        return self.name if self.end is None else f"{self.name}, {self.end_name}"

    def default(self, protocol: str) -> float:
        """The default value.

        >>> CONSTANTS[0].default("online")
        1.0
        """
        given = MethodSpec(METHODS[protocol]).settings[self.name]
        return float(given if self.end is None else given[self.end])

    def parameters(self, protocol: str, value: float) -> Mapping[str, Any]:
        """Parameters of the method with this value.

        >>> least = next(constant for constant in CONSTANTS if constant.label == "varying, least")
        >>> least.parameters("online", 0.2)
        {'varying': (0.2, 0.5)}
        """
        if self.end is None:
            return {self.name: value}
        pair = list(MethodSpec(METHODS[protocol]).settings[self.name])
        pair[self.end] = value
        return {self.name: tuple(pair)}


CONSTANTS = (
    Constant("anchor_count", (0.25, 0.5, 2.0, 4.0), CENTRES),
    Constant("cautious_anchor_count", (1.0, 2.0, 8.0, 16.0), CENTRES),
    Constant("spread_range", (0.1, 0.15, 0.6, 0.9), CENTRES, end=0, end_name="least"),
    Constant("spread_range", (1.0, 1.5, 6.0, 12.0), CENTRES, end=1, end_name="greatest"),
    Constant("shrinkage", (0.375, 0.6, 0.85, 0.95), LIKELIHOOD),
    Constant("shrinkage_samples", (1.0, 2.0, 8.0, 16.0), LIKELIHOOD),
    Constant("reliability_samples", (8.0, 16.0, 64.0, 128.0), LIKELIHOOD),
    Constant("weight", (0.25, 0.5, 2.0, 4.0), LIKELIHOOD),
    # Not for whole sets, which have more samples or are too small to learn from.
    Constant("first_samples", (2, 4, 16, 32), ANSWERS, ONLINE),
    Constant("occurring", (0.1, 0.2, 0.6, 0.75), CAUTION, end=0, end_name="least"),
    Constant("occurring", (0.45, 0.6, 0.9, 1.0), CAUTION, end=1, end_name="enough"),
    Constant("varying", (0.2, 0.3, 0.45, 0.5), CAUTION, end=0, end_name="least"),
    Constant("varying", (0.42, 0.45, 0.6, 0.7), CAUTION, end=1, end_name="enough"),
    # Nothing changes in random orders; benchmarks/ordered_streams.py is about the others.
    Constant("relative_samples", (8.0, 16.0, 64.0, 128.0), CAUTION, ONLINE),
    Constant("balance", (0.25, 0.5, 0.9, 1.0), CAUTION, ONLINE),
    Constant("few_classes_weight", (0.125, 0.25, 0.75, 1.0), CAUTION, TRANSDUCTIVE),
    Constant("proportions", (0.25, 0.5, 2.0, 4.0), CAUTION, TRANSDUCTIVE),
    Constant("calm", (0.015625, 0.03125, 0.125, 0.25), ANSWERS),
    Constant("staleness", (0.015625, 0.0625, 0.125, 0.25), ANSWERS, ONLINE),
    Constant("rounds", (2, 5, 20, 40), ANSWERS, TRANSDUCTIVE),
)


def constants_of(protocol: str) -> list[Constant]:
    """The constants that matter for a protocol."""
    return [constant for constant in CONSTANTS if protocol in constant.protocols]


PLATEAU = 0.5
"""Points: a default is on a plateau if no tried value is better by this much in the mean over sets."""

ORDERS = 1
"""Always one order, because there are about sixty values; all see the same order."""


def _trials(member: Member, protocol: str, constant: Constant | None = None, value: float = 0.0) -> list[Trial]:
    """Runs with one constant at `value`, or with defaults only."""
    given = None if constant is None else constant.parameters(protocol, value)
    return runs(member, METHODS[protocol], ORDERS, given)


def _plan(suite: Suite, options: Options) -> Sequence[Job]:
    jobs: list[Job] = []
    for member in suite.members:
        for protocol in METHODS:
            jobs += _trials(member, protocol)
            for constant in constants_of(protocol):
                jobs += [trial for value in constant.values for trial in _trials(member, protocol, constant, value)]
    return jobs


@dataclass(frozen=True)
class TriedValue:
    """Results of one value of one constant as means over sets; only if no run failed."""

    constant: Constant
    value: float
    accuracy: float
    change: float
    """Change against the default, in points."""
    worst_change: float
    worst_set: str
    calibration_error: float


def _tried(constant: Constant, value: float, protocol: str, suite: Suite, results: JobResults) -> TriedValue | None:
    changes: dict[str, float] = {}
    for member in suite.members:
        before = measured(results, _trials(member, protocol))
        after = measured(results, _trials(member, protocol, constant, value))
        if before is None or after is None:
            return None
        changes[member.name] = points(before.value, after.value)
    by_set = [_trials(member, protocol, constant, value) for member in suite.members]
    accuracy, error = mean_of_sets(results, by_set), mean_of_sets(results, by_set, "calibration_error")
    if accuracy is None or error is None:
        return None
    worst = min(changes, key=lambda name: changes[name])
    mean = sum(changes.values()) / len(changes)
    return TriedValue(constant, value, accuracy.value, mean, changes[worst], worst, error.value)


Found = dict[Constant, list[TriedValue | None]]
"""By constant, one result per value."""


def _find(suite: Suite, options: Options, results: JobResults) -> Sequence[Finding | None]:
    findings: list[Finding] = []
    remarks: list[Remark] = []
    for protocol in METHODS:
        found: Found = {
            constant: [_tried(constant, value, protocol, suite, results) for value in constant.values]
            for constant in constants_of(protocol)
        }
        findings += [_table(protocol, found, suite, results), *_figures(protocol, found)]
        remarks += _remarks(protocol, found)
    return [*findings, *remarks]


def _table(protocol: str, found: Found, suite: Suite, results: JobResults) -> Table:
    columns = (
        Column("value", "text"),
        Column("Accuracy", "percent", f"mean of {len(suite)} sets"),
        Column("Change", "points", "against the default"),
        Column("Worst set", "points", "its change"),
        Column("which", "text"),
        Column("Calibration error", "percent", "mean"),
    )
    usual = [_trials(member, protocol) for member in suite.members]
    accuracy, error = mean_of_sets(results, usual), mean_of_sets(results, usual, "calibration_error")
    rows = [Row(("default", accuracy, None, None, None, error), "all at their defaults", strong=True)]
    for constant, tries in found.items():
        group = f"{constant.label} ({constant.default(protocol):g})"
        for value, tried in zip(constant.values, tries, strict=True):
            rows.append(Row((f"{value:g}", *_cells(tried)), group))
    order = "One random order, the same for every value." if protocol == "online" else NO_ORDER
    notes = (
        f"{describe_sets(suite.members)}. {order} One constant at a time; its default is shown next to its name.",
        "Worst set: the set that loses most, or gains least, by the change.",
    )
    return Table(f"sensitivity-{protocol}", f"Every constant varied by itself, {protocol}", columns, tuple(rows), notes)


def _cells(tried: TriedValue | None) -> tuple[Value | str | None, ...]:
    if tried is None:
        return (None,) * 5
    return (
        Value(tried.accuracy),
        Value(tried.change),
        Value(tried.worst_change),
        tried.worst_set,
        Value(tried.calibration_error),
    )


def _figures(protocol: str, found: Found) -> list[Lines]:
    """One figure per topic, one curve per constant."""
    figures = []
    for about in dict.fromkeys(constant.about for constant in found):
        curves = [_curve(constant, tries, protocol) for constant, tries in found.items() if constant.about == about]
        if series := tuple(curve for curve in curves if len(curve.x) > 1):
            figures.append(
                Lines(
                    f"{slug(about)}-{protocol}",
                    f"Constants of {about}, {protocol}",
                    "value, in multiples of the default",
                    "change of accuracy, points",
                    series,
                    "Mean over sets; the line marks the defaults.",
                    log_x=True,
                    marked_x=1.0,
                    steps=True,
                )
            )
    return figures


def _curve(constant: Constant, tries: Sequence[TriedValue | None], protocol: str) -> Series:
    default = constant.default(protocol)
    at = sorted([(1.0, 0.0), *((tried.value / default, tried.change) for tried in tries if tried is not None)])
    return Series(constant.label, tuple(x for x, _ in at), tuple(y for _, y in at))


def _remarks(protocol: str, found: Found) -> list[Remark]:
    whole = {constant: [t for t in tries if t is not None] for constant, tries in found.items() if None not in tries}
    lacking = [constant.label for constant in found if constant not in whole]
    remarks = []
    if whole:
        best = {constant: max(tries, key=lambda tried: tried.change) for constant, tries in whole.items()}
        level = [constant.label for constant, top in best.items() if top.change < PLATEAU]
        beaten = [f"{c.label} ({_at(top)})" for c, top in best.items() if top.change >= PLATEAU]
        text = f"{protocol}: no value tried is {PLATEAU:g} points above the default, in the mean over sets, of "
        text += f"{', '.join(level) or 'no constant'}."
        if beaten:
            text += f" Not on such a plateau: {', '.join(beaten)}."
        falls = sorted((min(tries, key=lambda tried: tried.change) for tries in whole.values()), key=lambda t: t.change)
        steep = [f"{tried.constant.label} ({_at(tried)})" for tried in falls if tried.change <= -PLATEAU]
        text += f" It falls by as much or more for {', '.join(steep)}." if steep else " It never falls by as much."
        remarks.append(Remark(text, kind="warning" if beaten else "note"))
    if lacking:
        remarks.append(
            Remark(f"{protocol}: some run failed, so there is no result for {', '.join(lacking)}.", "warning")
        )
    return remarks


def _at(tried: TriedValue) -> str:
    return f"{tried.change:+.1f} at {tried.value:g}"


EXPERIMENT = Experiment(
    name="sensitivity",
    title="Sensitivity of the anchored mixture to its constants",
    question="Is the default of every constant on a plateau, or does the accuracy depend on its exact value?",
    plan=_plan,
    find=_find,
)
