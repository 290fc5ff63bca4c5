"""Table 10: are the features of a class normal? Two tests, in many random projections to few dimensions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from zeroshift.evaluate import Analysis, Job
from zeroshift.experiments._shared.experiment import Answers, Experiment, Options
from zeroshift.experiments._shared.findings import Cell, Column, Finding, Lines, Remark, Row, Series, Table, Value
from zeroshift.experiments._shared.normality_tests import DIMENSIONS, LEVEL, REPEATS, TESTS, normality_of_classes
from zeroshift.experiments._shared.paper import PaperRow, paper_table
from zeroshift.experiments._shared.paper_tables import reference
from zeroshift.experiments._shared.suite import Member, Suite
from zeroshift.experiments._shared.tables import data_remark
from zeroshift.experiments._shared.tasks import PAPERS_BACKBONE

__all__ = ["EXPERIMENT", "Part", "counts_of", "pooled", "rows_of"]


# Normality tests of many classes summed up: sets pooled, and a row for each test and dimension.


PAPERS_VIEW = "coordinates"
"""The paper's random views: some of the feature dimensions."""

PAPER_NAMES = {"Henze-Zirkler": "Henze–Zirkler", "Shapiro-Wilk": "Shapiro-Wilk"}
"""What the paper's table calls the tests."""

Records = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Part:
    """Sets whose classes are pooled: the paper's ImageNet alone, and all others."""

    name: str
    """What they are called where there is another part; empty where there is none."""
    printed: bool
    """Whether the paper's numbers are of just this."""
    records: Mapping[str, Records]
    """By view, and of normal samples."""


def rows_of(kind: str, part: Part) -> list[Row]:
    """A row for each test and dimension."""
    records, normal = part.records[kind], part.records["normal"]
    rows = []
    for test in TESTS:
        for d in DIMENSIONS:
            printed = _printed(test, d) if part.printed and kind == PAPERS_VIEW else None
            above = None if printed is None else printed.number("Frequency of p>0.05 (%)")
            average = None if printed is None else printed.number("Average p-value")
            cells: tuple[Cell, ...] = (
                f"d = {d}",
                pooled(records, test, d, "above", None if above is None else above / 100),
                pooled(records, test, d, "mean_p", average),
                pooled(normal, test, d, "mean_p"),
                pooled(records, test, d, "rejected"),
                pooled(normal, test, d, "rejected"),
            )
            rows.append(Row(cells, f"{test}, {part.name}" if part.name else test))
    return rows


def pooled(records: Records, test: str, d: int, field: str, paper: float | None = None) -> Value | None:
    """The mean over all classes of all sets, and the least and greatest of a set; None where no class was tested."""
    rows = [row for r in records for row in r["tests"] if row["test"] == test and row["dimension"] == d]
    rows = [row for row in rows if row["classes"]]
    if not rows:
        return None
    values = [float(row[field]) for row in rows]
    mean = float(np.average(values, weights=[row["classes"] for row in rows]))
    one = len(values) == 1
    return Value(mean, None if one else min(values), None if one else max(values), paper)


def counts_of(records: Records) -> tuple[int, int]:
    """Classes tested and left out in the most dimensions."""
    test = next(iter(TESTS))
    rows = [row for r in records for row in r["tests"] if row["test"] == test and row["dimension"] == DIMENSIONS[-1]]
    return sum(row["classes"] for row in rows), sum(row["left_out"] for row in rows)


def _printed(test: str, d: int) -> PaperRow | None:
    return paper_table("normality_tests").row(method=PAPER_NAMES[test], label=f"Low-dim {d}")


VIEWS = {
    "coordinates": "randomly chosen feature dimensions, as in the paper",
    "directions": "random orthonormal directions",
}

PAPERS_SET = "imagenet"

FAR_MORE = 2
"""Times the yardstick's rejections that are remarked upon."""


def _job(member: Member, kind: str) -> Analysis:
    dataset = member.dataset
    return Analysis(dataset.name, dataset.digest, dataset.prompt, normality_of_classes, {"kind": kind, "seed": 0})


def _plan(suite: Suite, options: Options) -> Sequence[Job]:
    return [_job(member, kind) for member in suite.members for kind in (*VIEWS, "normal")]


def _find(suite: Suite, options: Options, answers: Answers) -> Sequence[Finding]:
    parts = _parts(suite, answers)
    if not parts:
        return [Remark("No set could be tested: there is none, or runs failed on each.", kind="warning")]
    tables = [_table(kind, parts) for kind in VIEWS]
    papers = None if any(part.printed for part in parts) else reference("normality_tests")
    others = (_by_set(suite, answers), *(_curves(part) for part in parts), NO_EVIDENCE, _rejected(parts))
    remark = data_remark(suite, needs=(PAPERS_SET,), prompts=False)
    findings: list[Finding | None] = [*tables, papers, *others, remark]
    return [finding for finding in findings if finding is not None]


def _parts(suite: Suite, answers: Answers) -> list[Part]:
    """The paper's ImageNet, to which its numbers belong, and the pool of all others; sets whose runs failed are in
    neither."""
    kinds = (*VIEWS, "normal")
    done = [m for m in suite.members if all(answers.of(_job(m, kind)) is not None for kind in kinds)]
    papers = [member for member in done if _is_papers(member)][:1]
    others = [member for member in done if member not in papers]
    parts = []
    for members in (papers, others):
        if members:
            records = {kind: answers.all_of([_job(m, kind) for m in members]) for kind in kinds}
            several = f"{len(members)} {'other ' if papers else ''}sets pooled"
            parts.append(Part(members[0].name if len(members) == 1 else several, members == papers, records))
    # Where nothing is to be told apart there is nothing to name.
    return parts if len(done) > 1 else [replace(part, name="") for part in parts]


def _table(kind: str, parts: Sequence[Part]) -> Table:
    rows = [row for part in parts for row in rows_of(kind, part)]
    counts = [counts_of(part.records[kind]) for part in parts]
    tested, left_out = (sum(numbers) for numbers in zip(*counts, strict=True))
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
            "with too few samples left out. Where sets are pooled all classes count the same, and ranges are over the "
            "sets.",
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
            cells += [pooled(records, test, d, field) for test in TESTS for field in ("above", "rejected")]
        rows.append(Row(tuple(cells)))
    titles = [
        Column(f"{test}, {kind}: {what}")
        for kind in VIEWS
        for test in TESTS
        for what in (f"classes with mean p > {LEVEL:g}", "rejected")
    ]
    return Table("by-set", f"Each set, in {d} dimensions", (Column("set", "text"), *titles), tuple(rows))


def _curves(part: Part) -> Lines:
    series = []
    for test in TESTS:
        for kind, name in (("coordinates", "coordinates"), ("directions", "directions"), ("normal", "normal samples")):
            pairs = [(float(d), pooled(part.records[kind], test, d, "rejected")) for d in DIMENSIONS]
            known = [(d, cell.value) for d, cell in pairs if cell is not None]
            series.append(Series(f"{test}, {name}", tuple(d for d, _ in known), tuple(share for _, share in known)))
    return Lines(
        "rejected-imagenet" if part.printed and part.name else "rejected",
        f"How often normality is rejected{f': {part.name}' if part.name else ''}",
        "dimensions projected to",
        f"share of tests with p < {LEVEL:g}",
        tuple(series),
        "The lines of normal samples are the yardstick: of as many truly normal samples the tests reject so many. What "
        "lies above them comes from the features.",
        steps=True,
    )


NO_EVIDENCE = Remark(
    f"A mean p-value above {LEVEL:g} is no evidence of normality. Of normal samples p is spread evenly from 0 to 1, so "
    "that its mean is near 0.5 and few single tests reject; a mean of 0.2 would go with far more rejections than that. "
    "A test that does not reject may also just have too few samples, and what is tested is a few dimensions of many: "
    "normal views do not make a normal class. Rejection rates beside those of normal samples of the same size say "
    "more. (Rows of unit length lie on a sphere: exactly normal they cannot be.)"
)


def _rejected(parts: Sequence[Part]) -> Remark | None:
    """Where normality is rejected far more often than the yardstick says it would be of normal samples."""
    d = DIMENSIONS[-1]
    worse = []
    for part in parts:
        for test in TESTS:
            yardstick = pooled(part.records["normal"], test, d, "rejected")
            for kind in VIEWS:
                ours = pooled(part.records[kind], test, d, "rejected")
                if ours is not None and yardstick is not None and ours.value > FAR_MORE * yardstick.value:
                    of = f"{part.name}, " if part.name else ""
                    worse.append(f"{of}{test}, {kind}: {ours.value:.1%} against {yardstick.value:.1%}")
    if not worse:
        return None
    return Remark(
        f"In {d} dimensions normality is rejected more than {FAR_MORE} times as often as of normal samples "
        f"({'; '.join(worse)}). So normality is rejected; how large the departure is, these tests do not say. The "
        "paper reads its mean p-values as a sign that classes are approximately Gaussian.",
        kind="warning",
    )


def _is_papers(member: Member) -> bool:
    """Table 10 is of ImageNet alone, seen by CLIP ViT-B/16."""
    return member.papers and member.data_set == PAPERS_SET and member.encoder == PAPERS_BACKBONE


EXPERIMENT = Experiment(
    name="normality",
    title="Are classes Gaussian?",
    question="Do tests of normality reject the Gaussian classes that ADAPT assumes, in random views of few dimensions?",
    plan=_plan,
    find=_find,
    where="Table 10",
    tables=("normality_tests",),
)
