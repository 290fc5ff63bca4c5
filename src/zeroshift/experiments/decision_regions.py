"""The paper's figure of decision boundaries: how methods divide a plane of the features."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from zeroshift.evaluate import Analysis, Job
from zeroshift.experiments.parts.experiment import Answers, Experiment, Options
from zeroshift.experiments.parts.findings import Column, Finding, Region, Regions, Remark, Row, Table, Value
from zeroshift.experiments.parts.pictured_sets import clean_and_corrupted
from zeroshift.experiments.parts.plane_regions import METHODS, plane_regions
from zeroshift.experiments.parts.suite import Member, Suite

__all__ = ["EXPERIMENT"]

LABELS = {
    "zero_shot": "zero-shot",
    "tda": "TDA",
    "adapt_online": "ADAPT, online",
    "adapt_transductive": "ADAPT, transductive",
}


def _job(member: Member) -> Analysis:
    entry = member.entry
    return Analysis(entry.name, entry.digest, entry.prompt, plane_regions, {"seed": 0})


def _plan(suite: Suite, options: Options) -> Sequence[Job]:
    return [_job(member) for member in clean_and_corrupted(suite)]


def _find(suite: Suite, options: Options, answers: Answers) -> Sequence[Finding]:
    pictured = clean_and_corrupted(suite)
    found = [(member, record) for member in pictured if (record := answers.of(_job(member))) is not None]
    pictures = [_regions(member, record, place) for place, (member, record) in enumerate(found)]
    return [*pictures, _table(found), *_remarks(found)]


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
        tuple(record["class_names"]),
        np.array(record["anchors"]),
        f"{len(record['class_names'])} classes drawn at random, {record['rows']} samples, {len(record['points'])} of "
        f"them shown. The plane of the first two principal components keeps {record['kept']:.0%} of their variance in "
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
        if record["regions"][name]["classes_with_a_region"] < len(record["class_names"])
    ]
    if lost:
        remarks.append(Remark(f"Classes without any region left: {'; '.join(lost)}.", kind="warning"))
    rough = [member.name for member, record in found if _boundary(record, "adapt_online") > _boundary(record, "tda")]
    if rough:
        remarks.append(
            Remark(
                "The paper describes ADAPT's boundaries as smoother than TDA's; measured by their length in the plane, "
                f"they are longer on {len(rough)} of {len(found)} sets ({', '.join(rough)}).",
                kind="warning",
            )
        )
    worse = [
        member.name
        for member, record in found
        if record["regions"]["adapt_online"]["accuracy"] < record["regions"]["zero_shot"]["accuracy"]
    ]
    if worse:
        text = f"In the plane online ADAPT is worse than zero-shot on {', '.join(worse)}."
        remarks.append(Remark(text, kind="warning"))
    return remarks


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
