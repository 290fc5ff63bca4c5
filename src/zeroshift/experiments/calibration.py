"""Calibration error, log loss and Brier score before and after adaptation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from zeroshift.evaluate import Job
from zeroshift.evaluate.metrics.calibration import BINS, LEAST_PROBABILITY
from zeroshift.evaluate.metrics.scorecard import Scorecard
from zeroshift.evaluate.resources import one_blas_thread
from zeroshift.experiments._shared.experiment import Experiment, JobResults, Options
from zeroshift.experiments._shared.findings import (
    Column,
    Finding,
    Reliability,
    ReliabilityPanel,
    Remark,
    Row,
    Table,
    Value,
)
from zeroshift.experiments._shared.suite import Member, Suite, describe_sets
from zeroshift.experiments._shared.trials import analysis, mean_of_sets, runs
from zeroshift.features import FeatureSet
from zeroshift.mixture.base import AnchoredMixture
from zeroshift.mixture.online import OnlineAnchoredMixture
from zeroshift.mixture.statistics import Mixture
from zeroshift.mixture.sums import Sums
from zeroshift.mixture.transductive import TransductiveAnchoredMixture

__all__ = ["EXPERIMENT", "UNTEMPERED_METHODS", "untempered"]


class _Untempered(AnchoredMixture):
    """A mixture with temperature 1. The temperature does not affect learning, so that predicted classes stay the
    same."""

    def _estimate(self, sums: Sums) -> Mixture | None:
        found = super()._estimate(sums)
        return None if found is None else replace(found, temperature=1.0)


class _UntemperedOnline(_Untempered, OnlineAnchoredMixture):
    pass


class _UntemperedTransductive(_Untempered, TransductiveAnchoredMixture):
    pass


UNTEMPERED_METHODS: dict[str, type[AnchoredMixture]] = {
    OnlineAnchoredMixture.name: _UntemperedOnline,
    TransductiveAnchoredMixture.name: _UntemperedTransductive,
}
"""The mixtures without temperature, by the name of the mixture."""


def untempered(features: FeatureSet, *, prompt: str, method: str, seed: int) -> dict[str, Any]:
    """Run a mixture without temperature on a labelled set, in the random order of this seed; returns `accuracy`,
    `calibration_error`, `nll`, `brier` and the bins, as in the record of a run."""
    if method not in UNTEMPERED_METHODS:
        raise ValueError(f"method must be one of {', '.join(UNTEMPERED_METHODS)}; got {method!r}.")
    if features.labels is None:
        raise ValueError(f"features must be labelled; got {features!r}.")
    order = np.random.default_rng(seed).permutation(features.n_samples)
    mixture = UNTEMPERED_METHODS[method](features.prototypes_for(prompt), logit_scale=features.logit_scale)
    card = Scorecard(features.n_classes)
    with one_blas_thread():
        card.update(mixture.adapt(np.asarray(features.features[order])), features.labels[order])
    return {**card.record(), "detail": card.detail()}


METHODS = {
    "zero_shot": "zero-shot",
    "adapt_online": "ADAPT (online)",
    "tda": "TDA",
    "anchored_mixture_online untempered": "mixture (online), untempered",
    "anchored_mixture_online": "mixture (online)",
    "adapt_transductive": "ADAPT (transductive)",
    "transclip": "TransCLIP",
    "anchored_mixture_transductive untempered": "mixture (transductive), untempered",
    "anchored_mixture_transductive": "mixture (transductive)",
}
"""Compared methods and their labels. `untempered` is the mixture without its temperature: the same predicted classes
with other probabilities."""

UNTEMPERED = " untempered"

MEASURES = {"calibration_error": "calibration error", "nll": "log loss", "brier": "Brier score"}
"""Fields of a record; lower is better."""

LEAST_DIFFERENCE = 0.001
"""Smaller differences are not visible in tables and count as equal."""

Record = Mapping[str, Any]


def _jobs(member: Member, method: str) -> Sequence[Job]:
    """One order: the spread over orders is far smaller than the differences between methods."""
    if not method.endswith(UNTEMPERED):
        return runs(member, method)
    parameters = {"method": method.removesuffix(UNTEMPERED), "seed": 0}
    return [analysis(member, untempered, parameters)]


def _plan(suite: Suite, options: Options) -> Sequence[Job]:
    return [job for member in suite.members for method in METHODS for job in _jobs(member, method)]


def _find(suite: Suite, options: Options, results: JobResults) -> Sequence[Finding | None]:
    by_method = {method: [_jobs(member, method) for member in suite.members] for method in METHODS}
    means = {
        method: {field: mean_of_sets(results, by_set, field) for field in ("accuracy", *MEASURES)}
        for method, by_set in by_method.items()
    }
    whole = {method: all(results.records(jobs) for jobs in by_set) for method, by_set in by_method.items()}
    panels = [
        _panel(method, [record for jobs in by_set for record in results.records(jobs)])
        for method, by_set in by_method.items()
        if whole[method]
    ]
    failed = [METHODS[method] for method in METHODS if not whole[method]]
    if not panels:
        return [Remark("Some run of every method failed, so there is no result on calibration.", kind="warning")]
    figure = Reliability(
        "reliability",
        "Accuracy against confidence",
        tuple(panels),
        f"{BINS} bins of confidence, the samples of all sets together ({describe_sets(suite.members)}). Bars below the "
        "diagonal are over-confident, above it under-confident.",
    )
    lacking = f"No result on some set, and so no mean: {', '.join(failed)}."
    return [_table(suite, means), figure, *_worse(means), *([Remark(lacking, kind="warning")] if failed else [])]


def _table(suite: Suite, means: Mapping[str, Mapping[str, Value | None]]) -> Table:
    columns = (
        Column("method", "text"),
        Column("accuracy"),
        Column("calibration error", "percent", f"ECE, {BINS} bins"),
        Column("log loss", "number", "nats"),
        Column("Brier score", "number", "0 to 2"),
    )
    rows = []
    for method, label in METHODS.items():
        cells = [_marked(means, method, field) for field in ("accuracy", *MEASURES)]
        rows.append(Row((label, *cells), strong=method == "adapt_online"))
    notes = (
        f"Means over the sets, each counting the same: {describe_sets(suite.members)}. One random order.",
        "The logit scale is the set's own for every method; nothing is tuned for calibration.",
        "The mixtures set their own temperature without labels; untempered is without it.",
        f"In the log loss a probability below {LEAST_PROBABILITY:g} counts as that: "
        f"{-np.log(LEAST_PROBABILITY):.1f} nats for a certain and wrong prediction.",
    )
    return Table("calibration", "Calibration of the methods", columns, tuple(rows), notes)


def _marked(means: Mapping[str, Mapping[str, Value | None]], method: str, field: str) -> Value | None:
    """The cell, marked if it is the best of its column: the highest accuracy, or the lowest of another measure. None
    is marked if a method failed."""
    cell = means[method][field]
    others = [other.value for row in means.values() if (other := row[field]) is not None]
    if cell is None or len(others) < len(means):
        return cell
    best = max(others) if field == "accuracy" else min(others)
    return replace(cell, best=cell.value == best)


def _panel(method: str, records: Sequence[Record]) -> ReliabilityPanel:
    """The bins of all sets combined, weighted by samples."""
    counts, right, confidence = np.zeros(BINS), np.zeros(BINS), np.zeros(BINS)
    for record in records:
        bins = record["detail"]["reliability"]
        count, mean = np.asarray(bins["count"], float), np.asarray(bins["confidence"])
        # The mean confidence identifies the bin; 1e-9 absorbs rounding at its upper end.
        place = np.clip(np.ceil(mean * BINS - 1e-9).astype(int) - 1, 0, BINS - 1)
        np.add.at(counts, place, count)
        np.add.at(confidence, place, count * mean)
        np.add.at(right, place, count * np.asarray(bins["accuracy"]))
    held = counts > 0
    return ReliabilityPanel(
        METHODS[method],
        tuple((confidence[held] / counts[held]).tolist()),
        tuple((right[held] / counts[held]).tolist()),
        tuple((counts[held] / counts.sum()).tolist()),
        float(np.abs(right - confidence).sum() / counts.sum()),
        "" if method.endswith(UNTEMPERED) else method,
    )


def _worse(means: Mapping[str, Mapping[str, Value | None]]) -> list[Remark]:
    """Which methods are calibrated worse than zero-shot."""
    worse: dict[str, list[str]] = {}
    for method, label in METHODS.items():
        for field, words in MEASURES.items():
            ours, before = means[method][field], means["zero_shot"][field]
            if method == "zero_shot" or ours is None or before is None:
                continue
            detail = worse.setdefault(label, [])
            if ours.value - before.value >= LEAST_DIFFERENCE:
                detail.append(f"{words} {_format(field, ours)} against {_format(field, before)}")
    if not worse:
        return []
    text = [f"{label} ({', '.join(detail)})" for label, detail in worse.items() if detail]
    if text:
        return [Remark(f"Calibrated worse than zero-shot on the mean of the sets: {'; '.join(text)}.", kind="warning")]
    return [
        Remark(f"On the mean of the sets none of the three measures is worse than zero-shot's: {', '.join(worse)}.")
    ]


def _format(field: str, value: Value) -> str:
    return f"{100 * value.value:.1f}%" if field == "calibration_error" else f"{value.value:.3f}"


EXPERIMENT = Experiment(
    name="calibration",
    title="Calibration",
    question="Are probabilities still calibrated after adaptation?",
    plan=_plan,
    find=_find,
)
