"""Summaries of runs: each method on each set over its orders, and the mean over sets, all weighted equally."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from zeroshift.evaluate.costs import COSTS
from zeroshift.evaluate.differences import (
    DRAWS,
    Cell,
    Difference,
    check_baseline,
    differences_to,
    paired_intervals,
    resample_set,
)
from zeroshift.evaluate.method_spec import GROUPS, MethodSpec
from zeroshift.evaluate.metrics.base import checked_numbers
from zeroshift.evaluate.outcomes import read_outcomes
from zeroshift.evaluate.plan import Plan
from zeroshift.evaluate.results import OUTCOMES
from zeroshift.evaluate.runner import JobOutcome
from zeroshift.evaluate.trial import Trial
from zeroshift.suggest import did_you_mean

__all__ = ["ComparisonSummary", "MethodSummary", "Spread", "summarize"]

Record = Mapping[str, Any]

Draws = Mapping[str, np.ndarray]
"""By method: (2, draws) accuracies of the method and of zero-shot; see `resample_set`."""


@dataclass(frozen=True)
class Spread:
    """Mean, minimum and maximum over orders.

    >>> Spread.of([0.5, 0.75, 0.25])
    Spread(mean=0.5, low=0.25, high=0.75, values=(0.5, 0.75, 0.25))
    """

    mean: float
    low: float
    high: float
    values: tuple[float, ...]

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """From the values of at least one order."""
        found = tuple(checked_numbers("values", values, each="order").tolist())
        if not found:
            raise ValueError("values must hold the number of at least one order; got none. Fix: values=[0.75].")
        return cls(float(np.mean(found)), min(found), max(found), found)


@dataclass(frozen=True)
class MethodSummary:
    """The results of a method on one set, or the mean over several."""

    spec: MethodSpec
    sets: tuple[str, ...]
    """Names of the sets."""
    runs: int
    accuracy: Spread
    gain: Spread
    """Over zero-shot on the same rows, in percentage points."""
    calibration_error: float
    microseconds: float
    """Per sample, without set-up."""
    setup_seconds: float
    peak_bytes: int | None
    """Peak memory above that before the run: median over orders, maximum over sets; None where it cannot be
    measured."""
    costs: Mapping[str, float]
    """Encoder costs per image, named as in `COSTS`: the mean over sets."""
    setup_prompts: float
    """Prompts encoded once, before the first image."""
    gain_interval: tuple[float, float] | None = None
    """None where a record does not say which samples were right, and for a mean over some of the sets."""
    to_best: Difference | None = None
    """The difference to the most accurate method of its group; None as above, and where it is alone."""
    to_baseline: Difference | None = None
    """The same to the baseline of the summary."""


@dataclass(frozen=True)
class ComparisonSummary:
    """All results of a comparison."""

    plan: Plan
    by_set: dict[str, list[MethodSummary]]
    """By name of the set: the methods with results on it."""
    overall: list[MethodSummary]
    failed: list[JobOutcome[Trial]]
    records: list[dict[str, Any]]
    baseline: str | None = None
    """The label of the method that `MethodSummary.to_baseline` compares with."""

    @property
    def partial(self) -> list[MethodSummary]:
        """Methods without results on some set; their means do not compare with those of the others."""
        return [method_summary for method_summary in self.overall if len(method_summary.sets) < len(self.plan.datasets)]

    def on(self, dataset: str, spec: MethodSpec) -> MethodSummary | None:
        """The summary of a method on a set; None where it has no result."""
        if dataset not in self.by_set:
            known = ", ".join(map(repr, self.by_set))
            raise ValueError(
                f"dataset is {dataset!r}, a set that was not compared. {did_you_mean(dataset, self.by_set)}"
                f"Fix: one of {known}."
            )
        return next((s for s in self.by_set[dataset] if s.spec == spec), None)


def summarize(plan: Plan, outcomes: Sequence[JobOutcome[Trial]], *, baseline: str | None = None) -> ComparisonSummary:
    """Summarize the outcomes of `run_plan`, in the order of the plan. `baseline` is the label of a method that all
    others are compared with."""
    # By label, because two specs may be the same run and each has its own row.
    found = {_trial_id(outcome.job): outcome for outcome in outcomes}
    places = map(_trial_id, plan.trials)
    kept = [found[place] for place in places if place in found]
    if baseline is not None:
        check_baseline(baseline, [spec.label for spec in plan.specs])
    by_set: dict[str, list[MethodSummary]] = {}
    draws: list[Draws] = []
    for place, dataset in enumerate(plan.datasets):
        records = {spec.label: _records(kept, dataset.name, spec) for spec in plan.specs}
        on_set = [_on_set(spec, dataset.name, records[spec.label]) for spec in plan.specs if records[spec.label]]
        draws.append(_resample(records, dataset.n_samples, seed=(0, place)))
        by_set[dataset.name] = _with_differences(on_set, draws[-1], baseline)
    overall = [
        _overall([s for group in by_set.values() for s in group if s.spec == spec])
        for spec in plan.specs
        if any(s.spec == spec for group in by_set.values() for s in group)
    ]
    return ComparisonSummary(
        plan=plan,
        by_set=by_set,
        overall=_with_differences(overall, _mean_draws(draws), baseline),
        failed=[outcome for outcome in kept if outcome.error is not None],
        records=[outcome.record for outcome in kept if outcome.record is not None],
        baseline=baseline,
    )


def _trial_id(trial: Trial) -> tuple[str, str, int | None]:
    return trial.features, trial.spec.label, trial.seed


def _records(outcomes: Sequence[JobOutcome[Trial]], dataset: str, spec: MethodSpec) -> list[Record]:
    return [
        outcome.record
        for outcome in outcomes
        if outcome.record is not None and outcome.job.features == dataset and outcome.job.spec == spec
    ]


def _on_set(spec: MethodSpec, dataset: str, records: Sequence[Record]) -> MethodSummary:
    gains = [100 * (record["accuracy"] - record["zero_shot_accuracy"]) for record in records]
    peaks = [record["peak_bytes"] for record in records if record["peak_bytes"] is not None]
    return MethodSummary(
        spec=spec,
        sets=(dataset,),
        runs=len(records),
        accuracy=Spread.of([record["accuracy"] for record in records]),
        gain=Spread.of(gains),
        calibration_error=float(np.mean([record["calibration_error"] for record in records])),
        # The fastest run: other work on the machine can only slow a run down.
        microseconds=1e6 * min(record["seconds"] / record["scored"] for record in records),
        setup_seconds=min(record["setup_seconds"] for record in records),
        # The median, because the first run of a process can take more.
        peak_bytes=int(np.median(peaks)) if peaks else None,
        # Old records have no costs; their methods got one feature per image.
        costs={name: float(np.mean([r.get(name, usual) for r in records])) for name, usual in COSTS.items()},
        setup_prompts=float(np.mean([record.get("setup_prompts", 0) for record in records])),
    )


def _resample(records: Mapping[str, Sequence[Record]], n_rows: int, *, seed: Sequence[int]) -> Draws:
    """Of the methods all of whose records on a set say which samples were right."""
    cells: dict[str, Cell] = {}
    for label, own in records.items():
        runs = [outcomes for record in own if (outcomes := read_outcomes(record.get(OUTCOMES), n_rows)) is not None]
        if runs and len(runs) == len(own):
            cells[label] = [runs]
    found = resample_set(list(cells.values()), draws=DRAWS, seed=seed) if cells else np.empty((2, 0, DRAWS))
    return dict(zip(cells, found.swapaxes(0, 1), strict=True))


def _mean_draws(sets: Sequence[Draws]) -> Draws:
    """Means over the sets, of the methods that have draws on all."""
    labels = (label for label in sets[0] if all(label in draws for draws in sets))
    return {label: np.mean([draws[label] for draws in sets], axis=0) for label in labels}


def _with_differences(methods: Sequence[MethodSummary], draws: Draws, baseline: str | None) -> list[MethodSummary]:
    """The same summaries, with differences and intervals for methods that have draws."""
    known = [method for method in methods if method.spec.label in draws]
    to_best: dict[str, Difference] = {}
    for group in GROUPS:
        members = [method for method in known if method.spec.group == group]
        if len(members) > 1:
            best = max(members, key=lambda method: (method.accuracy.mean, method.gain.mean))
            to_best |= _differences_to(best.spec.label, members, draws)
    to_baseline = {} if baseline is None or baseline not in draws else _differences_to(baseline, known, draws)
    gains = {label: paired_intervals(*pair).tolist() for label, pair in draws.items()}
    return [
        replace(
            method,
            gain_interval=tuple(gains[method.spec.label]) if method.spec.label in gains else None,
            to_best=to_best.get(method.spec.label),
            to_baseline=to_baseline.get(method.spec.label),
        )
        for method in methods
    ]


def _differences_to(other: str, methods: Sequence[MethodSummary], draws: Draws) -> dict[str, Difference]:
    labels = [method.spec.label for method in methods]
    means = [method.accuracy.mean for method in methods]
    return differences_to(other, labels, means, np.stack([draws[label][0] for label in labels]))


def _overall(summary: Sequence[MethodSummary]) -> MethodSummary:
    peaks = [method_summary.peak_bytes for method_summary in summary if method_summary.peak_bytes is not None]
    return MethodSummary(
        spec=summary[0].spec,
        sets=tuple(name for method_summary in summary for name in method_summary.sets),
        runs=sum(method_summary.runs for method_summary in summary),
        accuracy=_mean_spread(summary, lambda method_summary: method_summary.accuracy),
        gain=_mean_spread(summary, lambda method_summary: method_summary.gain),
        calibration_error=float(np.mean([method_summary.calibration_error for method_summary in summary])),
        microseconds=float(np.mean([method_summary.microseconds for method_summary in summary])),
        setup_seconds=float(np.mean([method_summary.setup_seconds for method_summary in summary])),
        peak_bytes=max(peaks, default=None),
        costs={name: float(np.mean([method_summary.costs[name] for method_summary in summary])) for name in COSTS},
        setup_prompts=float(np.mean([method_summary.setup_prompts for method_summary in summary])),
    )


def _mean_spread(summary: Sequence[MethodSummary], of: Callable[[MethodSummary], Spread]) -> Spread:
    """The mean over sets for each order. A set with fewer orders contributes its mean to every order."""
    spreads = [of(method_summary) for method_summary in summary]
    orders = max(len(spread.values) for spread in spreads)
    columns = [spread.values if len(spread.values) == orders else (spread.mean,) * orders for spread in spreads]
    return Spread.of([float(np.mean(values)) for values in zip(*columns, strict=True)])
