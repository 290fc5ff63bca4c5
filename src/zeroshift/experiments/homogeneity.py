"""The paper's figure on covariances: do classes share one, as ADAPT assumes?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from zeroshift.evaluate import Analysis, Job
from zeroshift.experiments._shared.experiment import Experiment, JobResults, Options
from zeroshift.experiments._shared.findings import (
    Bar,
    Bars,
    Cell,
    Column,
    Finding,
    HeatMap,
    HeatMaps,
    Lines,
    Remark,
    Row,
    Series,
    Table,
    Value,
)
from zeroshift.experiments._shared.suite import PAPERS_SET, Member, Suite, clean_and_corrupted, is_paper_imagenet
from zeroshift.experiments._shared.tables import data_remark
from zeroshift.experiments._shared.trials import analysis
from zeroshift.features import FeatureSet

__all__ = [
    "EXPERIMENT",
    "NEAR",
    "SHOWN",
    "SHUFFLES",
    "covariance_spread",
    "covariances",
    "dissimilarities",
    "relative_distances",
    "spread",
    "traces",
]


NEAR = 0.1
"""The Frobenius distance below which the paper calls a class's covariance aligned with the pooled one."""

SHUFFLES = 19
"""Random re-assignments: a class like the others is farther than in all of these once in twenty."""

PAIRED = 30
PICTURED = 3
SHOWN = 32
"""Number of classes compared in pairs, number of covariances shown, and number of their dimensions shown."""

DIGITS = 7
"""Decimals of numbers that are only shown."""


def covariance_spread(
    features: FeatureSet, *, prompt: str, near: float = NEAR, shuffles: int = SHUFFLES, seed: int = 0
) -> dict[str, Any]:
    """Distances, traces and some covariances of the classes of a set. Classes with one sample are omitted.

    `classes`, `pictured` and `paired` hold class indices.

    For comparison, the same distances are computed after centring all samples on their class and assigning them to
    classes at random, so that all classes have the same covariance.
    """
    if features.labels is None:
        raise ValueError("covariances of classes need labels; this set has none.")
    labels = np.asarray(features.labels)
    classes = [k for k in range(features.n_classes) if np.count_nonzero(labels == k) >= 2]
    if not classes:
        raise ValueError("no class has two samples, so none has a covariance. Fix: a set with more samples per class.")
    groups = [np.asarray(features.features[labels == k], dtype=np.float64) for k in classes]
    pooled, distances, traces = spread(groups)
    rng = np.random.default_rng(seed)
    shuffled = np.array([spread(_shuffled_groups(groups, rng))[1] for _ in range(shuffles)]).reshape(
        shuffles, len(groups)
    )
    norm = float(np.linalg.norm(pooled))
    chosen = np.sort(rng.choice(len(groups), min(PAIRED, len(groups)), replace=False))
    pictured = np.sort(rng.choice(len(groups), min(PICTURED, len(groups)), replace=False))
    return {
        "classes": classes,
        "left_out": features.n_classes - len(classes),
        "zero_shot_accuracy": features.subset(np.isin(labels, classes)).zero_shot_accuracy(prompt),
        "pooled_norm": norm,
        "pooled_trace": float(np.trace(pooled)),
        "near": near,
        "share_near": float(np.mean(distances < near)),
        "distances": distances.tolist(),
        "traces": traces.tolist(),
        "sampling": shuffled.mean(axis=0).tolist(),
        "share_beyond_sampling": float(np.mean(distances > shuffled.max(axis=0))) if shuffles else None,
        "pictured": [classes[k] for k in pictured],
        "pooled": _corner(pooled),
        "covariances": [_corner(_covariance(groups[k])) for k in pictured],
        "paired": [classes[k] for k in chosen],
        "dissimilarity": np.round(_dissimilarity([groups[k] for k in chosen]) / norm, DIGITS).tolist(),
    }


def spread(groups: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The pooled covariance (d, d), each group's Frobenius distance to it (K,) and each group's trace (K,).

    >>> pooled, distances, traces = spread([np.array([[-1.0, 0.0], [1.0, 0.0]]), np.array([[0.0, -1.0], [0.0, 1.0]])])
    >>> pooled.tolist(), distances.round(3).tolist(), traces.tolist()
    ([[1.0, 0.0], [0.0, 1.0]], [1.414, 1.414], [2.0, 2.0])
    """
    degrees = sum(len(group) - 1 for group in groups)
    pooled = sum((len(group) - 1) * _covariance(group) for group in groups) / degrees
    # Computed twice instead of stored: a thousand classes in 512 dimensions take 2 GB.
    pairs = [(float(np.linalg.norm(c - pooled)), float(np.trace(c))) for c in map(_covariance, groups)]
    distances, traces = np.array(pairs).T
    return np.asarray(pooled), distances, traces


def _covariance(group: np.ndarray) -> np.ndarray:
    centred = group - group.mean(axis=0)
    return np.asarray(centred.T @ centred / (len(group) - 1))


def _shuffled_groups(groups: Sequence[np.ndarray], rng: np.random.Generator) -> list[np.ndarray]:
    # Centring on the mean of n samples shrinks the covariance by (n - 1) / n; this compensates.
    centred = [(group - group.mean(axis=0)) * np.sqrt(len(group) / (len(group) - 1)) for group in groups]
    dealt = rng.permutation(np.concatenate(centred))
    return np.split(dealt, np.cumsum([len(group) for group in groups])[:-1])


def _dissimilarity(groups: Sequence[np.ndarray]) -> np.ndarray:
    covariances = np.array([_covariance(group).ravel() for group in groups])
    return np.array([np.linalg.norm(covariances - one, axis=1) for one in covariances])


def _corner(covariance: np.ndarray) -> list[list[float]]:
    found: list[list[float]] = np.round(covariance[:SHOWN, :SHOWN], DIGITS).tolist()
    return found


BARS = 30
"""Maximum number of classes drawn as bars."""

WRITTEN = 12
"""Maximum number of classes for writing the distances into the cells."""


def relative_distances(shown: Sequence[tuple[Member, Mapping[str, Any]]]) -> Lines:
    """Cumulative distribution of the distances, with that expected from sampling alone."""
    series = []
    for member, record in shown:
        for label, field in ((member.name, "distances"), (f"{member.name}, sampling alone", "sampling")):
            ordered = np.sort(np.array(record[field]) / record["pooled_norm"])
            shares = np.arange(1, len(ordered) + 1) / len(ordered)
            series.append(Series(label, tuple(ordered.tolist()), tuple(shares.tolist())))
    return Lines(
        "relative-distances",
        "How far classes are from the pooled covariance",
        "Frobenius distance over the norm of the pooled covariance",
        "share of classes at most so far",
        tuple(series),
        "A class whose covariance were zero everywhere would be at 1.",
        steps=True,
    )


def traces(member: Member, record: Mapping[str, Any], place: int) -> Bars:
    names = _names(member, record["classes"])
    bars = [Bar(name, trace) for name, trace in zip(names, record["traces"], strict=True)]
    return Bars(
        f"traces-{place + 1}",
        f"Trace of each class's covariance: {member.name}",
        "trace",
        (*bars[:BARS], Bar("pooled", record["pooled_trace"])),
        f"The first {BARS} classes of {len(bars)}." if len(bars) > BARS else "",
    )


def covariances(member: Member, record: Mapping[str, Any], place: int) -> HeatMaps:
    names = _names(member, record["pictured"])
    maps = [HeatMap("pooled", np.array(record["pooled"]))]
    maps += [HeatMap(name, np.array(values)) for name, values in zip(names, record["covariances"], strict=True)]
    return HeatMaps(
        f"covariances-{place + 1}",
        f"Covariances of some classes next to the pooled one: {member.name}",
        tuple(maps),
        f"The first {SHOWN} feature dimensions; classes drawn at random.",
        unit="covariance",
        diverging=True,
    )


def dissimilarities(member: Member, record: Mapping[str, Any], place: int) -> HeatMaps:
    names = _names(member, record["paired"])
    return HeatMaps(
        f"dissimilarity-{place + 1}",
        f"How unlike the covariances of two classes are: {member.name}",
        (HeatMap("", np.array(record["dissimilarity"]), names, names),),
        "Frobenius distance of two classes' covariances over the norm of the pooled one.",
        unit="relative distance",
        written=len(names) <= WRITTEN,
    )


def _names(member: Member, classes: Sequence[int]) -> tuple[str, ...]:
    """Class names by index; records hold only indices."""
    return tuple(member.dataset.class_names[k] for k in classes)


PAPERS_SHARE = 0.993
"""Fraction of ImageNet's classes within 0.1 of the pooled covariance, according to the paper."""

BY_CHANCE = 1 / (SHUFFLES + 1)
"""Expected fraction of classes farther than in every shuffle if all share one covariance."""


def _job(member: Member) -> Analysis:
    return analysis(member, covariance_spread, {"near": NEAR, "seed": 0})


def _plan(suite: Suite, options: Options) -> Sequence[Job]:
    # A covariance needs two samples.
    return [_job(member) for member in suite.members if member.dataset.spare]


def _find(suite: Suite, options: Options, results: JobResults) -> Sequence[Finding | None]:
    able = [member for member in suite.members if member.dataset.spare]
    if not able:
        return [Remark("No set has a class with two samples, which a covariance needs.", kind="warning")]
    found = [(member, record) for member in able if (record := results.record(_job(member))) is not None]
    if not found:
        return [Remark("There is no result: every run failed.", kind="warning")]
    findings: list[Finding | None] = [_table(found)]
    names = {member.name for member in clean_and_corrupted(suite)}
    shown = [(member, record) for member, record in found if member.name in names]
    findings += [relative_distances(shown)] if shown else []
    for place, (member, record) in enumerate(shown):
        findings += [traces(member, record, place), covariances(member, record, place)]
        findings.append(dissimilarities(member, record, place))
    findings += _remarks([record for _, record in found])
    findings.append(data_remark(suite, "The paper's distances and", needs=(PAPERS_SET,), prompts=False))
    return findings


def _table(found: Sequence[tuple[Member, Mapping[str, Any]]]) -> Table:
    rows = []
    for member, record in found:
        norm = record["pooled_norm"]
        distances, sampling = np.array(record["distances"]), np.array(record["sampling"])
        printed = PAPERS_SHARE if is_paper_imagenet(member) else None
        cells: tuple[Cell, ...] = (
            member.name,
            Value(float(len(distances))),
            Value(norm),
            _spread(distances),
            Value(record["share_near"], paper=printed),
            _spread(distances / norm),
            _spread(sampling / norm),
            Value(record["share_beyond_sampling"]),
        )
        rows.append(Row(cells))
    n_left_out = sum(record["left_out"] for _, record in found)
    return Table(
        "distances",
        "Frobenius distance of each class's covariance to the pooled one",
        (
            Column("set", "text"),
            Column("classes", "count"),
            Column("norm of the pooled covariance", "number"),
            Column("distance", "number", "mean of the classes"),
            Column(f"classes nearer than {NEAR:g}"),
            Column("relative distance", "percent", "distance over norm"),
            Column("by sampling alone, relative distance", "percent", "for reference"),
            Column("classes beyond sampling", "percent", f"{BY_CHANCE:.1%} if all share one"),
        ),
        tuple(rows),
        (
            "Ranges are over the classes. Sampling alone: samples, each centred on its class, are assigned to classes "
            f"at random {SHUFFLES} times; a class is beyond sampling if its distance exceeds all of those. This "
            "favours a shared covariance: a class of little spread may even be nearer than sampling would put it.",
            *([f"{n_left_out} classes of a single sample or none are left out."] if n_left_out else []),
        ),
    )


def _remarks(records: Sequence[Mapping[str, Any]]) -> list[Remark]:
    lenient = sum(record["pooled_norm"] < record["near"] for record in records)
    found = [
        Remark(
            f"A distance below {NEAR:g} says little by itself: features have unit length, so the covariance of n "
            "samples has a trace of at most n / (n - 1), and most often a far smaller norm. If the pooled norm is "
            f"itself below {NEAR:g} ({lenient} of {len(records)} sets here), even a class without any spread would "
            "count as aligned. Read the relative distance, and compare it with that of sampling alone."
        )
    ]
    mean = float(np.mean([record["share_beyond_sampling"] for record in records]))
    if mean > 2 * BY_CHANCE:
        sets = "" if len(records) == 1 else f", on the mean of {len(records)} sets, weighted equally,"
        found.append(
            Remark(
                f"Of the classes of a set{sets} {mean:.1%} are farther from the pooled covariance than sampling "
                f"explains; {BY_CHANCE:.1%} would be if all shared one: the covariances differ. The shared one is "
                "then a simplification that saves samples, not a fact about these features.",
                kind="warning",
            )
        )
    near = [float(record["share_near"]) for record in records]
    if min(near) < PAPERS_SHARE:
        here = f"{near[0]:.1%}" if len(near) == 1 else f"{min(near):.1%} to {max(near):.1%} of a set's"
        found.append(
            Remark(
                f"The paper finds {PAPERS_SHARE:.1%} of ImageNet's classes nearer than {NEAR:g}; here it is {here}.",
                kind="warning",
            )
        )
    return found


def _spread(values: np.ndarray) -> Value:
    return Value(float(values.mean()), float(values.min()), float(values.max()))


EXPERIMENT = Experiment(
    name="homogeneity",
    title="Do classes share a covariance?",
    question="How far is each class's covariance from the pooled one, and how much of that is sampling?",
    plan=_plan,
    find=_find,
    where="Figure 4",
)
