"""The paper's figure of decision boundaries: how methods divide a plane of the features."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from zeroshift.evaluate import Analysis, Job
from zeroshift.experiments.parts.claims import Evidence, higher, verdict
from zeroshift.experiments.parts.experiment import Answers, Experiment, Options
from zeroshift.experiments.parts.findings import Column, Finding, Region, Regions, Remark, Row, Table, Value
from zeroshift.experiments.parts.pictured_sets import clean_and_corrupted
from zeroshift.experiments.parts.plane_regions import METHODS, plane_regions
from zeroshift.experiments.parts.suite import Member, Suite, together

__all__ = ["EXPERIMENT"]

LABELS = {
    "zero_shot": "zero-shot",
    "tda": "TDA",
    "adapt_online": "ADAPT, online",
    "adapt_transductive": "ADAPT, transductive",
}

PAPERS_SET = "ImageNet-A"
"""What the paper's figure is of."""

ALIKE = 0.1
"""Boundaries whose lengths differ by a smaller share of the longer one are too alike to call one smoother."""


def _job(member: Member) -> Analysis:
    entry = member.entry
    return Analysis(entry.name, entry.digest, entry.prompt, plane_regions, {"seed": 0})


def _plan(suite: Suite, options: Options) -> Sequence[Job]:
    return [_job(member) for member in clean_and_corrupted(suite)]


def _find(suite: Suite, options: Options, answers: Answers) -> Sequence[Finding]:
    pictured = clean_and_corrupted(suite)
    found = [(member, record) for member in pictured if (record := answers.of(_job(member))) is not None]
    if not found:
        return [Remark("Nothing is drawn: there is no set, or every run failed.", kind="warning")]
    pictures = [_regions(member, record, place) for place, (member, record) in enumerate(found)]
    return [*pictures, _table(found), *_remarks(found), _papers_figure([member for member, _ in found])]


def _regions(member: Member, record: Mapping[str, Any], place: int) -> Regions:
    half = record["half_side"]
    return Regions(
        f"regions-{place + 1}",
        f"Decision regions in a plane: {member.name}",
        tuple(
            Region(LABELS[name], np.array(region["classes"]), region["accuracy"], name)
            for name, region in record["regions"].items()
        ),
        (-half, half, -half, half),
        np.array(record["points"]),
        np.array(record["labels"]),
        tuple(member.entry.class_names[k] for k in record["classes"]),
        np.array(record["anchors"]),
        f"{len(record['classes'])} classes drawn at random, {record['rows']} samples, {len(record['points'])} of "
        f"them shown. The plane of the first two principal components keeps {record['kept']:.1%} of their variance in "
        f"{record['dimension']} dimensions. Accuracies are those in the plane.",
    )


def _table(found: Sequence[tuple[Member, Mapping[str, Any]]]) -> Table:
    rows = []
    for member, record in found:
        for name in METHODS:
            region = record["regions"][name]
            values = (region["accuracy"], region["accuracy_in_all_dimensions"], region["boundary"])
            held = Value(float(region["classes_with_a_region"]))
            rows.append(Row((LABELS[name], *(Value(value) for value in values), held), member.name))
    return Table(
        "plane",
        "The same samples and classes in the plane and in all dimensions",
        (
            Column("method", "text"),
            Column("accuracy in the plane"),
            Column("accuracy in all dimensions"),
            Column("boundary", "percent", "neighbouring fields that differ"),
            Column("classes with a region", "count"),
        ),
        tuple(rows),
        (
            "One random order. The boundary is the share of neighbouring fields of the grid that belong to two "
            "classes; it is short, too, where a class has lost its region.",
        ),
    )


def _remarks(found: Sequence[tuple[Member, Mapping[str, Any]]]) -> list[Remark]:
    remarks = [
        Remark(
            "An illustration, not the classifiers the tables measure: a plane keeps a small part of what tells classes "
            "apart. Methods need unit length, so samples are projected to the plane of their first two principal "
            "components and lifted from there to a sphere in three dimensions, (u, v, sqrt(1 - u^2 - v^2)); prototypes "
            "likewise, centred on their own mean and brought to the samples' radius; and the logit scale is set so "
            "that zero-shot logits vary as much as in all dimensions. Methods adapt to the lifted samples with their "
            "default settings and then predict every field."
        )
    ]
    lost = [
        f"{LABELS[name]} on {member.name}"
        for member, record in found
        for name in METHODS
        if not _all_have_regions(record, (name,))
    ]
    if lost:
        remarks.append(Remark(f"Classes without any region left: {'; '.join(lost)}.", kind="warning"))
    # A boundary is short, too, where a class has no region left: that is not a smooth one.
    whole = [(member, record) for member, record in found if _all_have_regions(record, ("adapt_online", "tda"))]
    smoother = verdict("ADAPT's boundaries are smoother than TDA's", [_smoother(*pair) for pair in whole])
    worse = [member.name for member, record in found if _gains(record) is False]
    if worse:
        text = f"In the plane online ADAPT is worse than zero-shot on {', '.join(worse)}."
        remarks.append(Remark(text, kind="warning"))
    return [*remarks, *([] if smoother is None else [smoother])]


def _smoother(member: Member, record: Mapping[str, Any]) -> Evidence:
    ours, theirs = _boundary(record, "adapt_online"), _boundary(record, "tda")
    holds = None if abs(ours - theirs) <= ALIKE * max(ours, theirs) else ours < theirs
    told = f"neighbouring fields that differ: {ours:.1%} online, {theirs:.1%} for TDA"
    return Evidence(member.name, holds, told)


def _all_have_regions(record: Mapping[str, Any], methods: Sequence[str]) -> bool:
    return all(record["regions"][name]["classes_with_a_region"] == len(record["classes"]) for name in methods)


def _gains(record: Mapping[str, Any]) -> bool | None:
    """Whether online ADAPT is above zero-shot in the plane."""
    ours, base = (float(record["regions"][name]["accuracy"]) for name in ("adapt_online", "zero_shot"))
    return higher(ours, base, samples=record["rows"])


def _papers_figure(members: Sequence[Member]) -> Remark:
    return Remark(
        f"The paper's figure shows {PAPERS_SET}, as CLIP, TPT, TDA and ADAPT divide it. Ours shows {together(members)} "
        f"({' and '.join(dict.fromkeys(member.encoder for member in members))} features). TPT is missing: it tunes "
        "prompts through the text encoder, which features do not hold.",
        kind="data",
    )


def _boundary(record: Mapping[str, Any], method: str) -> float:
    return float(record["regions"][method]["boundary"])


EXPERIMENT = Experiment(
    name="decision-regions",
    title="Decision regions",
    question="How do zero-shot, TDA and ADAPT divide a plane of the features among a few classes?",
    plan=_plan,
    find=_find,
    where="Figure on decision boundaries",
)
