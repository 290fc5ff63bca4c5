"""Sets that hold several views of each image: those given, and those bundled beside the packs that are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np

from zeroshift.data import packs
from zeroshift.evaluate import Analysis, Job, MethodSpec, list_method_specs
from zeroshift.evaluate.costs import EncoderCounts
from zeroshift.evaluate.metrics import score_run
from zeroshift.evaluate.resources import one_blas_thread
from zeroshift.evaluate.stream_loop import EVERY
from zeroshift.evaluate.trial import MethodInput, measure_run
from zeroshift.experiments._shared.contenders import OURS, PAPER_ROWS, SLOW, group_of, in_words, label_of
from zeroshift.experiments._shared.costs import PER, time_of
from zeroshift.experiments._shared.experiment import Answers
from zeroshift.experiments._shared.findings import Cell, Column, Row, Table, Value
from zeroshift.experiments._shared.paper import paper_table
from zeroshift.experiments._shared.suite import Member, Suite
from zeroshift.experiments._shared.tasks import get_task
from zeroshift.experiments._shared.trials import measured, points, runs, spread
from zeroshift.features import FeatureSet
from zeroshift.methods.awt import AWT
from zeroshift.methods.inputs import VIEWS
from zeroshift.methods.zero_shot import ZeroShot

__all__ = [
    "NO_VIEWS",
    "PROTOCOLS",
    "ViewRow",
    "alone",
    "awt_alone",
    "bundled_views",
    "left_out",
    "seen_often",
    "view_rows",
    "view_table",
]

NO_VIEWS = (
    "None of the sets holds several views of each image. Fix: a file that `zeroshift extract ... --views 64` made, or "
    "--packs views_cifar10c_fog_5."
)


def seen_often(suite: Suite) -> list[Member]:
    """The sets that hold views.

    >>> names = ("cifar10c_fog_5", "views_cifar10c_fog_5")
    >>> [member.name for member in seen_often(Suite.of({name: packs.load(name) for name in names}))]
    ['views_cifar10c_fog_5']
    """
    return [member for member in suite.members if member.dataset.n_views]


def bundled_views(suite: Suite) -> list[Member]:
    """Where no set holds views, the bundled packs of the same pictures that do, as further sets of an experiment.

    A pack joins only beside the bundled pack it shows the same pictures as: whoever gives sets of their own is asked
    for views of their own.

    >>> [member.name for member in bundled_views(Suite.of({"fog": packs.load("cifar10c_fog_5")}))]
    ['views_cifar10c_fog_5']
    >>> bundled_views(Suite.of({"fog": packs.load("cifar10c_fog_5").subset(slice(0, 100))}))
    []
    """
    if seen_often(suite):
        return []
    here = {member.dataset.digest for member in suite.members}
    known = {member.subject for member in _bundled(viewed=False) if member.dataset.digest in here}
    return [member for member in _bundled(viewed=True) if member.subject in known] if known else []


@cache
def _bundled(*, viewed: bool) -> list[Member]:
    names = [info.name for info in packs.list() if bool(info.n_views) is viewed]
    return [Member.of(name, packs.load(name), partial(packs.load, name)) for name in names]


# AWT without views: what the paper's appendix calls AWT*.


def awt_alone(features: FeatureSet, *, prompt: str) -> dict[str, Any]:
    """A record like that of a run, of AWT given each image as its only view. It weighs the set's prompts of each class,
    one a prompt mode.

    >>> from zeroshift.data import packs
    >>> told = awt_alone(packs.load("cifar10").subset(slice(0, 100)), prompt="ensemble")
    >>> told["scored"], told["image_passes"]
    (100, 1.0)
    """
    if features.labels is None:
        raise ValueError("awt_alone counts what is right, and the set has no labels. Fix: give labels.")
    prototypes, prompts = features.prototypes_for(prompt), features.prompts_of_each_class()
    stream = np.asarray(features.features)
    with one_blas_thread():
        found = measure_run(
            lambda: AWT(prototypes, prompts=prompts, logit_scale=features.logit_scale),
            MethodInput(stream),
            EncoderCounts(),
            every=EVERY,
        )
    zero_shot = ZeroShot(prototypes, logit_scale=features.logit_scale).predict(stream)
    sheet = score_run(found.pop("probabilities"), zero_shot, features.labels, None, ())
    return {"scored": features.n_samples, **found, **sheet}


# Who stands in a table of views: methods on the image alone and with views, and those that need views.


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
        if self.method == "awt" or not member.papers:
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


def left_out(member: Member) -> list[tuple[str, str]]:
    """(methods, why they are left out), for those of the protocols shown that a set with views is not enough for."""
    reasons: dict[str, list[MethodSpec]] = {}
    for spec in (c for protocol in PROTOCOLS for c in list_method_specs(protocol)):
        if (why := _obstacle(spec, member)) is not None:
            reasons.setdefault(why, []).append(spec)
    return [(in_words(several), why) for why, several in reasons.items()]


def alone(member: Member, *, timed: bool = False) -> Analysis:
    """AWT without views."""
    dataset = member.dataset
    return Analysis(dataset.name, dataset.digest, dataset.prompt, awt_alone, timed=timed)


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
    label = EPISODIC.get(spec.method) or label_of(spec.method)
    return ViewRow(spec.method, label, VIEWS in spec.given, group_of(spec), jobs)


def _without(spec: MethodSpec, member: Member, orders: int) -> Sequence[ViewRow]:
    """The same on the image alone, where that is another thing than zero-shot."""
    if spec.method == "awt":
        return [ViewRow("awt", EPISODIC["awt"], False, group_of(spec), (alone(member, timed=True),))]
    return [_row(MethodSpec(spec.method), member, orders)] if VIEWS in spec.also else []


# Accuracy, and what it cost: a row a method on the image alone or with its views, one set.


COLUMNS = (
    Column("", "text"),
    Column("accuracy"),
    Column("gain", "points", "over zero-shot on the image"),
    Column("calibration error"),
    Column("views encoded", "number", "for an image"),
    Column("gradient steps", "number", "for an image"),
    Column("time", "seconds", f"for {PER:,} images"),
    Column("peak memory", "bytes", "beyond the features"),
)


def view_table(name: str, member: Member, rows: Sequence[ViewRow], answers: Answers, orders: int) -> Table:
    """The paper's accuracies stand beside ours where the set is its own."""
    lines = [Row((row.name, *_cells(row, member, answers)), row.group, row.ours and not row.viewed) for row in rows]
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


def _cells(row: ViewRow, member: Member, answers: Answers) -> tuple[Cell, ...]:
    records = answers.all_of(row.jobs)
    if not records:
        return (None,) * (len(COLUMNS) - 1)
    first = answers.of(row.timed)
    peak = None if first is None else first.get("peak_bytes")
    gains = [points(record["zero_shot_accuracy"], record["accuracy"]) for record in records]
    return (
        spread([float(record["accuracy"]) for record in records], row.printed(member)),
        spread(gains),
        measured(answers, row.jobs, "calibration_error"),
        *(Value(float(records[0][field])) for field in ("image_passes", "gradient_steps")),  # in any order the same
        None if first is None else Value(time_of(first)),
        None if peak is None else Value(float(peak)),
    )
