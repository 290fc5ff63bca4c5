"""ADAPT at a glance: what it gains over zero-shot on every set, how sure that is, and how it comes about."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from zeroshift.evaluate import Analysis, Job, Trial, gain_interval
from zeroshift.experiments.parts.before_after import class_names, confusion, running
from zeroshift.experiments.parts.experiment import Answers, Experiment, Options
from zeroshift.experiments.parts.findings import (
    Bar,
    Bars,
    Column,
    Confusion,
    Finding,
    Lines,
    Remark,
    Row,
    Table,
    Value,
)
from zeroshift.experiments.parts.set_columns import unlike
from zeroshift.experiments.parts.slug import slug
from zeroshift.experiments.parts.suite import Member, Suite
from zeroshift.experiments.parts.trials import mean_of_sets, measured, runs

__all__ = ["EXPERIMENT"]

METHODS = {
    "zero_shot": "zero-shot",
    "adapt_online": "ADAPT (online)",
    "adapt_transductive": "ADAPT (transductive)",
}

MAX_CURVES = 6
"""Sets whose running accuracy is drawn."""

MAX_CONFUSED = 20
"""Classes of a confusion matrix that can still be read."""

FIELDS = ("accuracy", "class_mean_accuracy", "top5_accuracy")
"""Of a record, in the order of the table, the gain apart."""

MEAN = "Mean of the sets"

Record = Mapping[str, Any]


@dataclass(frozen=True)
class Gain:
    """Points over zero-shot on the same samples."""

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, records: Sequence[Record]) -> Gain:
        """Of one method on one set, from the records of its orders."""
        counts = np.sum([record["paired"] for record in records], axis=0)
        value = float(100 * (counts[1] - counts[2]) / counts.sum())
        low, high = gain_interval(counts.tolist(), samples=int(records[0]["scored"]))
        return cls(value, min(low, value), max(high, value))


def _trials(member: Member, method: str, options: Options) -> list[Trial]:
    return runs(member, method, 1 if method == "zero_shot" else options.orders)  # the same in any order


def _confused(suite: Suite) -> Member | None:
    return next((member for member in suite.members if member.entry.n_classes <= MAX_CONFUSED), None)


def _names(member: Member) -> Analysis:
    return Analysis(member.entry.name, member.entry.digest, member.entry.prompt, class_names)


def _plan(suite: Suite, options: Options) -> Sequence[Job]:
    jobs: list[Job] = [
        trial for member in suite.members for method in METHODS for trial in _trials(member, method, options)
    ]
    confused = _confused(suite)
    return jobs if confused is None else [*jobs, _names(confused)]


def _find(suite: Suite, options: Options, answers: Answers) -> Sequence[Finding]:
    titles = unlike([member.title for member in suite.members], suite.members)
    gains = {
        (place, method): Gain.of(records)
        for place, member in enumerate(suite.members)
        for method in METHODS
        if method != "zero_shot" and (records := answers.all_of(_trials(member, method, options)))
    }
    if not gains:
        return [Remark("No run of ADAPT gave an answer, so there is no gain to tell of.", kind="warning")]
    found = [
        _bars(titles, gains),
        _table(suite, titles, gains, options, answers),
        _losses(titles, gains),
        *_curves(suite, titles, options, answers),
        _confusion(suite, options, answers),
    ]
    return [finding for finding in found if finding is not None]


def _bars(titles: Sequence[str], gains: Mapping[tuple[int, str], Gain]) -> Bars:
    return Bars(
        "gains",
        "Gain over zero-shot",
        "percentage points",
        tuple(
            Bar(METHODS[method], gain.value, gain.low, gain.high, titles[place], method)
            for (place, method), gain in gains.items()
        ),
        "Whiskers are 95 % intervals by paired bootstrap over the samples.",
    )


def _table(
    suite: Suite, titles: Sequence[str], gains: Mapping[tuple[int, str], Gain], options: Options, answers: Answers
) -> Table:
    columns = (
        Column("method", "text"),
        Column("accuracy"),
        Column("mean of classes", detail="accuracy of each class, averaged"),
        Column("gain", "points", "over zero-shot, 95 % interval"),
        Column("top-5"),
    )
    rows = []
    for place, (title, member) in enumerate(zip(titles, suite.members, strict=True)):
        for method, label in METHODS.items():
            trials = _trials(member, method, options)
            gain = gains.get((place, method))
            cells = [measured(answers, trials, field) for field in FIELDS]
            points = None if gain is None else Value(gain.value, gain.low, gain.high)
            rows.append(Row((label, cells[0], cells[1], points, cells[2]), title, method == "adapt_online"))
    for method, label in METHODS.items() if len(suite) > 1 else ():
        by_set = [_trials(member, method, options) for member in suite.members]
        means = [mean_of_sets(answers, by_set, field) for field in FIELDS]
        of_sets = [gain.value for (_, other), gain in gains.items() if other == method]
        points = Value(float(np.mean(of_sets))) if len(of_sets) == len(suite) else None
        rows.append(Row((label, means[0], means[1], points, means[2]), MEAN, method == "adapt_online"))
    return Table(
        "at-a-glance",
        "ADAPT and zero-shot on every set",
        columns,
        tuple(rows),
        (
            "Online: the mean of its random orders, and the least and the greatest of them.",
            "The interval of a gain resamples the samples of the set, each with both answers, as many as there are; "
            "the orders' counts are added up, so that it is the interval of one run in an order drawn at random.",
            "Top-5 is the top K where a set has K < 5 classes.",
        ),
    )


def _losses(titles: Sequence[str], gains: Mapping[tuple[int, str], Gain]) -> Remark:
    """Where ADAPT does not help: the paper has it gain everywhere."""
    named = {key: f"{METHODS[key[1]]} on {titles[key[0]]}" for key in gains}
    lost = [named[key] for key, gain in gains.items() if gain.high < 0]
    open_ = [named[key] for key, gain in gains.items() if gain.low <= 0 <= gain.high]
    if not lost and not open_:
        return Remark("Every gain is above zero, the whole of its interval.")
    said = [f"Worse than zero-shot: {'; '.join(lost)}."] if lost else []
    said += [f"The interval covers zero, so that nothing can be said: {'; '.join(open_)}."] if open_ else []
    return Remark(" ".join(said), kind="warning" if lost else "note")


def _curves(suite: Suite, titles: Sequence[str], options: Options, answers: Answers) -> list[Lines]:
    found = []
    for title, member in list(zip(titles, suite.members, strict=True))[:MAX_CURVES]:
        online, whole = (answers.of(_trials(member, method, options)[0]) for method in list(METHODS)[1:])
        if online is not None:
            found.append(running(f"running-{slug(member.name)}", title, online, whole, METHODS))
    return found


def _confusion(suite: Suite, options: Options, answers: Answers) -> Confusion | None:
    member = _confused(suite)
    if member is None:
        return None
    record, named = answers.of(_trials(member, "adapt_online", options)[0]), answers.of(_names(member))
    if record is None or named is None:
        return None
    return confusion(member.title, named["class_names"], record, METHODS["adapt_online"])


EXPERIMENT = Experiment(
    name="gains",
    title="ADAPT at a glance",
    question="What does ADAPT gain over zero-shot on every set, how sure is that, and when along the stream?",
    plan=_plan,
    find=_find,
)
