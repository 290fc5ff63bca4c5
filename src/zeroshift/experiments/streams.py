"""Not in the paper: online methods on streams that are no random order, and what is left of their gain there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from zeroshift.evaluate import Analysis, Job, Trial
from zeroshift.evaluate.streams.arrangement import UNIMPORTANT
from zeroshift.experiments.parts.choice import one_a_task
from zeroshift.experiments.parts.domain_sets import DOMAIN_ROWS, StackedMember, stacked_members
from zeroshift.experiments.parts.experiment import Answers, Experiment, Options
from zeroshift.experiments.parts.findings import Cell, Column, Finding, HeatMap, HeatMaps, Remark, Row, Table, Value
from zeroshift.experiments.parts.harm import Harm, harm_remark
from zeroshift.experiments.parts.neighbours import WINDOW, neighbours
from zeroshift.experiments.parts.stream_kinds import LONG_TAIL, RANDOM, STREAMS, STREAMS_TOLD, Kind
from zeroshift.experiments.parts.suite import Member, Suite, together
from zeroshift.experiments.parts.trials import mean_of_sets, points, runs, spread

__all__ = ["EXPERIMENT", "METHODS", "STREAMS"]

METHODS = {
    "adapt_online": "ADAPT",
    "anchored_mixture_online": "Anchored mixture",
    "tda": "TDA",
    "dmn": "DMN",
    "oga": "OGA",
}
"""The two this library is about, and three that keep memories of other kinds; what each is called."""

OURS = ("adapt_online", "anchored_mixture_online")
"""Those that run in as many orders as are asked for, and whose worst stream is told."""


def _members(kind: Kind, suite: Suite) -> Sequence[Member]:
    if kind.domains:
        return [member for member in suite.members if isinstance(member, StackedMember)]
    members = one_a_task(_plain(suite)).members
    # A class of one sample leaves no room for a tail.
    return [member for member in members if member.entry.fewest > 1] if kind == LONG_TAIL else members


def _plain(suite: Suite) -> Suite:
    """Without the sets made of others."""
    return Suite(tuple(member for member in suite.members if not isinstance(member, StackedMember)))


def _trials(kind: Kind, method: str, member: Member, options: Options) -> list[Trial]:
    orders = options.orders if method in OURS and not kind.domains else 1
    return runs(member, method, orders, arrangement=kind.arrangement(member))


def _looked_at(kind: Kind, member: Member) -> Analysis:
    """What the stream of the first order is like."""
    arrangement, entry = kind.arrangement(member), member.entry
    parameters = {name: value for name, value in arrangement.parameters.items() if name not in UNIMPORTANT}
    asked = {"seed": 0, "kind": arrangement.kind, "parameters": parameters, "window": WINDOW}
    return Analysis(entry.name, entry.digest, entry.prompt, neighbours, asked)


def _plan(suite: Suite, options: Options) -> Sequence[Job]:
    jobs: list[Job] = []
    for kind in STREAMS:
        for member in _members(kind, suite):
            jobs += [trial for method in METHODS for trial in _trials(kind, method, member, options)]
            jobs.append(_looked_at(kind, member))
    return jobs


def _find(suite: Suite, options: Options, answers: Answers) -> Sequence[Finding]:
    kinds = [kind for kind in STREAMS if _members(kind, suite)]
    gains = {(kind.label, method): _gain(kind, method, suite, options, answers) for kind in kinds for method in METHODS}
    if not any(gains.values()):
        return [Remark("Some run of each method failed on each stream: there is no gain to tell of.", kind="warning")]
    before = {kind.label: _baseline(kind, suite, options, answers) for kind in kinds}
    rows = [
        Row(
            (
                kind.label,
                mean_of_sets(answers, [[_looked_at(kind, m)] for m in _members(kind, suite)], "classes_in_a_row"),
                before[kind.label],
                *(gains[kind.label, method] for method in METHODS),
            ),
            "across domains" if kind.domains else "within each set",
        )
        for kind in kinds
    ]
    worst = {method: _worst([kind.label for kind in kinds], method, gains) for method in METHODS}
    rows.append(Row(("worst stream", None, None, *map(_told, worst.values())), "worst", strong=True))
    columns = (
        Column("stream", "text"),
        Column("Classes", "number", f"in {WINDOW} samples in a row"),
        Column("Zero-shot", "percent"),
        *(Column(title, "points") for title in METHODS.values()),
    )
    notes = _notes(suite, options, answers)
    table = Table("streams", "Gain over zero-shot, by stream and method", columns, tuple(rows), notes)
    cells = [
        Harm(f"{METHODS[method]} on {kind.label}", gain.value, base.value, _sizes(kind, suite, options, answers))
        for kind in kinds
        for method in METHODS
        if (gain := gains[kind.label, method]) is not None and (base := before[kind.label]) is not None
    ]
    return [table, *_map(kinds, gains), harm_remark(cells), *_fall(worst, gains), *_failed(gains)]


def _gain(kind: Kind, method: str, suite: Suite, options: Options, answers: Answers) -> Value | None:
    """Mean over sets order by order, in points; None unless every run is there."""
    by_set = []
    for member in _members(kind, suite):
        trials = _trials(kind, method, member, options)
        records = answers.all_of(trials)
        if len(records) < len(trials):
            return None
        by_set.append([points(record["zero_shot_accuracy"], record["accuracy"]) for record in records])
    return spread([float(np.mean(order)) for order in zip(*by_set, strict=True)])


def _baseline(kind: Kind, suite: Suite, options: Options, answers: Answers) -> Value | None:
    """Zero-shot's accuracy on the rows that came, whichever method's runs say so."""
    for method in METHODS:
        by_set = [_trials(kind, method, member, options) for member in _members(kind, suite)]
        found = mean_of_sets(answers, by_set, "zero_shot_accuracy")
        if found is not None:
            return Value(found.value)
    return None


Gains = Mapping[tuple[str, str], Value | None]
"""By stream and method."""


def _worst(labels: Sequence[str], method: str, gains: Gains) -> tuple[str, float] | None:
    """None unless all streams are there: the worst may be one that failed."""
    found = [(value.value, label) for label in labels if (value := gains[label, method]) is not None]
    return min(found)[::-1] if len(found) == len(labels) else None


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


def _sizes(kind: Kind, suite: Suite, options: Options, answers: Answers) -> list[int]:
    """Samples of each set that came in the stream."""
    trials = ([t for method in METHODS for t in _trials(kind, method, m, options)] for m in _members(kind, suite))
    return [int(answers.all_of(those)[0]["scored"]) for those in trials]


def _fall(worst: Mapping[str, tuple[str, float] | None], gains: Gains) -> list[Remark]:
    """What the worst stream costs our methods."""
    remarks = []
    for method in OURS:
        ours, random = worst[method], gains[RANDOM.label, method]
        if ours is None or random is None:
            continue
        label, gain = ours
        if label == RANDOM.label:
            text = f"{METHODS[method]} gains least, {gain:+.1f} points, in a random order."
        else:
            text = f"{METHODS[method]} gains {random.value:+.1f} points in a random order and {gain:+.1f} on its worst "
            text += f"stream ({label})."
        remarks.append(Remark(text))
    return remarks


def _failed(gains: Gains) -> list[Remark]:
    lacking = [f"{METHODS[method]} on {label}" for (label, method), value in gains.items() if value is None]
    return [Remark(f"Some run failed, and hence no gain: {'; '.join(lacking)}.", kind="warning")] if lacking else []


def _notes(suite: Suite, options: Options, answers: Answers) -> tuple[str, ...]:
    orders = "All runs are in one order."
    if options.orders > 1:
        ours = " and ".join(METHODS[method] for method in OURS)
        orders = f"{ours} in {options.orders} orders within each set, the peers and across domains in one."
    within = _members(RANDOM, suite)
    found = answers.all_of([_looked_at(LONG_TAIL, member) for member in within])
    ratios = sorted({round(record["imbalance"]) for record in found})
    here = f" Long tails here: {', '.join(f'{ratio}:1' for ratio in ratios)}." if ratios else ""
    return (
        f"Gain over zero-shot on the very rows that came, in points; mean over sets, each counting the same: "
        f"{together(within)}. {orders}",
        STREAMS_TOLD + here,
        _domains(suite),
    )


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
