"""What several views of an image buy and cost: methods without and with them, and those that need them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from zeroshift.evaluate import Job
from zeroshift.experiments._shared.claims import Evidence, higher, verdict
from zeroshift.experiments._shared.experiment import Answers, Experiment, Options
from zeroshift.experiments._shared.findings import Finding, Lines, Remark, Series
from zeroshift.experiments._shared.paper_tables import reference
from zeroshift.experiments._shared.suite import Member, Suite
from zeroshift.experiments._shared.tables import data_remark
from zeroshift.experiments._shared.tasks import PAPERS_BACKBONE, TASKS
from zeroshift.experiments._shared.trials import measured
from zeroshift.experiments._shared.views import (
    NO_VIEWS,
    ViewRow,
    bundled_views,
    left_out,
    seen_often,
    view_rows,
    view_table,
)

__all__ = ["EXPERIMENT"]

PAPERS = (
    "CLIP", "TPT", "DiffTPT", "C-TPT", "TPS", "DPE", "HisTPT", "DynaPrompt", "B2TPT", "MTA", "ZERO", "AWT", "RA-TTA",
    "ADAPT",
)  # fmt: skip
"""Of the paper's main tables: methods that see views or tune prompts, and between what they stand."""


def _plan(suite: Suite, options: Options) -> Sequence[Job]:
    return [job for member in seen_often(suite) for row in view_rows(member, options.orders) for job in row.jobs]


def _find(suite: Suite, options: Options, answers: Answers) -> Sequence[Finding]:
    members = seen_often(suite)
    tables = [reference(_main_table(task.tables, suite), PAPERS) for task in TASKS if task.tables]
    if not members:
        return [Remark(NO_VIEWS), *tables]
    found: list[Finding] = []
    strong, bought = [], []
    for place, member in enumerate(members, start=1):
        rows, ending = view_rows(member, options.orders), f"-{place}" if len(members) > 1 else ""
        found.append(view_table(f"views{ending}", member, rows, answers, options.orders))
        accuracies = _accuracies(rows, answers)
        if accuracies:
            found.append(_figure(f"passes{ending}", member, rows, answers))
        strong += _strong(member, rows, accuracies)
        bought += _bought(member, rows, accuracies)
    remark = data_remark(Suite(tuple(members)))
    said = verdict(
        "ADAPT does well without views (read as: on the image alone it is more accurate than every other method is "
        "with views)",
        strong,
    )
    kept = [one for one in (said, *bought, _left_out(members), remark) if one is not None]
    return [*found, *kept, *tables]


def _main_table(tables: Mapping[str, str], suite: Suite) -> str:
    (encoder,) = suite.encoders
    return tables.get(encoder, tables[PAPERS_BACKBONE])


def _accuracies(rows: Sequence[ViewRow], answers: Answers) -> dict[str, float]:
    """By name of the row, those of which there is a run."""
    found = {row.name: measured(answers, row.jobs) for row in rows}
    return {name: value.value for name, value in found.items() if value is not None}


def _figure(name: str, member: Member, rows: Sequence[ViewRow], answers: Answers) -> Lines:
    """A line from the image alone to all views for methods that can do with either, a dot for the others."""
    series = []
    for label in dict.fromkeys(row.label for row in rows):
        ends = [
            (passes.value, 100 * accuracy.value)
            for row in rows
            if row.label == label
            and (accuracy := measured(answers, row.jobs)) is not None
            and (passes := measured(answers, row.jobs, "image_passes")) is not None
        ]
        if ends:
            x, y = zip(*ends, strict=True)
            series.append(Series(label, x, y, method=next(row.method for row in rows if row.label == label)))
    series.sort(key=lambda one: len(one.x))  # dots have colours of their own, lines may share one and be dashed
    return Lines(
        name,
        f"Accuracy against passes of the image encoder, {member.title}",
        "views encoded for each image",
        "accuracy, percent",
        tuple(series),
        caption="A method that runs on the image alone as well as with its views is a line, any other a dot.",
        log_x=True,
        steps=True,
    )


def _strong(member: Member, rows: Sequence[ViewRow], accuracies: Mapping[str, float]) -> list[Evidence]:
    """Each ADAPT on the image alone against the best of the others with views; nothing where one of them failed."""
    rivals = [row for row in rows if row.viewed and not row.ours and row.whole]
    if any(row.name not in accuracies for row in rivals) or not rivals:
        return []
    best = max(rivals, key=lambda row: accuracies[row.name])
    evidence = []
    for row in rows:
        if row.ours and not row.viewed and row.name in accuracies:
            mine, other = accuracies[row.name], accuracies[best.name]
            told = f"{row.label} {100 * mine:.1f}%, {best.name} {100 * other:.1f}%"
            evidence.append(Evidence(member.title, higher(mine, other, samples=member.dataset.n_samples), told))
    return evidence


def _bought(member: Member, rows: Sequence[ViewRow], accuracies: Mapping[str, float]) -> list[Remark]:
    """What views change in methods that can do without."""
    told: dict[bool | None, list[str]] = {True: [], False: [], None: []}
    for row in rows:
        twin = next((one.name for one in rows if one.viewed and one.method == row.method), "")
        if not row.viewed and twin in accuracies and row.name in accuracies:
            before, after = accuracies[row.name], accuracies[twin]
            change = f"{row.label} ({100 * (after - before):+.1f} points)"
            told[higher(after, before, samples=member.dataset.n_samples)].append(change)
    words = (("raise accuracy", True), ("lower accuracy", False), ("make too little difference to say", None))
    listed = [f"{word} for {', '.join(told[key])}" for word, key in words if told[key]]
    views = f"{member.dataset.n_views} views of an image instead of one"
    return [Remark(f"On {member.title}, {views} {'; '.join(listed)}.")] if listed else []


def _left_out(members: Sequence[Member]) -> Remark | None:
    """Whom views are not enough for, each reason once whichever sets it holds on."""
    reasons = dict.fromkeys(reason for member in members for reason in left_out(member))
    if not reasons:
        return None
    listed = "; ".join(f"{names} ({why})" for names, why in reasons)
    return Remark(
        f"Left out: {listed}. Methods that tune prompts run in `zeroshift compare --encoder SOURCE`, which counts what "
        "they ask of the encoder, too."
    )


EXPERIMENT = Experiment(
    name="views",
    title="Several views of an image",
    question="What do several views of an image buy, and at what cost?",
    plan=_plan,
    find=_find,
    where="Tables 2, 3, 4, 14, 15 and 16 (methods with views)",
    tables=tuple(table for task in TASKS for table in task.tables.values()),
    sets=bundled_views,
)
