"""Table 10: are the features of a class normal? Two tests, in many random projections to few dimensions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from zeroshift.evaluate import Analysis, Job
from zeroshift.experiments.parts.experiment import Answers, Experiment, Options
from zeroshift.experiments.parts.findings import Cell, Column, Finding, Lines, Remark, Row, Series, Table, Value
from zeroshift.experiments.parts.normality_tests import DIMENSIONS, LEVEL, REPEATS, TESTS, normality_of_classes
from zeroshift.experiments.parts.paper import PaperRow, paper_table
from zeroshift.experiments.parts.reference import reference
from zeroshift.experiments.parts.suite import Member, Suite
from zeroshift.experiments.parts.task_table import data_remark

__all__ = ["EXPERIMENT"]

VIEWS = {
    "coordinates": "randomly chosen feature dimensions, as in the paper",
    "directions": "random orthonormal directions",
}

PAPER_NAMES = {"Henze-Zirkler": "Henze–Zirkler", "Shapiro-Wilk": "Shapiro-Wilk"}
"""What the paper's table calls the tests."""

Records = Sequence[Mapping[str, Any]]


def _job(member: Member, kind: str) -> Analysis:
    entry = member.entry
    return Analysis(entry.name, entry.digest, entry.prompt, normality_of_classes, {"kind": kind, "seed": 0})


def _plan(suite: Suite, options: Options) -> Sequence[Job]:
    return [_job(member, kind) for member in suite.members for kind in (*VIEWS, "normal")]


def _find(suite: Suite, options: Options, answers: Answers) -> Sequence[Finding]:
    records = {kind: answers.all_of([_job(m, kind) for m in suite.members]) for kind in (*VIEWS, "normal")}
    tables = [_table(kind, records[kind], records["normal"], suite) for kind in VIEWS]
    papers = None if _is_papers(suite) else reference("normality_tests")
    others = (_by_set(suite, answers), _curves(records), *_remarks(records), data_remark(suite))
    findings: list[Finding | None] = [*tables, papers, *others]
    return [finding for finding in findings if finding is not None]


def _table(kind: str, records: Records, normal: Records, suite: Suite) -> Table:
    rows = []
    for test in TESTS:
        for d in DIMENSIONS:
            printed = _printed(test, d) if _is_papers(suite) else None
            above = None if printed is None else printed.number("Frequency of p>0.05 (%)")
            average = None if printed is None else printed.number("Average p-value")
            cells: tuple[Cell, ...] = (
                f"d = {d}",
                _pooled(records, test, d, "above", None if above is None else above / 100),
                _pooled(records, test, d, "mean_p", average),
                _pooled(normal, test, d, "mean_p"),
                _pooled(records, test, d, "rejected"),
                _pooled(normal, test, d, "rejected"),
            )
            rows.append(Row(cells, test))
    tested, left_out = _counts(records)
    return Table(
        kind,
        f"Normality of the classes in {VIEWS[kind]}",
        (
            Column("projected to", "text"),
            Column(f"classes with mean p > {LEVEL:g}"),
            Column("mean p", "number"),
            Column("mean p, normal samples", "number", "the yardstick"),
            Column(f"rejected at {LEVEL:.0%}", "percent", "of single tests"),
            Column("rejected, normal samples", "percent", "the yardstick"),
        ),
        tuple(rows),
        (
            f"{REPEATS} projections a class and dimension, {tested} classes tested at d = {DIMENSIONS[-1]}, {left_out} "
            "with too few samples left out. All classes count the same; ranges are over the sets.",
            "Henze-Zirkler by the log-normal approximation of its null distribution; Shapiro-Wilk as generalised by "
            "Villasenor Alva and Gonzalez Estrada, the mean of W over whitened coordinates.",
        ),
    )


def _by_set(suite: Suite, answers: Answers) -> Table:
    """Each set at the most dimensions, where the tests see most."""
    d = DIMENSIONS[-1]
    rows = []
    for member in suite.members:
        cells: list[Cell] = [member.name]
        for kind in VIEWS:
            records = answers.all_of([_job(member, kind)])
            cells += [_pooled(records, test, d, field) for test in TESTS for field in ("above", "rejected")]
        rows.append(Row(tuple(cells)))
    titles = [
        Column(f"{test}, {kind}: {what}")
        for kind in VIEWS
        for test in TESTS
        for what in (f"classes with mean p > {LEVEL:g}", "rejected")
    ]
    return Table("by-set", f"Each set, in {d} dimensions", (Column("set", "text"), *titles), tuple(rows))


def _curves(records: Mapping[str, Records]) -> Lines:
    series = []
    for test in TESTS:
        for kind, name in (("coordinates", "coordinates"), ("directions", "directions"), ("normal", "normal samples")):
            pairs = [(float(d), _pooled(records[kind], test, d, "rejected")) for d in DIMENSIONS]
            known = [(d, cell.value) for d, cell in pairs if cell is not None]
            series.append(Series(f"{test}, {name}", tuple(d for d, _ in known), tuple(share for _, share in known)))
    return Lines(
        "rejected",
        "How often normality is rejected",
        "dimensions projected to",
        f"share of tests with p < {LEVEL:g}",
        tuple(series),
        "Of normal samples a test at 5% rejects 5%; what is above that comes from the features.",
        steps=True,
    )


def _remarks(records: Mapping[str, Records]) -> list[Remark]:
    found = [
        Remark(
            f"A mean p-value above {LEVEL:g} is no evidence of normality. Of normal samples p is spread evenly from 0 "
            "to 1: its mean is 0.5 and one test in twenty rejects; a mean of 0.2 means that tests reject far more "
            "often. A test that does not reject may also just have too few samples, and what is tested is a few "
            "dimensions of many: normal views do not make a normal class. Rejection rates beside those of normal "
            "samples of the same size say more. (Rows of unit length lie on a sphere: exactly normal they cannot be.)"
        )
    ]
    d = DIMENSIONS[-1]
    worse = []
    for test in TESTS:
        for kind in VIEWS:
            ours = _pooled(records[kind], test, d, "rejected")
            yardstick = _pooled(records["normal"], test, d, "rejected")
            if ours is not None and yardstick is not None and ours.value > 2 * yardstick.value:
                worse.append(f"{test}, {kind}: {ours.value:.0%} against {yardstick.value:.0%}")
    if worse:
        found.append(
            Remark(
                f"Normality is rejected more than twice as often as of normal samples in {d} dimensions "
                f"({'; '.join(worse)}): the paper's conclusion that classes are approximately Gaussian is not what "
                "these features show.",
                kind="warning",
            )
        )
    return found


def _pooled(records: Records, test: str, d: int, field: str, paper: float | None = None) -> Value | None:
    """The mean over all classes of all sets, and the least and greatest of a set; None where no class was tested."""
    rows = [row for r in records for row in r["tests"] if row["test"] == test and row["dimension"] == d]
    rows = [row for row in rows if row["classes"]]
    if not rows:
        return None
    values = [float(row[field]) for row in rows]
    mean = float(np.average(values, weights=[row["classes"] for row in rows]))
    one = len(values) == 1
    return Value(mean, None if one else min(values), None if one else max(values), paper)


def _counts(records: Records) -> tuple[int, int]:
    """Classes tested and left out in the most dimensions."""
    test = next(iter(TESTS))
    rows = [row for r in records for row in r["tests"] if row["test"] == test and row["dimension"] == DIMENSIONS[-1]]
    return sum(row["classes"] for row in rows), sum(row["left_out"] for row in rows)


def _is_papers(suite: Suite) -> bool:
    """Table 10 is of ImageNet alone, seen by CLIP ViT-B/16."""
    return len(suite) == 1 and all(
        m.papers and m.data_set == "imagenet" and m.encoder == "CLIP ViT-B/16" for m in suite.members
    )


def _printed(test: str, d: int) -> PaperRow | None:
    return paper_table("normality_tests").row(method=PAPER_NAMES[test], label=f"Low-dim {d}")


EXPERIMENT = Experiment(
    name="normality",
    title="Are classes Gaussian?",
    question="Do tests of normality reject the Gaussian classes that ADAPT assumes, in random views of few dimensions?",
    plan=_plan,
    find=_find,
    where="Table 10",
    tables=("normality_tests",),
)
