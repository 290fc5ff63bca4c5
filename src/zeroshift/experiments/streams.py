"""Not in the paper: online methods on non-i.i.d. streams, and how much of their gain remains."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from zeroshift.evaluate import Analysis, Job, StreamSpec, Trial
from zeroshift.evaluate.streams import can_stack, stack_datasets
from zeroshift.evaluate.streams.long_tail import IMBALANCE
from zeroshift.evaluate.streams.orders import CLASS_SHARE, CONCENTRATION, MEAN_LENGTH, ROUNDS
from zeroshift.evaluate.streams.spec import LABEL_PARAMETERS
from zeroshift.experiments._shared.claims import effective_samples, higher
from zeroshift.experiments._shared.experiment import Experiment, JobResults, Options
from zeroshift.experiments._shared.findings import Cell, Column, Finding, HeatMap, HeatMaps, Remark, Row, Table, Value
from zeroshift.experiments._shared.suite import Member, Suite, describe_sets, largest_per_task
from zeroshift.experiments._shared.trials import analysis, mean_of_sets, points, runs, spread
from zeroshift.features import FeatureSet

__all__ = [
    "DOMAIN_ROWS",
    "EXPERIMENT",
    "FILTER_DESCRIPTION",
    "LONG_TAIL",
    "METHODS",
    "RANDOM",
    "STREAMS",
    "STREAM_DESCRIPTIONS",
    "WINDOW",
    "WITHOUT_FILTER",
    "WITH_FILTER",
    "Compared",
    "Gains",
    "Kind",
    "StackedMember",
    "StreamGain",
    "harm_remark",
    "neighbours",
    "stacked_members",
]


WINDOW = 64
"""Number of consecutive samples; a common batch size."""


def neighbours(
    features: FeatureSet, *, prompt: str, seed: int, kind: str, parameters: Mapping[str, Any], window: int = WINDOW
) -> dict[str, Any]:
    """Mean number of classes in `window` consecutive samples, and the ratio of the largest to the smallest class.

    Windows do not overlap; a remainder counts only if the stream is shorter than one window.

    >>> pets = FeatureSet(np.eye(2)[[0, 1] * 4], prototypes=np.eye(2), labels=[0, 1] * 4)
    >>> neighbours(pets, prompt="default", seed=0, kind="class_sorted", parameters={}, window=4)["classes_in_a_row"]
    1.0
    """
    if features.labels is None:
        raise ValueError(f"features must be labelled: classes are counted; got {features!r}.")
    rows = StreamSpec(kind, parameters).stream(features, seed=seed, prompt=prompt).rows
    labels = features.labels[rows]
    starts = range(0, max(1, len(labels) - window + 1), window)
    sizes = np.unique(labels, return_counts=True)[1]
    return {
        "scored": len(rows),
        "classes_in_a_row": float(np.mean([len(set(labels[i : i + window].tolist())) for i in starts])),
        "imbalance": float(sizes.max() / sizes.min()),
        "zero_shot_accuracy": features.subset(rows).zero_shot_accuracy(prompt),
    }


DOMAIN_ROWS = 5000
"""Maximum number of random rows per domain; otherwise a stream across fifteen corruptions of ImageNet would have
750,000."""


@dataclass(frozen=True)
class StackedMember(Member):
    """A set stacked from others."""

    domains: tuple[int, ...] = ()
    """Rows of each domain, in stacked order."""
    domain_names: tuple[str, ...] = ()


def stacked_members(suite: Suite) -> list[StackedMember]:
    """One set per group of sets with the same classes, prototypes and logit scale; of sets with the same data only the
    largest is used.

    >>> from zeroshift.data import packs
    >>> names = ("cifar10", "cifar10c_fog_5", "fmnist")
    >>> (both,) = stacked_members(Suite.of({name: packs.load(name).subset(slice(0, 50)) for name in names}))
    >>> both.domain_names, both.domains
    (('cifar10', 'cifar10c_fog_5'), (50, 50))
    """
    groups: list[list[Member]] = []
    firsts: list[FeatureSet] = []
    for member in _distinct(suite):
        features = member.dataset.load()
        place = next((i for i, first in enumerate(firsts) if can_stack(first, features)), None)
        if place is None:
            groups.append([member])
            firsts.append(features)
        else:
            groups[place].append(member)
    return [_stacked(group) for group in groups if len(group) > 1]


def _distinct(suite: Suite) -> list[Member]:
    largest: dict[tuple[object, ...], Member] = {}
    for member in suite.members:
        what = (member.encoder, *member.subject)
        if what not in largest or member.dataset.n_samples > largest[what].dataset.n_samples:
            largest[what] = member
    return [member for member in suite.members if member in largest.values()]


def _stacked(group: Sequence[Member]) -> StackedMember:
    parts = tuple((member.name, member.dataset.load) for member in group)
    features = _load(parts)
    name = f"{group[0].data_set} and its shifts" if group[0].corruption is None else " and ".join(n for n, _ in parts)
    base = Member.of(name, features, partial(_load, parts), group[0].dataset.prompt)
    sizes = tuple(min(member.dataset.n_samples, DOMAIN_ROWS) for member in group)
    # The provenance may not name the encoder, but all parts share it.
    text = {**vars(base), "encoder": group[0].encoder}
    return StackedMember(**text, domains=sizes, domain_names=tuple(name for name, _ in parts))


def _load(parts: Sequence[tuple[str, Callable[[], FeatureSet]]]) -> FeatureSet:
    return stack_datasets({name: _some(load()) for name, load in parts})


def _some(features: FeatureSet) -> FeatureSet:
    if features.n_samples <= DOMAIN_ROWS:
        return features
    return features.subset(np.random.default_rng(0).permutation(features.n_samples)[:DOMAIN_ROWS])


@dataclass(frozen=True)
class Kind:
    """A row of the table: a kind of stream."""

    label: str
    kind: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    domains: bool = False
    """Whether it runs on stacked sets instead of single sets."""

    def stream_spec(self, member: Member) -> StreamSpec:
        if not isinstance(member, StackedMember):
            return StreamSpec(self.kind, self.parameters)
        where = {"domains": list(member.domains), "names": list(member.domain_names)}
        return StreamSpec(self.kind, {**self.parameters, **where})


BATCH, CLASSES, SURE = WINDOW, 2, 2
"""Batch size and classes per batch of `few_classes`; confident samples per class of `few_confident`."""

RANDOM, LONG_TAIL = Kind("random", "random"), Kind("long tail", "long_tail", {"imbalance": IMBALANCE})

STREAMS = (
    RANDOM,
    Kind("class-sorted", "class_sorted"),
    Kind("correlated", "dirichlet", {"concentration": CONCENTRATION}),
    Kind("few classes per batch", "few_classes", {"classes_per_batch": CLASSES, "batch_size": BATCH}),
    Kind("bursts", "bursts", {"mean_length": MEAN_LENGTH}),
    Kind("recurring", "recurring", {"rounds": ROUNDS}),
    Kind("random third", "some_classes", {"class_share": CLASS_SHARE}),
    Kind("sorted third", "some_classes_sorted", {"class_share": CLASS_SHARE}),
    LONG_TAIL,
    Kind("few confident", "few_confident", {"per_class": SURE}),
    Kind("continual", "continual", domains=True),
    Kind("gradual", "gradual", {"overlap": 0.5}, domains=True),
    Kind("mixed", "mixed", domains=True),
)

STREAM_DESCRIPTIONS = (
    f"class-sorted: one class after the other. correlated: a Dirichlet draw per class, with total concentration "
    f"{CONCENTRATION:g}, divides its samples among as many time intervals as there are classes. few classes per batch: "
    f"at most {CLASSES} in every {BATCH}, as long as classes have enough samples; those that do not come last. bursts: "
    f"runs of one class, {MEAN_LENGTH:g} samples long on average. recurring: all classes in blocks, {ROUNDS} times in "
    f"different orders. random third, sorted third: a third of the classes, in random order or class-sorted. long "
    f"tail: up to {IMBALANCE:g} times as many samples of one class as of another, as far as the smallest class allows. "
    f"few confident: of the more confident half of each pseudo-class only {SURE} samples remain."
)
"""Note below the table."""


LEAST_DIFFERENCE = 0.1
"""Smaller gains (in points) are not visible in the table and count as none."""


@dataclass(frozen=True)
class StreamGain:
    """The gain of a method on a kind of stream."""

    where: str
    gain: float
    """In points."""
    zero_shot: float
    samples: Sequence[int]
    """Of each set."""

    @property
    def is_gain(self) -> bool | None:
        """Whether the method is better than zero-shot; None if the difference is too small to decide."""
        after = self.zero_shot + self.gain / 100
        return higher(after, self.zero_shot, samples=effective_samples(self.samples))

    def __str__(self) -> str:
        return f"{self.where} ({self.gain:+.1f})"


def harm_remark(found: Sequence[StreamGain]) -> Remark:
    """Which methods are below zero-shot on which streams."""
    lost = [str(cell) for cell in found if cell.is_gain is False]
    close = [str(cell) for cell in found if cell.is_gain is None and cell.gain <= -LEAST_DIFFERENCE]
    text = [f"Below zero-shot, in points: {'; '.join(lost)}."] if lost else []
    text += [f"Below zero-shot by less than a standard error, too close to call: {'; '.join(close)}."] if close else []
    if not text:
        above = sum(cell.is_gain is True for cell in found)
        text = [f"Of {len(found)} gains none is below zero; {above} are above it by more than a standard error."]
    return Remark(" ".join(text), kind="warning" if lost else "note")


@dataclass(frozen=True)
class Compared:
    """A column of a table: a method as it is run."""

    label: str
    """The name of the method, with or without the filter."""
    title: str
    method: str
    parameters: Mapping[str, Any] = field(default_factory=dict)


MIXTURE = "Anchored mixture"
"""It runs in all requested orders, with and without the filter; the others run in one."""

PEERS = {"tda": "TDA", "dmn": "DMN", "oga": "OGA"}
"""Three methods with other kinds of memory."""

WITHOUT_FILTER = (
    Compared("ADAPT", "ADAPT", "adapt_online"),
    Compared(MIXTURE, f"{MIXTURE} without filter", "anchored_mixture_online", {"order": "none"}),
    *(Compared(label, label, name) for name, label in PEERS.items()),
)
WITH_FILTER = (
    Compared("Zero-shot", "Zero-shot + filter", "zero_shot+filter"),
    Compared("ADAPT", "ADAPT + filter", "adapt_online+filter"),
    Compared(MIXTURE, MIXTURE, "anchored_mixture_online"),
    *(Compared(label, f"{label} + filter", f"{name}+filter") for name, label in PEERS.items()),
)
METHODS = (*WITHOUT_FILTER, *WITH_FILTER)

FILTER_DESCRIPTION = (
    "The sticky filter (StickyFilter) multiplies the answers of a method with a prior: the class of a sample is often "
    "that of the sample before. How often is estimated from zero-shot posteriors. The anchored mixture contains it; "
    "order='none' is without. A cell is one set in one stream and one order."
)
"""Note below the table of methods with the filter."""


def _members(kind: Kind, suite: Suite) -> Sequence[Member]:
    if kind.domains:
        return [member for member in suite.members if isinstance(member, StackedMember)]
    members = largest_per_task(_plain(suite)).members
    # A long tail needs two samples per class.
    return [member for member in members if member.dataset.fewest > 1] if kind == LONG_TAIL else members


def _plain(suite: Suite) -> Suite:
    """The suite without stacked sets."""
    return Suite(tuple(member for member in suite.members if not isinstance(member, StackedMember)))


def _trials(kind: Kind, method: Compared, member: Member, options: Options) -> list[Trial]:
    orders = options.orders if method.label == MIXTURE and not kind.domains else 1
    return runs(member, method.method, orders, method.parameters, stream_spec=kind.stream_spec(member))


def _stream_analysis(kind: Kind, member: Member) -> Analysis:
    """The analysis of the stream in the first order."""
    stream_spec = kind.stream_spec(member)
    parameters = {name: value for name, value in stream_spec.parameters.items() if name not in LABEL_PARAMETERS}
    arguments = {"seed": 0, "kind": stream_spec.kind, "parameters": parameters, "window": WINDOW}
    return analysis(member, neighbours, arguments)


def _plan(suite: Suite, options: Options) -> Sequence[Job]:
    jobs: list[Job] = []
    for kind in STREAMS:
        for member in _members(kind, suite):
            jobs += [trial for method in METHODS for trial in _trials(kind, method, member, options)]
            jobs.append(_stream_analysis(kind, member))
    return jobs


def _find(suite: Suite, options: Options, results: JobResults) -> Sequence[Finding | None]:
    kinds = [kind for kind in STREAMS if _members(kind, suite)]
    gains = Gains(
        tuple(kind.label for kind in kinds),
        {
            (kind.label, method.title): _gains_by_set(kind, method, suite, options, results)
            for kind in kinds
            for method in METHODS
        },
    )
    if not any(gains.by_place.values()):
        return [
            Remark("Some run of every method failed on every stream, so there is no gain to report.", kind="warning")
        ]
    before = {kind.label: _baseline(kind, suite, options, results) for kind in kinds}
    # The first cells of every row.
    first = [(kind, (kind.label, _classes_in_a_row(kind, suite, results), before[kind.label])) for kind in kinds]
    cells = [
        StreamGain(f"{method.title} on {kind.label}", gain.value, base.value, sizes)
        for kind in kinds
        if (base := before[kind.label]) is not None
        for sizes in [_sizes(kind, suite, options, results)]
        for method in METHODS
        if (gain := gains.mean_of_sets(kind.label, method.title)) is not None
    ]
    notes = _notes(suite, options, results)
    return [
        _table("streams", "Gain over zero-shot, by stream and method", WITHOUT_FILTER, first, gains, notes),
        _table("filter", "Gain with the sticky filter", WITH_FILTER, first, gains, (FILTER_DESCRIPTION,)),
        *_maps(gains),
        *_filter_remark(gains),
        harm_remark(cells),
        *_fall(gains),
        *_failed(gains),
    ]


SetGains = Sequence[tuple[str, Sequence[float]]]
"""The name of every set, and a method's gain on it in every order, in points."""

Worst = tuple[str, float]
"""Where a gain is lowest, and the gain."""


@dataclass(frozen=True)
class Gains:
    """The gains of all methods on all streams."""

    labels: tuple[str, ...]
    """The streams."""
    by_place: Mapping[tuple[str, str], SetGains | None]
    """By stream and title of the method; None if a run failed."""

    def mean_of_sets(self, label: str, title: str) -> Value | None:
        """The mean over sets, and its range over orders."""
        by_set = self.by_place[label, title]
        if by_set is None:
            return None
        return spread([float(np.mean(order)) for order in zip(*(gains for _, gains in by_set), strict=True)])

    def of_streams(self, title: str) -> list[tuple[float, str]] | None:
        """The mean over sets and orders of every stream, with its label; None if a stream failed."""
        found = [(mean.value, label) for label in self.labels if (mean := self.mean_of_sets(label, title)) is not None]
        return found if len(found) == len(self.labels) else None

    def mean(self, title: str) -> Value | None:
        """The mean over streams; None if a stream failed."""
        streams = self.of_streams(title)
        return None if streams is None else Value(float(np.mean([gain for gain, _ in streams])))

    def worst_stream(self, title: str) -> Worst | None:
        """None if a stream failed, because that might be the worst."""
        streams = self.of_streams(title)
        return None if streams is None else min(streams)[::-1]

    def worst_cell(self, title: str) -> Worst | None:
        """The worst set in the worst order; None if a stream failed."""
        found = []
        for label in self.labels:
            by_set = self.by_place[label, title]
            if by_set is None:
                return None
            found += [(gain, f"{label}, {name}") for name, gains in by_set for gain in gains]
        return min(found)[::-1]


def _table(
    name: str,
    title: str,
    methods: Sequence[Compared],
    first: Sequence[tuple[Kind, tuple[Cell, ...]]],
    gains: Gains,
    notes: tuple[str, ...],
) -> Table:
    titles = [method.title for method in methods]
    rows = [
        Row(
            (*cells, *(gains.mean_of_sets(kind.label, title) for title in titles)),
            "across domains" if kind.domains else "within each set",
        )
        for kind, cells in first
    ]
    rows += [
        Row((label, None, None, *map(summary, titles)), "all streams", strong=True)
        for label, summary in (
            ("mean", gains.mean),
            ("worst stream", lambda title: _format_worst(gains.worst_stream(title))),
            ("worst cell", lambda title: _format_worst(gains.worst_cell(title))),
        )
    ]
    columns = (
        Column("stream", "text"),
        Column("Classes", "number", f"in {WINDOW} samples in a row"),
        Column("Zero-shot", "percent"),
        *(Column(title, "points") for title in titles),
    )
    return Table(name, title, columns, tuple(rows), notes)


def _gains_by_set(kind: Kind, method: Compared, suite: Suite, options: Options, results: JobResults) -> SetGains | None:
    by_set = []
    for member in _members(kind, suite):
        trials = _trials(kind, method, member, options)
        records = results.records(trials)
        if len(records) < len(trials):
            return None
        gains = [points(record["zero_shot_accuracy"], record["accuracy"]) for record in records]
        by_set.append((member.name, gains))
    return by_set


def _classes_in_a_row(kind: Kind, suite: Suite, results: JobResults) -> Value | None:
    analyses = [[_stream_analysis(kind, member)] for member in _members(kind, suite)]
    return mean_of_sets(results, analyses, "classes_in_a_row")


def _baseline(kind: Kind, suite: Suite, options: Options, results: JobResults) -> Value | None:
    """Zero-shot accuracy on the rows of the stream, from the runs of any method."""
    for method in METHODS:
        by_set = [_trials(kind, method, member, options) for member in _members(kind, suite)]
        found = mean_of_sets(results, by_set, "zero_shot_accuracy")
        if found is not None:
            return Value(found.value)
    return None


def _format_worst(worst: Worst | None) -> Cell:
    return None if worst is None else f"{worst[0]} ({worst[1]:+.1f})"


def _maps(gains: Gains) -> list[HeatMaps]:
    maps = []
    for title, methods in (("without the filter", WITHOUT_FILTER), ("with the filter", WITH_FILTER)):
        values = [[gains.mean_of_sets(label, method.title) for method in methods] for label in gains.labels]
        if any(value is None for row in values for value in row):
            return []
        numbers = np.array([[value.value for value in row if value is not None] for row in values])
        maps.append(HeatMap(title, numbers, gains.labels, tuple(method.label for method in methods)))
    return [
        HeatMaps(
            "gains-by-stream",
            "Gain over zero-shot",
            tuple(maps),
            "Rows are streams, columns are methods; values below zero are losses.",
            unit="points",
            diverging=True,
            written=True,
        )
    ]


def _sizes(kind: Kind, suite: Suite, options: Options, results: JobResults) -> list[int]:
    """Number of samples of each set in the stream."""
    trials = ([t for method in METHODS for t in _trials(kind, method, m, options)] for m in _members(kind, suite))
    return [int(results.records(those)[0]["scored"]) for those in trials]


def _filter_remark(gains: Gains) -> list[Remark]:
    """What the filter changes in the mean over all streams, and in a random order, where it can gain nothing."""

    def mean_and_random(title: str) -> tuple[float, float] | None:
        mean, random = gains.mean(title), gains.mean_of_sets(RANDOM.label, title)
        return None if mean is None or random is None else (mean.value, random.value)

    found = []
    for without, filtered in zip((None, *WITHOUT_FILTER), WITH_FILTER, strict=True):
        before = (0.0, 0.0) if without is None else mean_and_random(without.title)
        after = mean_and_random(filtered.title)
        if before is not None and after is not None:
            found.append(
                f"{filtered.label} {before[0]:+.1f} and {after[0]:+.1f} ({before[1]:+.1f} and {after[1]:+.1f})"
            )
    text = f"Mean gain over all streams (and in a random order) without and with the filter: {'; '.join(found)}."
    return [Remark(text)] if found else []


def _fall(gains: Gains) -> list[Remark]:
    """The gain of our methods on their worst stream."""
    remarks = []
    for title in (method.title for method in METHODS if method.label in ("ADAPT", MIXTURE)):
        worst, random = gains.worst_stream(title), gains.mean_of_sets(RANDOM.label, title)
        if worst is None or random is None:
            continue
        label, gain = worst
        if label == RANDOM.label:
            text = f"{title} gains least, {gain:+.1f} points, in a random order."
        else:
            text = f"{title} gains {random.value:+.1f} points in a random order and {gain:+.1f} on its worst stream "
            text += f"({label})."
        remarks.append(Remark(text))
    return remarks


def _failed(gains: Gains) -> list[Remark]:
    lacking = [f"{title} on {label}" for (label, title), found in gains.by_place.items() if found is None]
    return [Remark(f"No gain, because a run failed: {'; '.join(lacking)}.", kind="warning")] if lacking else []


def _notes(suite: Suite, options: Options, results: JobResults) -> tuple[str, ...]:
    orders = "All runs are in one order."
    if options.orders > 1:
        orders = (
            f"{MIXTURE} in {options.orders} orders within each set; other methods and streams across domains in one."
        )
    within = _members(RANDOM, suite)
    found = results.records([_stream_analysis(LONG_TAIL, member) for member in within])
    ratios = sorted({round(record["imbalance"]) for record in found})
    here = f" Long tails here: {', '.join(f'{ratio}:1' for ratio in ratios)}." if ratios else ""
    return (
        f"Gain over zero-shot on the same rows, in points; mean over sets, weighted equally: "
        f"{describe_sets(within)}. {orders}",
        STREAM_DESCRIPTIONS + here,
        _domains(suite),
    )


def _domains(suite: Suite) -> str:
    made = [member for member in suite.members if isinstance(member, StackedMember)]
    if not made:
        return "No streams across domains: no two sets have the same classes, prototypes and logit scale."
    text = "; ".join(", ".join(member.domain_names) for member in made)
    return f"Across domains, in this order: {text}; at most {DOMAIN_ROWS:,} samples of each."


EXPERIMENT = Experiment(
    name="streams",
    title="Non-i.i.d. streams",
    question="How much of the gain of online methods remains when neighbours share a class, when classes are "
    "missing or of unequal sizes, when confident samples are rare, or when the domain changes? What does the sticky "
    "filter add?",
    plan=_plan,
    find=_find,
    extra_sets=stacked_members,
)
