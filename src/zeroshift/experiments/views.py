"""The gain and cost of several views per image: methods without and with views, and methods that need views."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from zeroshift.evaluate import Job, MethodSpec, list_method_specs
from zeroshift.experiments._shared.claims import ClaimEvidence, higher, verdict
from zeroshift.experiments._shared.compared_methods import (
    OURS,
    PAPER_ROWS,
    SLOW,
    caveat_notes,
    joined_names,
    method_label,
    row_group,
)
from zeroshift.experiments._shared.costs import TIMED_SAMPLES, seconds_per_thousand
from zeroshift.experiments._shared.experiment import Experiment, JobResults, Options
from zeroshift.experiments._shared.findings import Cell, Column, Finding, Lines, Remark, Row, Series, Table, Value
from zeroshift.experiments._shared.paper import paper_table
from zeroshift.experiments._shared.suite import Member, Suite
from zeroshift.experiments._shared.tables import data_remark, reference
from zeroshift.experiments._shared.tasks import PAPERS_BACKBONE, TASKS, get_task
from zeroshift.experiments._shared.trials import measured, points, runs, spread
from zeroshift.experiments._shared.views import awt_without_views, bundled_views, with_views
from zeroshift.methods.inputs import VIEWS

__all__ = ["EXPERIMENT", "ViewRow", "view_rows"]

NO_VIEWS = (
    "No set has several views per image. Fix: a file that `zeroshift extract ... --views 64` made, or "
    "--packs views_cifar10c_fog_5."
)

PROTOCOLS = (*OURS, "episodic")

EPISODIC = {"mta": "MTA", "zero": "ZERO", "awt": "AWT", "ratta": "RA-TTA", "tps": "TPS"}
"""The paper's names of episodic methods."""

SEEING_ONE = ("zero_shot", *OURS.values())

DESCRIBED = "min_descriptions"
"""Parameter of methods that retrieve descriptions of a class: the minimum number of descriptions."""


@dataclass(frozen=True)
class ViewRow:
    """A method on the plain image, or with its views."""

    method: str
    label: str
    """Label without a mention of views."""
    viewed: bool
    group: str
    jobs: tuple[Job, ...]
    """The first job is timed; the others are further orders."""

    def printed(self, member: Member) -> float | None:
        """The number in the paper's main table for the same set: for zero-shot and ADAPT without views, and for
        episodic methods with views. Not for AWT, which weights descriptions there."""
        if self.method == "awt" or not member.from_paper:
            return None
        if self.viewed and self.method in EPISODIC:
            name = {"method": self.label, "protocol": "online"}
        elif not self.viewed and self.method in SEEING_ONE:
            name = {"method": PAPER_ROWS[self.method].method, "protocol": PAPER_ROWS[self.method].protocol}
        else:
            return None
        table, column = get_task(member.task).tables.get(member.encoder), member.paper_column
        number = None if table is None or column is None else paper_table(table).number_at(column, **name)
        return None if number is None else number / 100

    @property
    def name(self) -> str:
        return f"{self.label}, with views" if self.viewed else self.label

    @property
    def timed(self) -> Job:
        return self.jobs[0]

    @property
    def whole(self) -> bool:
        """Whether it is scored on all samples."""
        return self.group in PROTOCOLS

    @property
    def ours(self) -> bool:
        return self.method in OURS.values()


def view_rows(member: Member, orders: int) -> list[ViewRow]:
    """Rows by protocol, zero-shot first and ADAPT last; the rows of a method are adjacent."""
    found = []
    for protocol in PROTOCOLS:
        able = [
            c for c in list_method_specs(protocol, views=True) if VIEWS in c.given and _missing_input(c, member) is None
        ]
        last = sorted(able, key=lambda spec: spec.method in OURS.values())
        for spec in last:
            found += [*_without(spec, member, orders), _row(spec, member, orders)]
    return [_row(MethodSpec("zero_shot"), member, 1), *found]


def _excluded_methods(member: Member) -> list[tuple[str, str]]:
    """(methods, reason) for methods that need more than a set with views."""
    reasons: dict[str, list[MethodSpec]] = {}
    for spec in (c for protocol in PROTOCOLS for c in list_method_specs(protocol)):
        if (why := _missing_input(spec, member)) is not None:
            reasons.setdefault(why, []).append(spec)
    return [(joined_names(several), why) for why, several in reasons.items()]


def _missing_input(spec: MethodSpec, member: Member) -> str | None:
    wanted = spec.settings.get(DESCRIBED)
    if wanted is not None and member.dataset.n_prompts < wanted:
        have = member.dataset.n_prompts
        return f"needs {wanted} descriptions per class to retrieve anything, but there are {have} prompt modes"
    why = spec.missing_input(VIEWS)
    return None if why is None else why.split(". Fix:")[0]


def _row(spec: MethodSpec, member: Member, orders: int) -> ViewRow:
    # One timed run, and further orders for the spread of accuracies.
    many = 1 if spec.method in SLOW else orders
    jobs = (*runs(member, spec.label, 1, timed=True), *runs(member, spec.label, many)[1:])
    label = EPISODIC.get(spec.method) or method_label(spec.method)
    return ViewRow(spec.method, label, VIEWS in spec.given, row_group(spec), jobs)


def _without(spec: MethodSpec, member: Member, orders: int) -> Sequence[ViewRow]:
    """The row of the same method on the plain image, if that differs from zero-shot."""
    if spec.method == "awt":
        return [ViewRow("awt", EPISODIC["awt"], False, row_group(spec), (awt_without_views(member, timed=True),))]
    return [_row(MethodSpec(spec.method), member, orders)] if VIEWS in spec.also else []


COLUMNS = (
    Column("", "text"),
    Column("accuracy"),
    Column("gain", "points", "over zero-shot on the image"),
    Column("calibration error"),
    Column("views encoded", "number", "per image"),
    Column("gradient steps", "number", "per image"),
    Column("time", "seconds", f"for {TIMED_SAMPLES:,} images"),
    Column("peak memory", "bytes", "beyond the features"),
)


def view_table(name: str, member: Member, rows: Sequence[ViewRow], results: JobResults, orders: int) -> Table:
    """The table of one set, with the paper's accuracies if the set is the paper's."""
    lines = [Row((row.name, *_cells(row, member, results)), row.group, row.ours and not row.viewed) for row in rows]
    ran = "one random order" if orders == 1 else f"the mean of {orders} random orders (one if slow)"
    notes = (
        f"Accuracy, gain and calibration error of online methods: {ran}. Time and memory: one run each, one after the "
        "other, one thread.",
        "Times are for adapting only, because the features of all views already exist. Encoding adds one pass of the "
        "image encoder per view.",
        "All methods run at their default parameters, and view 0 is the image itself. AWT weights the "
        f"{member.dataset.n_prompts} prompt modes of the set as if they were descriptions.",
        *caveat_notes(row.method for row in rows),
    )
    return Table(name, f"Gain and cost of several views per image on {member.title}", COLUMNS, tuple(lines), notes)


def _cells(row: ViewRow, member: Member, results: JobResults) -> tuple[Cell, ...]:
    records = results.records(row.jobs)
    if not records:
        return (None,) * (len(COLUMNS) - 1)
    first = results.record(row.timed)
    peak = None if first is None else first.get("peak_bytes")
    gains = [points(record["zero_shot_accuracy"], record["accuracy"]) for record in records]
    return (
        spread([float(record["accuracy"]) for record in records], row.printed(member)),
        spread(gains),
        measured(results, row.jobs, "calibration_error"),
        *(Value(float(records[0][field])) for field in ("image_passes", "gradient_steps")),  # the same in every order
        None if first is None else Value(seconds_per_thousand(first)),
        None if peak is None else Value(float(peak)),
    )


PAPERS = (
    "CLIP", "TPT", "DiffTPT", "C-TPT", "TPS", "DPE", "HisTPT", "DynaPrompt", "B2TPT", "MTA", "ZERO", "AWT", "RA-TTA",
    "ADAPT",
)  # fmt: skip
"""Methods of the paper's main tables that use views or tune prompts, and ADAPT."""


def _plan(suite: Suite, options: Options) -> Sequence[Job]:
    return [job for member in with_views(suite) for row in view_rows(member, options.orders) for job in row.jobs]


def _find(suite: Suite, options: Options, results: JobResults) -> Sequence[Finding | None]:
    members = with_views(suite)
    tables = [reference(_main_table(task.tables, suite), PAPERS) for task in TASKS if task.tables]
    if not members:
        return [Remark(NO_VIEWS), *tables]
    found: list[Finding] = []
    strong, bought = [], []
    for place, member in enumerate(members, start=1):
        rows, ending = view_rows(member, options.orders), f"-{place}" if len(members) > 1 else ""
        found.append(view_table(f"views{ending}", member, rows, results, options.orders))
        accuracies = _accuracies(rows, results)
        if accuracies:
            found.append(_figure(f"passes{ending}", member, rows, results))
        strong += _strong(member, rows, accuracies)
        bought += _bought(member, rows, accuracies)
    remark = data_remark(Suite(tuple(members)))
    claim = verdict(
        "ADAPT does well without views (read as: on the plain image it is more accurate than every other method is "
        "with views)",
        strong,
    )
    return [*found, claim, *bought, _left_out(members), remark, *tables]


def _main_table(tables: Mapping[str, str], suite: Suite) -> str:
    (encoder,) = suite.encoders
    return tables.get(encoder, tables[PAPERS_BACKBONE])


def _accuracies(rows: Sequence[ViewRow], results: JobResults) -> dict[str, float]:
    """Accuracies by name of the row; without failed rows."""
    found = {row.name: measured(results, row.jobs) for row in rows}
    return {name: value.value for name, value in found.items() if value is not None}


def _figure(name: str, member: Member, rows: Sequence[ViewRow], results: JobResults) -> Lines:
    """A line from one view to all views for methods that run with both, a dot for the others."""
    series = []
    for label in dict.fromkeys(row.label for row in rows):
        ends = [
            (passes.value, 100 * accuracy.value)
            for row in rows
            if row.label == label
            and (accuracy := measured(results, row.jobs)) is not None
            and (passes := measured(results, row.jobs, "image_passes")) is not None
        ]
        if ends:
            x, y = zip(*ends, strict=True)
            series.append(Series(label, x, y, method=next(row.method for row in rows if row.label == label)))
    series.sort(key=lambda one: len(one.x))  # dots first: each needs its own colour, lines can be dashed
    return Lines(
        name,
        f"Accuracy against passes of the image encoder, {member.title}",
        "views encoded for each image",
        "accuracy, percent",
        tuple(series),
        caption="A method that runs on the plain image as well as with its views is a line, any other a dot.",
        log_x=True,
        steps=True,
    )


def _strong(member: Member, rows: Sequence[ViewRow], accuracies: Mapping[str, float]) -> list[ClaimEvidence]:
    """Each version of ADAPT on the plain image against the best other method with views; nothing if one of them
    failed."""
    rivals = [row for row in rows if row.viewed and not row.ours and row.whole]
    if any(row.name not in accuracies for row in rivals) or not rivals:
        return []
    best = max(rivals, key=lambda row: accuracies[row.name])
    evidence = []
    for row in rows:
        if row.ours and not row.viewed and row.name in accuracies:
            mine, other = accuracies[row.name], accuracies[best.name]
            detail = f"{row.label} {100 * mine:.1f}%, {best.name} {100 * other:.1f}%"
            evidence.append(ClaimEvidence(member.title, higher(mine, other, samples=member.dataset.n_samples), detail))
    return evidence


def _bought(member: Member, rows: Sequence[ViewRow], accuracies: Mapping[str, float]) -> list[Remark]:
    """The effect of views on methods that also run without."""
    detail: dict[bool | None, list[str]] = {True: [], False: [], None: []}
    for row in rows:
        twin = next((one.name for one in rows if one.viewed and one.method == row.method), "")
        if not row.viewed and twin in accuracies and row.name in accuracies:
            before, after = accuracies[row.name], accuracies[twin]
            change = f"{row.label} ({100 * (after - before):+.1f} points)"
            detail[higher(after, before, samples=member.dataset.n_samples)].append(change)
    words = (("raise accuracy", True), ("lower accuracy", False), ("make too little difference to say", None))
    listed = [f"{word} for {', '.join(detail[key])}" for word, key in words if detail[key]]
    views = f"{member.dataset.n_views} views of an image instead of one"
    return [Remark(f"On {member.title}, {views} {'; '.join(listed)}.")] if listed else []


def _left_out(members: Sequence[Member]) -> Remark | None:
    """Methods that need more than views, and why."""
    reasons = dict.fromkeys(reason for member in members for reason in _excluded_methods(member))
    if not reasons:
        return None
    listed = "; ".join(f"{names} ({why})" for names, why in reasons)
    return Remark(
        f"Left out: {listed}. Methods that tune prompts run in `zeroshift compare --encoder SOURCE`, which also "
        "counts their use of the encoder."
    )


EXPERIMENT = Experiment(
    name="views",
    title="Several views of an image",
    question="What do several views per image gain, and at what cost?",
    plan=_plan,
    find=_find,
    where="Tables 2, 3, 4, 14, 15 and 16 (methods with views)",
    tables=tuple(table for task in TASKS for table in task.tables.values()),
    extra_sets=bundled_views,
)
