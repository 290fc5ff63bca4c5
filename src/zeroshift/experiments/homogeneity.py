"""The paper's figure on covariances: do classes share one, as ADAPT assumes?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from zeroshift.evaluate import Analysis, Job
from zeroshift.experiments.parts.covariance_spread import NEAR, SHOWN, SHUFFLES, covariance_spread
from zeroshift.experiments.parts.experiment import Answers, Experiment, Options
from zeroshift.experiments.parts.findings import (
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
from zeroshift.experiments.parts.pictured_sets import clean_and_corrupted
from zeroshift.experiments.parts.suite import Member, Suite
from zeroshift.experiments.parts.task_table import data_remark

__all__ = ["EXPERIMENT"]

PAPERS_SHARE = 0.993
"""Share of ImageNet's classes nearer than 0.1 to the pooled covariance, in the paper's text."""

BARS = 30
"""Classes drawn as bars, at most."""

BY_CHANCE = 1 / (SHUFFLES + 1)
"""Share of classes that lie farther than in every shuffle where all have one covariance."""


def _job(member: Member) -> Analysis:
    entry = member.entry
    return Analysis(entry.name, entry.digest, entry.prompt, covariance_spread, {"near": NEAR, "seed": 0})


def _plan(suite: Suite, options: Options) -> Sequence[Job]:
    # One sample has no covariance.
    return [_job(member) for member in suite.members if member.entry.spare]


def _find(suite: Suite, options: Options, answers: Answers) -> Sequence[Finding]:
    found = [(member, record) for member in suite.members if (record := answers.of(_job(member))) is not None]
    if not found:
        return [Remark("No set has a class of two samples, without which there is no covariance.", kind="warning")]
    findings: list[Finding | None] = [_table(found)]
    names = {member.name for member in clean_and_corrupted(suite)}
    shown = [(member, record) for member, record in found if member.name in names]
    findings += [_distances(shown)] if shown else []
    for place, (member, record) in enumerate(shown):
        findings += [_traces(member, record, place), _covariances(member, record, place), _pairs(member, record, place)]
    findings += [*_remarks([record for _, record in found]), data_remark(suite, "The paper's distances and")]
    return [finding for finding in findings if finding is not None]


def _table(found: Sequence[tuple[Member, Mapping[str, Any]]]) -> Table:
    rows = []
    for member, record in found:
        norm = record["pooled_norm"]
        distances, sampling = np.array(record["distances"]), np.array(record["sampling"])
        printed = PAPERS_SHARE if _is_papers(member) else None
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
    left_out = sum(record["left_out"] for _, record in found)
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
            Column("relative, by sampling alone", "percent", "the yardstick"),
            Column("classes beyond sampling", "percent", f"{BY_CHANCE:.0%} where all share one"),
        ),
        tuple(rows),
        (
            "Ranges are over the classes. Sampling alone: samples, each centred on its class, dealt to the classes "
            f"anew {SHUFFLES} times; a class is beyond sampling where its distance exceeds all of those. That "
            "errs to the side of sharing: a class of little spread may even lie nearer than sampling would put it.",
            *([f"{left_out} classes of a single sample or none are left out."] if left_out else []),
        ),
    )


def _distances(shown: Sequence[tuple[Member, Mapping[str, Any]]]) -> Lines:
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


def _traces(member: Member, record: Mapping[str, Any], place: int) -> Bars:
    bars = [Bar(name, trace) for name, trace in zip(record["class_names"], record["traces"], strict=True)]
    return Bars(
        f"traces-{place + 1}",
        f"Trace of each class's covariance: {member.name}",
        "trace",
        (*bars[:BARS], Bar("pooled", record["pooled_trace"])),
        f"The first {BARS} classes of {len(bars)}." if len(bars) > BARS else "",
    )


def _covariances(member: Member, record: Mapping[str, Any], place: int) -> HeatMaps:
    names = [record["class_names"][k] for k in record["pictured"]]
    maps = [HeatMap("pooled", np.array(record["pooled"]))]
    maps += [HeatMap(name, np.array(values)) for name, values in zip(names, record["covariances"], strict=True)]
    return HeatMaps(
        f"covariances-{place + 1}",
        f"Covariances of some classes beside the pooled one: {member.name}",
        tuple(maps),
        f"The first {SHOWN} feature dimensions; classes drawn at random.",
        unit="covariance",
        diverging=True,
    )


def _pairs(member: Member, record: Mapping[str, Any], place: int) -> HeatMaps:
    names = tuple(record["class_names"][k] for k in record["paired"])
    return HeatMaps(
        f"dissimilarity-{place + 1}",
        f"How unlike the covariances of two classes are: {member.name}",
        (HeatMap("", np.array(record["dissimilarity"]), names, names),),
        "Frobenius distance of two classes' covariances over the norm of the pooled one.",
        unit="relative distance",
        written=len(names) <= 12,
    )


def _remarks(records: Sequence[Mapping[str, Any]]) -> list[Remark]:
    if not records:
        return []
    lenient = sum(record["pooled_norm"] < record["near"] for record in records)
    found = [
        Remark(
            f"A distance below {NEAR:g} says little by itself: features have unit length, so a covariance has a trace "
            "of at most 1 and most often a far smaller norm. Where the pooled norm is itself below "
            f"{NEAR:g} ({lenient} of {len(records)} sets here), even a class without any spread would count as "
            "aligned. The relative distance and what sampling alone gives are the numbers to read."
        )
    ]
    beyond = [float(record["share_beyond_sampling"]) for record in records]
    mean = float(np.mean(beyond))
    if mean > 2 * BY_CHANCE:
        found.append(
            Remark(
                f"{mean:.0%} of the classes lie farther from the pooled covariance than sampling explains, where "
                f"{BY_CHANCE:.0%} would if all shared one: the covariances differ. The shared one is then a "
                "simplification that saves samples, not a fact about these features.",
                kind="warning",
            )
        )
    near = [float(record["share_near"]) for record in records]
    if min(near) < PAPERS_SHARE:
        found.append(
            Remark(
                f"The paper finds {PAPERS_SHARE:.1%} of ImageNet's classes nearer than {NEAR:g}; here it is "
                f"{min(near):.1%} to {max(near):.1%} of a set's.",
                kind="warning",
            )
        )
    return found


def _spread(values: np.ndarray) -> Value:
    return Value(float(values.mean()), float(values.min()), float(values.max()))


def _is_papers(member: Member) -> bool:
    return member.papers and member.data_set == "imagenet" and member.encoder == "CLIP ViT-B/16"


EXPERIMENT = Experiment(
    name="homogeneity",
    title="Do classes share a covariance?",
    question="How far is each class's covariance from the pooled one, and how much of that is sampling?",
    plan=_plan,
    find=_find,
    where="Figure on covariance analysis (appendix)",
)
