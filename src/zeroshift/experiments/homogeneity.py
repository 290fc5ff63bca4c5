"""The paper's figure on covariances: do classes share one, as ADAPT assumes?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from zeroshift.evaluate import Analysis, Job
from zeroshift.experiments.parts.covariance_figures import (
    covariances,
    dissimilarities,
    relative_distances,
    traces,
)
from zeroshift.experiments.parts.covariance_spread import NEAR, SHUFFLES, covariance_spread
from zeroshift.experiments.parts.experiment import Answers, Experiment, Options
from zeroshift.experiments.parts.findings import Cell, Column, Finding, Remark, Row, Table, Value
from zeroshift.experiments.parts.pictured_sets import clean_and_corrupted
from zeroshift.experiments.parts.suite import Member, Suite
from zeroshift.experiments.parts.task_table import data_remark
from zeroshift.experiments.parts.tasks import PAPERS_BACKBONE

__all__ = ["EXPERIMENT"]

PAPERS_SET = "imagenet"
PAPERS_SHARE = 0.993
"""Share of ImageNet's classes nearer than 0.1 to the pooled covariance, in the paper's text."""

BY_CHANCE = 1 / (SHUFFLES + 1)
"""Share of classes that lie farther than in every shuffle where all have one covariance."""


def _job(member: Member) -> Analysis:
    entry = member.entry
    return Analysis(entry.name, entry.digest, entry.prompt, covariance_spread, {"near": NEAR, "seed": 0})


def _plan(suite: Suite, options: Options) -> Sequence[Job]:
    # One sample has no covariance.
    return [_job(member) for member in suite.members if member.entry.spare]


def _find(suite: Suite, options: Options, answers: Answers) -> Sequence[Finding]:
    able = [member for member in suite.members if member.entry.spare]
    if not able:
        return [Remark("No set has a class of two samples, without which there is no covariance.", kind="warning")]
    found = [(member, record) for member in able if (record := answers.of(_job(member))) is not None]
    if not found:
        return [Remark("No set could be looked at: every run failed.", kind="warning")]
    findings: list[Finding | None] = [_table(found)]
    names = {member.name for member in clean_and_corrupted(suite)}
    shown = [(member, record) for member, record in found if member.name in names]
    findings += [relative_distances(shown)] if shown else []
    for place, (member, record) in enumerate(shown):
        findings += [traces(member, record, place), covariances(member, record, place)]
        findings.append(dissimilarities(member, record, place))
    findings += _remarks([record for _, record in found])
    findings.append(data_remark(suite, "The paper's distances and", needs=(PAPERS_SET,), prompts=False))
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
            Column("by sampling alone, relative distance", "percent", "the yardstick"),
            Column("classes beyond sampling", "percent", f"{BY_CHANCE:.1%} where all share one"),
        ),
        tuple(rows),
        (
            "Ranges are over the classes. Sampling alone: samples, each centred on its class, dealt to the classes "
            f"anew {SHUFFLES} times; a class is beyond sampling where its distance exceeds all of those. That "
            "errs to the side of sharing: a class of little spread may even lie nearer than sampling would put it.",
            *([f"{left_out} classes of a single sample or none are left out."] if left_out else []),
        ),
    )


def _remarks(records: Sequence[Mapping[str, Any]]) -> list[Remark]:
    lenient = sum(record["pooled_norm"] < record["near"] for record in records)
    found = [
        Remark(
            f"A distance below {NEAR:g} says little by itself: features have unit length, so the covariance of n "
            "samples has a trace of at most n / (n - 1), and most often a far smaller norm. Where the pooled norm is "
            f"itself below {NEAR:g} ({lenient} of {len(records)} sets here), even a class without any spread would "
            "count as aligned. The relative distance and what sampling alone gives are the numbers to read."
        )
    ]
    mean = float(np.mean([record["share_beyond_sampling"] for record in records]))
    if mean > 2 * BY_CHANCE:
        sets = "" if len(records) == 1 else f", in the mean over {len(records)} sets, each counting the same,"
        found.append(
            Remark(
                f"Of the classes of a set{sets} {mean:.1%} lie farther from the pooled covariance than sampling "
                f"explains, where {BY_CHANCE:.1%} would if all shared one: the covariances differ. The shared one is "
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


def _is_papers(member: Member) -> bool:
    return member.papers and member.data_set == PAPERS_SET and member.encoder == PAPERS_BACKBONE


EXPERIMENT = Experiment(
    name="homogeneity",
    title="Do classes share a covariance?",
    question="How far is each class's covariance from the pooled one, and how much of that is sampling?",
    plan=_plan,
    find=_find,
    where="Figure on covariance analysis (appendix)",
)
