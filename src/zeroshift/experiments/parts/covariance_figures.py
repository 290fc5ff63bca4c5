"""The pictures of the covariances of classes: distances, traces, some covariances, and how unlike pairs are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from zeroshift.experiments.parts.covariance_spread import SHOWN
from zeroshift.experiments.parts.findings import Bar, Bars, HeatMap, HeatMaps, Lines, Series
from zeroshift.experiments.parts.suite import Member

__all__ = ["covariances", "dissimilarities", "relative_distances", "traces"]

BARS = 30
"""Classes drawn as bars, at most."""

WRITTEN = 12
"""Classes whose pairwise distances are few enough to be written into the fields."""


def relative_distances(shown: Sequence[tuple[Member, Mapping[str, Any]]]) -> Lines:
    """How many classes lie how far, and how far sampling alone would put them."""
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
        f"Covariances of some classes beside the pooled one: {member.name}",
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
    """Records hold indices: what classes are called is no part of what a set holds."""
    return tuple(member.entry.class_names[k] for k in classes)
