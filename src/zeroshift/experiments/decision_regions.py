"""The paper's figure of decision boundaries: the decision regions of methods in a plane of the features."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from zeroshift.adapt.online import OnlineADAPT
from zeroshift.adapt.transductive import TransductiveADAPT
from zeroshift.evaluate import Analysis, Job
from zeroshift.evaluate.resources import one_blas_thread
from zeroshift.experiments._shared.claims import ClaimEvidence, higher, verdict
from zeroshift.experiments._shared.experiment import Experiment, JobResults, Options
from zeroshift.experiments._shared.findings import Column, Finding, Region, Regions, Remark, Row, Table, Value
from zeroshift.experiments._shared.suite import Member, Suite, clean_and_corrupted, describe_sets
from zeroshift.experiments._shared.trials import analysis
from zeroshift.features import FeatureSet
from zeroshift.method import Method
from zeroshift.methods.tda import TDA
from zeroshift.methods.zero_shot import ZeroShot

__all__ = ["EXPERIMENT", "HALF_SIDE", "METHODS", "Plane", "boundary", "lifted", "plane_regions"]


# Methods need rows of unit length, so that a plane of features is mapped to a sphere: (1) rows are projected to their
# first two principal components; (2) prototypes, which are in another cone than the images, are projected to the same
# plane about their own mean and scaled to the root-mean-square radius of the rows; (3) everything is scaled into a
# square inside the unit disc, and each point (u, v) becomes (u, v, sqrt(1 - u^2 - v^2)). Near the centre the sphere is
# almost flat, so that cosines order points like distances in the plane. (4) The logit scale is set so that zero-shot
# logits vary as much as in all dimensions. No labels are used.


HALF_SIDE = 0.7
"""Half the side of the square that contains all points; its corners are inside the unit disc."""

FLAT = 1e-7
"""Rows whose relative distance from their mean is smaller count as identical."""


@dataclass(frozen=True)
class Plane:
    """Rows and prototypes in two dimensions."""

    points: np.ndarray
    """(n, 2), at most `HALF_SIDE` from the centre in both directions."""
    anchors: np.ndarray
    """(K, 2) prototypes, in the same range."""
    logit_scale: float
    kept: float
    """Fraction of the rows' variance in the plane."""

    @classmethod
    def of(cls, rows: np.ndarray, prototypes: np.ndarray, logit_scale: float) -> Plane:
        """From unit rows (n, d) and prototypes (K, d), with at least two rows and two dimensions."""
        centred = rows - rows.mean(axis=0)
        if len(rows) < 2 or np.linalg.norm(centred) <= FLAT * np.linalg.norm(rows):
            raise ValueError(
                f"the {len(rows)} rows are all the same: there is no plane in which they differ. Fix: a set whose "
                "samples differ."
            )
        _, lengths, directions = np.linalg.svd(centred, full_matrices=False)
        top = _upright(directions[:2])
        points = centred @ top.T
        anchors = (prototypes - prototypes.mean(axis=0)) @ top.T
        anchors = anchors * _radius(points) / max(_radius(anchors), np.finfo(np.float64).tiny)
        scale = HALF_SIDE / max(np.abs(points).max(), np.abs(anchors).max())
        points, anchors = points * scale, anchors * scale
        before = logit_scale * _variation(rows @ prototypes.T)
        variation = _variation(lifted(points) @ lifted(anchors).T)
        if variation == 0.0:
            raise ValueError(
                f"the {len(anchors)} prototypes fall on one point of the plane: no field is nearer to any. Fix: "
                "prompts that distinguish the classes."
            )
        return cls(points, anchors, before / variation, float(np.sum(lengths[:2] ** 2) / np.sum(lengths**2)))


def lifted(points: np.ndarray) -> np.ndarray:
    """Map points of the unit disc (n, 2) to the upper half of the unit sphere (n, 3).

    >>> lifted(np.array([[0.6, 0.0], [0.0, 0.0]])).tolist()
    [[0.6, 0.0, 0.8], [0.0, 0.0, 1.0]]
    """
    return np.column_stack([points, np.sqrt(1 - np.sum(points**2, axis=1))])


def _upright(directions: np.ndarray) -> np.ndarray:
    """Choose the sign of each direction so that its largest entry is positive, on every machine."""
    largest = np.argmax(np.abs(directions), axis=1)
    signs = np.sign(directions[np.arange(len(directions)), largest])
    return np.asarray(directions * signs[:, None])


def _radius(points: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.sum(points**2, axis=1))))


def _variation(cosines: np.ndarray) -> float:
    """Mean standard deviation over classes of the cosines (n, K) of a row."""
    return float(np.sqrt(np.mean(np.var(cosines, axis=1))))


METHODS: Mapping[str, Callable[..., Method]] = {
    "zero_shot": ZeroShot,
    "tda": TDA,
    "adapt_online": OnlineADAPT,
    "adapt_transductive": TransductiveADAPT,
}

CLASSES = 6
POINTS = 300
GRID = 80
"""Maximum number of classes, of points shown, and of grid cells per side."""

MOST_ROWS = 2000
"""Maximum number of samples that methods learn from."""

DECIMALS = 4


def plane_regions(
    features: FeatureSet,
    *,
    prompt: str,
    classes: int = CLASSES,
    points: int = POINTS,
    grid: int = GRID,
    most_rows: int = MOST_ROWS,
    seed: int = 0,
) -> dict[str, Any]:
    """The plane of some random classes, its points, and the predicted class of each grid cell for each method.

    Methods adapt to the lifted points in random order and then `predict` the cells. Accuracies are those of `adapt`, in
    the plane and, for the same rows and classes, in all dimensions; `zero_shot_accuracy` is for these rows and classes
    too. `classes` holds class indices; points and cells refer to positions in it.
    """
    if features.labels is None:
        raise ValueError("decision regions are drawn with the true classes of points; this set has no labels.")
    if min(features.n_classes, features.dimension, classes) < 2:
        raise ValueError(
            f"regions need two classes in two dimensions at least; the set has {features.n_classes} in "
            f"{features.dimension}, and classes={classes} are to be drawn. Fix: a set with more classes or "
            "dimensions, and classes of at least 2."
        )
    rng = np.random.default_rng(seed)
    chosen = np.sort(rng.choice(features.n_classes, min(classes, features.n_classes), replace=False))
    rows = rng.permutation(np.flatnonzero(np.isin(features.labels, chosen)))[:most_rows]
    labels = np.searchsorted(chosen, features.labels[rows])
    x = _unit(features.features[rows])
    prototypes = _unit(features.prototypes_for(prompt)[chosen])
    plane = Plane.of(x, prototypes, features.logit_scale)
    fields = lifted(_fields(grid))
    regions = {}
    for name, make in METHODS.items():
        with one_blas_thread():
            in_all_dimensions = make(prototypes, logit_scale=features.logit_scale).adapt(x)
            method = make(lifted(plane.anchors), logit_scale=plane.logit_scale)
            in_plane = method.adapt(lifted(plane.points))
            divided = np.asarray(method.predict(fields)).argmax(axis=1).reshape(grid, grid)
        regions[name] = {
            "accuracy": float(np.mean(np.asarray(in_plane).argmax(axis=1) == labels)),
            "accuracy_in_all_dimensions": float(np.mean(np.asarray(in_all_dimensions).argmax(axis=1) == labels)),
            "boundary": boundary(divided),
            "classes_with_a_region": len(np.unique(divided)),
            "classes": divided.tolist(),
        }
    return {
        "classes": chosen.tolist(),
        "zero_shot_accuracy": regions["zero_shot"]["accuracy_in_all_dimensions"],
        "rows": len(rows),
        "dimension": features.dimension,
        "kept": plane.kept,
        "logit_scale": plane.logit_scale,
        "half_side": HALF_SIDE,
        "points": np.round(plane.points[:points], DECIMALS).tolist(),
        "labels": labels[:points].tolist(),
        "anchors": np.round(plane.anchors, DECIMALS).tolist(),
        "regions": regions,
    }


def boundary(classes: np.ndarray) -> float:
    """Fraction of neighbouring cells with different classes: the length of all borders.

    >>> boundary(np.array([[0, 0], [1, 1]]))
    0.5
    """
    across, up = classes[:, 1:] != classes[:, :-1], classes[1:] != classes[:-1]
    return float((across.sum() + up.sum()) / (across.size + up.size))


def _fields(grid: int) -> np.ndarray:
    """Centres of the cells (grid^2, 2), row by row from the bottom."""
    centres = HALF_SIDE * ((2 * np.arange(grid) + 1) / grid - 1)
    return np.stack(np.meshgrid(centres, centres), axis=-1).reshape(-1, 2)


def _unit(rows: np.ndarray) -> np.ndarray:
    wide = np.asarray(rows, dtype=np.float64)
    return np.asarray(wide / np.linalg.norm(wide, axis=1, keepdims=True))


LABELS = {
    "zero_shot": "zero-shot",
    "tda": "TDA",
    "adapt_online": "ADAPT, online",
    "adapt_transductive": "ADAPT, transductive",
}

PAPERS_SET = "ImageNet-A"
"""The set of the paper's figure."""

ALIKE = 0.1
"""Boundaries whose lengths differ by a smaller fraction count as equally smooth."""


def _job(member: Member) -> Analysis:
    return analysis(member, plane_regions, {"seed": 0})


def _plan(suite: Suite, options: Options) -> Sequence[Job]:
    return [_job(member) for member in clean_and_corrupted(suite)]


def _find(suite: Suite, options: Options, results: JobResults) -> Sequence[Finding | None]:
    pictured = clean_and_corrupted(suite)
    found = [(member, record) for member in pictured if (record := results.record(_job(member))) is not None]
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
        tuple(member.dataset.class_names[k] for k in record["classes"]),
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
            "classes; it is also short if a class has lost its region.",
        ),
    )


def _remarks(found: Sequence[tuple[Member, Mapping[str, Any]]]) -> list[Remark]:
    remarks = [
        Remark(
            "An illustration, not the classifiers the tables measure: a plane keeps a small part of what distinguishes "
            "classes. Methods need unit length, so samples are projected to the plane of their first two principal "
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
    # A boundary is also short if a class has no region left, which is not smoothness.
    in_all_dimensions = [
        (member, record) for member, record in found if _all_have_regions(record, ("adapt_online", "tda"))
    ]
    smoother = verdict("ADAPT's boundaries are smoother than TDA's", [_smoother(*pair) for pair in in_all_dimensions])
    worse = [member.name for member, record in found if _gains(record) is False]
    if worse:
        text = f"In the plane online ADAPT is worse than zero-shot on {', '.join(worse)}."
        remarks.append(Remark(text, kind="warning"))
    return [*remarks, *([] if smoother is None else [smoother])]


def _smoother(member: Member, record: Mapping[str, Any]) -> ClaimEvidence:
    ours, theirs = _boundary(record, "adapt_online"), _boundary(record, "tda")
    holds = None if abs(ours - theirs) <= ALIKE * max(ours, theirs) else ours < theirs
    detail = f"neighbouring fields that differ: {ours:.1%} online, {theirs:.1%} for TDA"
    return ClaimEvidence(member.name, holds, detail)


def _all_have_regions(record: Mapping[str, Any], methods: Sequence[str]) -> bool:
    return all(record["regions"][name]["classes_with_a_region"] == len(record["classes"]) for name in methods)


def _gains(record: Mapping[str, Any]) -> bool | None:
    """Whether online ADAPT is better than zero-shot in the plane."""
    ours, base = (float(record["regions"][name]["accuracy"]) for name in ("adapt_online", "zero_shot"))
    return higher(ours, base, samples=record["rows"])


def _papers_figure(members: Sequence[Member]) -> Remark:
    encoders = " and ".join(dict.fromkeys(member.encoder for member in members))
    return Remark(
        f"The paper's figure shows {PAPERS_SET}, as CLIP, TPT, TDA and ADAPT divide it. Ours shows "
        f"{describe_sets(members)} ({encoders} features). TPT is missing: it tunes prompts through the text encoder, "
        "which features do not include.",
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
    where="Figure 3",
)
