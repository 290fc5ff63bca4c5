"""A leaderboard from the records of runs: means over sets and streams, their uncertainty, and ranks with ties.

The uncertainty is that of a paired bootstrap: see `zeroshift.evaluate.differences`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from zeroshift import methods as registry
from zeroshift.evaluate.differences import (
    DRAWS,
    Difference,
    check_baseline,
    differences_to,
    paired_intervals,
    resampled_accuracies,
)
from zeroshift.evaluate.method_spec import GROUPS, comparison_group
from zeroshift.evaluate.metrics.calibration import BINS
from zeroshift.evaluate.metrics.gain import LEVEL
from zeroshift.evaluate.outcomes import Outcomes, read_outcomes
from zeroshift.evaluate.protocols import Protocol
from zeroshift.evaluate.results import OUTCOMES, Row
from zeroshift.evaluate.streams import StreamSpec
from zeroshift.methods.registry import PROTOCOLS
from zeroshift.methods.sticky_filter import SUFFIX
from zeroshift.ordered import OrderedMethod
from zeroshift.parameters import Number
from zeroshift.suggest import did_you_mean

__all__ = ["DRAWS", "GROUPS", "NEEDS", "Entry", "Leaderboard", "build_leaderboard", "tied_ranks"]

MOST_DRAWS = 100_000

NEEDS = {
    "order": "the order of the stream",
    "set": "the whole set before the first answer",
    "support": "labelled samples",
    "validation": "labelled samples to choose parameters by",
    "unlabelled": "unlabelled samples before the first answer",
    "prompts": "several prompts per class",
    "views": "several views of each image",
    "second": "features of a second encoder",
    "text": "the text encoder",
}
"""What a method may need besides features and prototypes, by the name that `--without` takes."""

STORED = "stored"
"""Kind of the stream in records of methods that do not depend on the order."""


@dataclass(frozen=True)
class Entry:
    """One method."""

    label: str
    method: str
    group: str
    needs: tuple[str, ...]
    """Keys of `NEEDS`, or other inputs by their names."""
    runs: int
    accuracy: float
    """Mean over sets, averaged streams and orders, all with the same weight."""
    interval: tuple[float, float]
    orders: tuple[float, float] | None
    """The accuracy of the worst and of the best order (seed), each a mean over sets and streams; None if no order has
    results on all of them."""
    gain: float
    """Over zero-shot on the same rows, in percentage points."""
    gain_interval: tuple[float, float]
    by_stream: Mapping[str, float]
    """Accuracy on each stream; the same for all where the order does not matter."""
    by_set: Mapping[str, float]
    calibration_error: float
    microseconds: float
    """Per sample, without set-up: the fastest run of each set, mean over the sets."""
    peak_bytes: int | None
    """Median over the runs of a set, maximum over the sets."""
    rank: tuple[int, int]
    """The best and the worst place in its group that the intervals of the differences allow."""
    tied: tuple[str, ...]
    """Methods of its group whose difference to it has an interval that contains zero."""
    to_baseline: Difference | None
    """None if no baseline was named."""
    caveat: str
    """What its numbers do not stand for, such as the authors' code; mostly empty."""

    @property
    def worst_stream(self) -> tuple[str, float]:
        """The stream with the lowest accuracy, and the accuracy."""
        return min(self.by_stream.items(), key=lambda item: item[1])


@dataclass(frozen=True)
class Leaderboard:
    entries: tuple[Entry, ...]
    """By group, then by accuracy."""
    sets: Mapping[str, int]
    """Samples of each set."""
    streams: tuple[str, ...]
    averaged: tuple[str, ...]
    orders: int
    """The largest number of orders of a method."""
    incomplete: Mapping[str, str]
    """Methods that are not ranked, and why."""
    notes: tuple[str, ...]
    level: float
    draws: int
    machines: tuple[str, ...]
    baseline: str | None
    """The method that `Entry.to_baseline` compares with."""

    def group(self, name: str) -> list[Entry]:
        return [entry for entry in self.entries if entry.group == name]


@dataclass(frozen=True)
class _Run:
    row: Row
    stream: str
    outcomes: Outcomes

    @property
    def accuracy(self) -> float:
        return float(self.outcomes.right.sum() / self.outcomes.scored.sum())

    @property
    def gain(self) -> float:
        return 100 * (self.accuracy - float(self.outcomes.zero_shot.sum() / self.outcomes.scored.sum()))


def build_leaderboard(
    rows: Iterable[Row],
    *,
    protocol: Protocol | None = None,
    methods: Collection[str] = (),
    groups: Collection[str] = (),
    streams: Collection[str] = (),
    sets: Collection[str] = (),
    without: Collection[str] = (),
    baseline: str | None = None,
    level: float = LEVEL,
    draws: int = DRAWS,
    seed: int = 0,
) -> Leaderboard:
    """The leaderboard of runs: rows of `collect(folders, outcomes=True)`.

    Parameters
    ----------
    rows : records of runs; analyses are ignored.
    protocol : which streams the accuracy averages, and which batch size and bins the runs must have. By default all
        streams, and runs of a plain comparison.
    methods, groups, streams, sets : keep only these; methods by label or by name. Empty keeps all.
    without : leave out methods that need one of these: see `NEEDS`.
    baseline : label of a method that all others are compared with, whatever their groups.
    level, draws, seed : of the bootstrap intervals.
    """
    level = float(Number(0, 1, above=True).check("level", level))
    draws = int(Number(1, MOST_DRAWS, integer=True).check("draws", draws))
    notes: list[str] = [] if protocol is None else list(protocol.notes)
    # In a fixed order, so that the same runs give the same numbers to the last bit.
    ordered = sorted((row for row in rows if _is_run(row)), key=lambda row: (row["features"], str(row["key"])))
    runs = _readable_runs(ordered, protocol, notes)
    runs = _selected(runs, methods=methods, groups=groups, streams=streams, sets=sets, without=without)
    by_label: dict[str, list[_Run]] = {}
    for run in runs:
        by_label.setdefault(_label(run.row, runs), []).append(run)
    sizes = _set_sizes(runs)
    found = list(dict.fromkeys(run.stream for run in runs if run.stream != STORED)) or [STORED]
    order = list(protocol.streams) if protocol is not None else sorted(found, key=lambda name: (name != "random", name))
    shown = tuple(name for name in order if name in found) or tuple(found)
    averaged = tuple(name for name in shown if protocol is None or name in protocol.averaged)
    if protocol is not None and not averaged:
        if shown != (STORED,):
            raise ValueError(
                f"no run is left on a stream that {protocol.name} averages ({', '.join(protocol.averaged)}). Fix: name "
                "one of these in --streams, or leave out --protocol."
            )
        averaged = shown
    incomplete = {
        label: f"no result on {', '.join(missing)}"
        for label, own in by_label.items()
        if (missing := list(_missing(own, sizes, shown)))
    }
    complete = {label: own for label, own in by_label.items() if label not in incomplete}
    if not complete:
        raise ValueError(
            "no method has results on every set and stream. Fix: --sets and --streams with those that they share, or "
            "run the missing ones with zeroshift compare."
        )
    summaries = {label: _Summary(own, tuple(sizes), shown, averaged) for label, own in complete.items()}
    labels = list(complete)
    if baseline is not None:
        check_baseline(baseline, labels)
    accuracies, zero_shot = resampled_accuracies(
        [[summaries[label].cells[name] for label in complete] for name in sorted(sizes)], draws=draws, seed=seed
    )
    gains = paired_intervals(accuracies, zero_shot, level=level)
    means = [summary.accuracy for summary in summaries.values()]
    to_baseline = {} if baseline is None else differences_to(baseline, labels, means, accuracies, level=level)
    entries = []
    for group in GROUPS:
        places = [place for place, label in enumerate(labels) if summaries[label].group == group]
        if not places:
            continue
        ranks, tied = tied_ranks(accuracies[places], level=level)
        for place, rank, ties in zip(places, ranks, tied, strict=True):
            label, summary = labels[place], summaries[labels[place]]
            entries.append(
                summary.entry(
                    label,
                    interval=_pair(np.quantile(accuracies[place], [(1 - level) / 2, (1 + level) / 2])),
                    gain_interval=_pair(gains[:, place]),
                    rank=rank,
                    tied=tuple(labels[places[other]] for other in ties),
                    to_baseline=to_baseline.get(label),
                )
            )
    entries.sort(key=lambda entry: (GROUPS.index(entry.group), -entry.accuracy, entry.label))
    return Leaderboard(
        entries=tuple(entries),
        sets=sizes,
        streams=shown,
        averaged=averaged,
        orders=max(len({run.row.get("seed") for run in own}) for own in complete.values()),
        incomplete=incomplete,
        notes=tuple(notes),
        level=level,
        draws=draws,
        machines=tuple(sorted({str(run.row["machine"]) for run in runs if run.row.get("machine")})),
        baseline=baseline,
    )


def tied_ranks(accuracies: np.ndarray, *, level: float = LEVEL) -> tuple[list[tuple[int, int]], list[list[int]]]:
    """Ranks of M methods from (M, draws) paired draws of their accuracies, and the methods that each is tied with.

    Two methods are tied if the interval of their difference contains zero. A method's best rank is 1 plus the number of
    methods that are better without a tie, its worst rank M minus the number of those that are worse.

    >>> draws = np.array([[0.8, 0.9, 0.8], [0.9, 0.8, 0.8], [0.1, 0.2, 0.1]])
    >>> tied_ranks(draws)
    ([(1, 2), (1, 2), (3, 3)], [[1], [0], []])
    """
    n_methods = len(accuracies)
    ranks, tied = [], []
    for place in range(n_methods):
        low, high = paired_intervals(accuracies, accuracies[place], level=level)
        better, worse = low > 0, high < 0
        ranks.append((1 + int(better.sum()), n_methods - int(worse.sum())))
        ties = ~better & ~worse
        ties[place] = False
        tied.append(np.flatnonzero(ties).tolist())
    return ranks, tied


def _pair(values: np.ndarray) -> tuple[float, float]:
    return float(values[0]), float(values[1])


# Records


def _is_run(row: Row) -> bool:
    return isinstance(row.get("contestant"), str) and isinstance(row.get("accuracy"), (int, float))


def _readable_runs(rows: Sequence[Row], protocol: Protocol | None, notes: list[str]) -> list[_Run]:
    """The runs of one batch size and one number of bins that have outcomes of single samples."""
    if not rows:
        raise ValueError("there are no records of runs. Fix: a folder that zeroshift compare wrote to.")
    kinds = {(row.get("every"), row.get("bins", BINS)) for row in rows}
    kind = (None, BINS) if protocol is None else (protocol.every, protocol.bins)
    if kind not in kinds:
        if protocol is not None or len(kinds) > 1:
            name = "a plain comparison" if protocol is None else f"the protocol {protocol.name}"
            fix = "--protocol ttabc" if protocol is None else f"zeroshift compare --protocol {protocol.name}"
            raise ValueError(f"no record is a run of {name}. Fix: {fix}.")
        kind = next(iter(kinds))
    chosen = [row for row in rows if (row.get("every"), row.get("bins", BINS)) == kind]
    if protocol is not None:
        chosen = [row for row in chosen if _stream_name(row) in (STORED, *protocol.streams)]
    if left := len(rows) - len(chosen):
        notes.append(f"{left} records with another batch size, number of bins or stream are left out.")
    found = []
    for row in chosen:
        outcomes = read_outcomes(row.get(OUTCOMES), int(row.get("n_samples", 0)))
        if outcomes is not None and outcomes.scored.any():
            found.append(_Run(row, _stream_name(row), outcomes))
    if old := len(chosen) - len(found):
        notes.append(
            f"{old} records of an earlier version do not say which samples were right and are left out; "
            "zeroshift compare --again repeats them."
        )
    if not found:
        raise ValueError(
            "no record says which samples were right: they are of an earlier version. Fix: zeroshift compare --again."
        )
    return found


def _stream_name(row: Row) -> str:
    """The kind, and parameters that are not the defaults.

    >>> _stream_name({"stream.kind": "bursts", "stream.mean_length": 10.0})
    'bursts'
    >>> _stream_name({"stream.kind": "bursts", "stream.mean_length": 5.0})
    'bursts mean_length=5.0'
    """
    kind = str(row.get("stream.kind", STORED))
    given = {name.removeprefix("stream."): value for name, value in row.items() if name.startswith("stream.")}
    try:
        usual = StreamSpec(kind).describe()
    except ValueError:
        usual = {}
    changed = (f" {name}={value}" for name, value in given.items() if name != "kind" and usual.get(name) != value)
    return kind + "".join(changed)


def _label(row: Row, runs: Sequence[_Run]) -> str:
    """The method's label, with the number of labelled samples where that differs between runs."""
    label = str(row["contestant"])
    shots = row.get("shots")
    several = len({run.row.get("shots") for run in runs if run.row["contestant"] == label}) > 1
    return f"{label} ({shots} shots)" if several else label


def _selected(
    runs: Sequence[_Run],
    *,
    methods: Collection[str],
    groups: Collection[str],
    streams: Collection[str],
    sets: Collection[str],
    without: Collection[str],
) -> list[_Run]:
    known_streams = {run.stream for run in runs} - {STORED}
    labels = {str(run.row[name]) for run in runs for name in ("contestant", "method")}
    for option, wanted, known in (
        ("--methods", methods, labels),
        ("--groups", groups, PROTOCOLS),
        ("--streams", streams, known_streams),
        ("--sets", sets, {str(run.row["features"]) for run in runs}),
        ("--without", without, NEEDS),
    ):
        for name in wanted:
            if name not in known:
                guess = did_you_mean(name, known)
                raise ValueError(f"{option}: {name!r} is none of {', '.join(sorted(known))}. {guess}".rstrip())
    found = [
        run
        for run in runs
        if (not methods or run.row["contestant"] in methods or run.row["method"] in methods)
        and (not groups or run.row["protocol"] in groups)
        and (not streams or run.stream in (STORED, *streams))
        and (not sets or run.row["features"] in sets)
        and not set(without) & set(_needs(run.row))
    ]
    if not found:
        raise ValueError("no run is left. Fix: fewer filters.")
    return found


def _needs(row: Row) -> tuple[str, ...]:
    """What the method of a run was given, by the names of `NEEDS`."""
    found = ["order"] if _uses_order(str(row["method"])) else []
    found += ["set"] if row["protocol"] == "transductive" or _needs_set(str(row["method"])) else []
    given = [str(name) for name in row.get("given") or []]
    encoder = ["text"] if any(name.startswith("encoder") for name in row) else []
    return tuple(dict.fromkeys([*found, *given, *encoder]))


@cache
def _needs_set(method: str) -> bool:
    """Whether a method is transductive, also where it is given labelled samples and counts as few-shot."""
    try:
        return registry.get(method).protocol == "transductive"
    except ValueError:
        return False


@cache
def _uses_order(method: str) -> bool:
    """Whether the answers of a method use the order of its samples; a method that is not installed here does not."""
    try:
        return issubclass(registry.get(method).cls, OrderedMethod)
    except ValueError:
        return method.endswith(SUFFIX)


def _caveat(method: str) -> str:
    """See `MethodInfo.caveat`; nothing is known of a method that is not installed here."""
    try:
        return registry.get(method).caveat
    except ValueError:
        return ""


def _set_sizes(runs: Sequence[_Run]) -> dict[str, int]:
    sizes: dict[str, int] = {}
    identities: dict[str, tuple[Any, Any]] = {}
    for run in runs:
        name = str(run.row["features"])
        identity = (run.row.get("digest"), run.row.get("prompt"))
        if identities.setdefault(name, identity) != identity:
            raise ValueError(
                f"the records have two different sets or prompts called {name!r}. Fix: a folder with one of them, or "
                "--sets without it."
            )
        sizes[name] = len(run.outcomes.scored)
    return sizes


def _missing(runs: Sequence[_Run], sets: Iterable[str], streams: Sequence[str]) -> Iterator[str]:
    """The sets, and streams of sets, that have no run."""
    have = {(run.row["features"], run.stream) for run in runs}
    for name in sets:
        if (name, STORED) in have:
            continue
        lacking = [stream for stream in streams if (name, stream) not in have]
        if len(lacking) == len(streams):
            yield name
        else:
            yield from (f"{name} ({stream})" for stream in lacking)


class _Summary:
    """The runs of a method with results on every set and stream."""

    def __init__(
        self, runs: Sequence[_Run], sets: Sequence[str], streams: Sequence[str], averaged: Sequence[str]
    ) -> None:
        self.runs, self.streams, self.averaged, self.sets = runs, streams, averaged, sets
        self.row = runs[0].row
        self.group = comparison_group(str(self.row["protocol"]), self.row.get("given") or ())
        self._by_place: dict[tuple[str, str], list[_Run]] = {}
        for run in runs:
            self._by_place.setdefault((str(run.row["features"]), run.stream), []).append(run)
        self.cells = {name: [[run.outcomes for run in self._at(name, stream)] for stream in averaged] for name in sets}

    @property
    def accuracy(self) -> float:
        return self._mean(lambda run: run.accuracy, self.averaged, self.sets)

    def _at(self, name: str, stream: str) -> list[_Run]:
        return self._by_place.get((name, stream)) or self._by_place[name, STORED]

    def _mean(self, value: Any, streams: Sequence[str], sets: Sequence[str]) -> float:
        """Mean over sets of the mean over streams of the mean over runs."""
        means = [
            np.mean([np.mean([value(run) for run in self._at(name, stream)]) for stream in streams]) for name in sets
        ]
        return float(np.mean(means))

    def _orders(self) -> tuple[float, float] | None:
        seeds = sorted({run.row.get("seed") for run in self.runs}, key=lambda seed: (seed is not None, seed))
        means = []
        for seed in seeds:
            kept = [
                [
                    [run.accuracy for run in self._at(name, stream) if run.row.get("seed") == seed]
                    for stream in self.averaged
                ]
                for name in self.sets
            ]
            if all(values for cells in kept for values in cells):
                means.append(float(np.mean([np.mean([np.mean(values) for values in cells]) for cells in kept])))
        return (min(means), max(means)) if means else None

    def entry(
        self,
        label: str,
        *,
        interval: tuple[float, float],
        gain_interval: tuple[float, float],
        rank: tuple[int, int],
        tied: tuple[str, ...],
        to_baseline: Difference | None,
    ) -> Entry:
        times, peaks = [], []
        for name in self.sets:
            own = [run.row for run in self.runs if run.row["features"] == name]
            times.append(min(row["seconds"] / row["scored"] for row in own))
            known = [row["peak_bytes"] for row in own if row.get("peak_bytes") is not None]
            peaks += [int(np.median(known))] if known else []
        return Entry(
            label=label,
            method=str(self.row["method"]),
            group=self.group,
            needs=_needs(self.row),
            runs=len(self.runs),
            accuracy=self.accuracy,
            interval=interval,
            orders=self._orders(),
            gain=self._mean(lambda run: run.gain, self.averaged, self.sets),
            gain_interval=gain_interval,
            by_stream={stream: self._mean(lambda run: run.accuracy, [stream], self.sets) for stream in self.streams},
            by_set={name: self._mean(lambda run: run.accuracy, self.averaged, [name]) for name in self.sets},
            calibration_error=self._mean(lambda run: run.row["calibration_error"], self.averaged, self.sets),
            microseconds=1e6 * float(np.mean(times)),
            peak_bytes=max(peaks, default=None),
            rank=rank,
            tied=tied,
            to_baseline=to_baseline,
            caveat=_caveat(str(self.row["method"])),
        )
