"""What several views of an image buy and cost: methods without and with them, and those that need them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from zeroshift.evaluate import Job, MethodSpec, list_method_specs
from zeroshift.experiments._shared.claims import Evidence, higher, verdict
from zeroshift.experiments._shared.compared_methods import OURS, PAPER_ROWS, SLOW, joined_names, method_label, row_group
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
    "None of the sets holds several views of each image. Fix: a file that `zeroshift extract ... --views 64` made, or "
    "--packs views_cifar10c_fog_5."
)

PROTOCOLS = (*OURS, "episodic")

EPISODIC = {"mta": "MTA", "zero": "ZERO", "awt": "AWT", "ratta": "RA-TTA", "tps": "TPS"}
"""What the paper calls those that forget each image before the next."""

SEEING_ONE = ("zero_shot", *OURS.values())

DESCRIBED = "min_descriptions"
"""A parameter of methods that look for descriptions of a class, of which they need so many."""


@dataclass(frozen=True)
class ViewRow:
    """A method on the image alone, or with its views."""

    method: str
    label: str
    """Without a word on views: the same for both rows of a method."""
    viewed: bool
    group: str
    jobs: tuple[Job, ...]
    """The first is timed; the others are further orders."""

    def printed(self, member: Member) -> float | None:
        """What the paper's main table has for the same set, where it says whether views were seen: of zero-shot and
        ADAPT, which see none, and of episodic methods, which need them. AWT weighs descriptions there, which a set does
        not hold."""
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
        """Whether it is scored on all samples, as most are."""
        return self.group in PROTOCOLS

    @property
    def ours(self) -> bool:
        return self.method in OURS.values()


def view_rows(member: Member, orders: int) -> list[ViewRow]:
    """By protocol, zero-shot first and ADAPT last; a method stands beside itself."""
    found = []
    for protocol in PROTOCOLS:
        able = [c for c in list_method_specs(protocol, views=True) if VIEWS in c.given and _obstacle(c, member) is None]
        last = sorted(able, key=lambda spec: spec.method in OURS.values())
        for spec in last:
            found += [*_without(spec, member, orders), _row(spec, member, orders)]
    return [_row(MethodSpec("zero_shot"), member, 1), *found]


def _excluded_methods(member: Member) -> list[tuple[str, str]]:
    """(methods, why they are left out), for those of the protocols shown that a set with views is not enough for."""
    reasons: dict[str, list[MethodSpec]] = {}
    for spec in (c for protocol in PROTOCOLS for c in list_method_specs(protocol)):
        if (why := _obstacle(spec, member)) is not None:
            reasons.setdefault(why, []).append(spec)
    return [(joined_names(several), why) for why, several in reasons.items()]


def _obstacle(spec: MethodSpec, member: Member) -> str | None:
    wanted = spec.settings.get(DESCRIBED)
    if wanted is not None and member.dataset.n_prompts < wanted:
        have = member.dataset.n_prompts
        return f"needs {wanted} descriptions of a class to retrieve anything, and there are {have} prompt modes"
    why = spec.missing_input(VIEWS)
    return None if why is None else why.split(". Fix:")[0]


def _row(spec: MethodSpec, member: Member, orders: int) -> ViewRow:
    # One run is done alone, for its time; the others only for how far accuracies move with the order.
    many = 1 if spec.method in SLOW else orders
    jobs = (*runs(member, spec.label, 1, timed=True), *runs(member, spec.label, many)[1:])
    label = EPISODIC.get(spec.method) or method_label(spec.method)
    return ViewRow(spec.method, label, VIEWS in spec.given, row_group(spec), jobs)


def _without(spec: MethodSpec, member: Member, orders: int) -> Sequence[ViewRow]:
    """The same on the image alone, where that is another thing than zero-shot."""
    if spec.method == "awt":
        return [ViewRow("awt", EPISODIC["awt"], False, row_group(spec), (awt_without_views(member, timed=True),))]
    return [_row(MethodSpec(spec.method), member, orders)] if VIEWS in spec.also else []


COLUMNS = (
    Column("", "text"),
    Column("accuracy"),
    Column("gain", "points", "over zero-shot on the image"),
    Column("calibration error"),
    Column("views encoded", "number", "for an image"),
    Column("gradient steps", "number", "for an image"),
    Column("time", "seconds", f"for {TIMED_SAMPLES:,} images"),
    Column("peak memory", "bytes", "beyond the features"),
)


def view_table(name: str, member: Member, rows: Sequence[ViewRow], results: JobResults, orders: int) -> Table:
    """The paper's accuracies stand beside ours where the set is its own."""
    lines = [Row((row.name, *_cells(row, member, results)), row.group, row.ours and not row.viewed) for row in rows]
    ran = "one random order" if orders == 1 else f"the mean of {orders} random orders where they are quick"
    notes = (
        f"Accuracy, gain and calibration error of online methods: {ran}. Time and memory: one run each, one after the "
        "other with no other run beside it, one thread.",
        "The features of all views are already there: time is what adapting adds. What encoding adds is the views "
        "encoded, each a pass of the image encoder.",
        "All methods run at their default parameters, view 0 being the image itself. AWT weighs the "
        f"{member.dataset.n_prompts} prompt modes of the set as if they were descriptions.",
    )
    return Table(name, f"What views of an image buy and cost on {member.title}", COLUMNS, tuple(lines), notes)


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
        *(Value(float(records[0][field])) for field in ("image_passes", "gradient_steps")),  # in any order the same
        None if first is None else Value(seconds_per_thousand(first)),
        None if peak is None else Value(float(peak)),
    )


PAPERS = (
    "CLIP", "TPT", "DiffTPT", "C-TPT", "TPS", "DPE", "HisTPT", "DynaPrompt", "B2TPT", "MTA", "ZERO", "AWT", "RA-TTA",
    "ADAPT",
)  # fmt: skip
"""Of the paper's main tables: methods that see views or tune prompts, and between what they stand."""


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
        "ADAPT does well without views (read as: on the image alone it is more accurate than every other method is "
        "with views)",
        strong,
    )
    return [*found, claim, *bought, _left_out(members), remark, *tables]


def _main_table(tables: Mapping[str, str], suite: Suite) -> str:
    (encoder,) = suite.encoders
    return tables.get(encoder, tables[PAPERS_BACKBONE])


def _accuracies(rows: Sequence[ViewRow], results: JobResults) -> dict[str, float]:
    """By name of the row, those of which there is a run."""
    found = {row.name: measured(results, row.jobs) for row in rows}
    return {name: value.value for name, value in found.items() if value is not None}


def _figure(name: str, member: Member, rows: Sequence[ViewRow], results: JobResults) -> Lines:
    """A line from the image alone to all views for methods that can do with either, a dot for the others."""
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
            detail = f"{row.label} {100 * mine:.1f}%, {best.name} {100 * other:.1f}%"
            evidence.append(Evidence(member.title, higher(mine, other, samples=member.dataset.n_samples), detail))
    return evidence


def _bought(member: Member, rows: Sequence[ViewRow], accuracies: Mapping[str, float]) -> list[Remark]:
    """What views change in methods that can do without."""
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
    """Whom views are not enough for, each reason once whichever sets it holds on."""
    reasons = dict.fromkeys(reason for member in members for reason in _excluded_methods(member))
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
    extra_sets=bundled_views,
)
