"""ADAPT at a glance: its gain over zero-shot on every set with intervals, along the stream, and per class."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from zeroshift.evaluate import Job, Trial, gain_interval
from zeroshift.experiments._shared.experiment import Experiment, JobResults, Options, slug
from zeroshift.experiments._shared.findings import (
    Bar,
    Bars,
    Column,
    Confusion,
    Finding,
    Lines,
    Remark,
    Row,
    Series,
    Table,
    Value,
)
from zeroshift.experiments._shared.main_table import unique_titles
from zeroshift.experiments._shared.suite import Member, Suite
from zeroshift.experiments._shared.trials import mean_of_sets, measured, runs

__all__ = ["EXPERIMENT", "SETTLED", "confusion", "running"]


BeforeAfterRecord = Mapping[str, Any]

SETTLED = 50
"""First sample at which running accuracy is shown, or a quarter of a short stream; before, it jumps between 0 and 1."""


def running(
    name: str, title: str, online: BeforeAfterRecord, whole: BeforeAfterRecord | None, labels: Mapping[str, str]
) -> Lines:
    """Running accuracy of zero-shot and an online method, from its record; a transductive method as a horizontal line.

    `labels` are the labels of zero-shot, the online and the transductive method, by method.
    """
    curve = online["detail"]["curve"]
    rows = curve["rows"]
    settled = min(SETTLED, max(1, rows[-1] // 4))
    drawn = [place for place, row in enumerate(rows) if row >= settled]
    x = tuple(float(rows[place]) for place in drawn)
    before, after, level = labels
    series = [
        Series(labels[method], x, tuple(100 * curve[key][place] for place in drawn), method=method)
        for method, key in ((before, "zero_shot"), (after, "accuracy"))
    ]
    detail = ""
    if whole is not None:
        detail = f" {labels[level]} sees the whole set first: its accuracy on all samples is a horizontal line."
        reached = 100 * float(whole["accuracy"])
        series.append(Series(labels[level], (x[0], x[-1]), (reached, reached), method=level))
    return Lines(
        name,
        f"Accuracy over the stream: {title}",
        "samples seen",
        "accuracy so far (%)",
        tuple(series),
        f"One random order, from sample {rows[drawn[0]]:,} on." + detail,
    )


def confusion(title: str, names: Sequence[str], record: BeforeAfterRecord, after_label: str) -> Confusion:
    """Confusion matrices of a record: zero-shot before, the method after."""
    before, after = (_fractions(record["detail"][key]) for key in ("zero_shot_confusion", "confusion"))
    return Confusion(
        "confusion",
        f"Which classes are taken for which: {title}",
        tuple(names),
        before,
        after,
        after_label=after_label,
        caption="Rows are true classes, columns predicted ones; each row is a share of its class.",
    )


def _fractions(counts: Sequence[Sequence[int]]) -> np.ndarray:
    found = np.asarray(counts, float)
    return np.asarray(found / np.maximum(found.sum(axis=1, keepdims=True), 1))


METHODS = {
    "zero_shot": "zero-shot",
    "adapt_online": "ADAPT (online)",
    "adapt_transductive": "ADAPT (transductive)",
}

MAX_CURVES = 6
"""Maximum number of sets with a figure of running accuracy."""

MAX_CONFUSED = 20
"""Maximum number of classes of a readable confusion matrix."""

FIELDS = ("accuracy", "class_mean_accuracy", "top5_accuracy")
"""Fields of a record in the order of the table, without the gain."""

MEAN = "Mean of the sets"

Record = Mapping[str, Any]


@dataclass(frozen=True)
class SetGain:
    """Gain over zero-shot on the same samples, in points, with its interval."""

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, records: Sequence[Record]) -> SetGain:
        """From the records of one method on one set, over its orders."""
        counts = np.sum([record["paired"] for record in records], axis=0)
        value = float(100 * (counts[1] - counts[2]) / counts.sum())
        low, high = gain_interval(counts.tolist(), samples=int(records[0]["scored"]))
        return cls(value, min(low, value), max(high, value))


def _trials(member: Member, method: str, options: Options) -> list[Trial]:
    return runs(member, method, 1 if method == "zero_shot" else options.orders)  # the same in any order


def _plan(suite: Suite, options: Options) -> Sequence[Job]:
    return [trial for member in suite.members for method in METHODS for trial in _trials(member, method, options)]


def _titles(suite: Suite) -> list[str]:
    """Titles of the sets, with their encoders if there are several."""
    several = len(suite.encoders) > 1
    named = [f"{member.title}, {member.encoder}" if several else member.title for member in suite.members]
    return unique_titles(named, suite.members)


def _find(suite: Suite, options: Options, results: JobResults) -> Sequence[Finding | None]:
    titles = _titles(suite)
    gains = {
        (place, method): SetGain.of(records)
        for place, member in enumerate(suite.members)
        for method in METHODS
        if method != "zero_shot" and (records := results.records(_trials(member, method, options)))
    }
    if not gains:
        return [Remark("All runs of ADAPT failed, so there is no gain to report.", kind="warning")]
    return [
        _bars(titles, gains),
        _table(suite, titles, gains, options, results),
        _losses(titles, gains),
        *_curves(suite, titles, options, results),
        _confusion(suite, titles, options, results),
    ]


def _bars(titles: Sequence[str], gains: Mapping[tuple[int, str], SetGain]) -> Bars:
    return Bars(
        "gains",
        "Gain over zero-shot",
        "percentage points",
        tuple(
            Bar(METHODS[method], gain.value, gain.low, gain.high, titles[place], method)
            for (place, method), gain in gains.items()
        ),
        "Whiskers are 95% intervals by paired bootstrap over the samples.",
    )


def _table(
    suite: Suite, titles: Sequence[str], gains: Mapping[tuple[int, str], SetGain], options: Options, results: JobResults
) -> Table:
    columns = (
        Column("method", "text"),
        Column("accuracy"),
        Column("mean of classes", detail="accuracy of each class, averaged"),
        Column("gain", "points", "over zero-shot, 95% interval"),
        Column("top-5"),
    )
    rows = []
    for place, (title, member) in enumerate(zip(titles, suite.members, strict=True)):
        for method, label in METHODS.items():
            trials = _trials(member, method, options)
            gain = gains.get((place, method))
            cells = [measured(results, trials, field) for field in FIELDS]
            points = None if gain is None else Value(gain.value, gain.low, gain.high)
            rows.append(Row((label, cells[0], cells[1], points, cells[2]), title, method == "adapt_online"))
    rows += [row for encoder in suite.encoders for row in _means(encoder, suite, gains, options, results)]
    return Table(
        "at-a-glance",
        "ADAPT and zero-shot on every set",
        columns,
        tuple(rows),
        (
            "Online: mean, minimum and maximum over random orders.",
            "The interval of a gain is a bootstrap over the samples of the set, each with both answers. The counts of "
            "all orders are added, so that it is the interval of one run in a random order.",
            "Top-5 is the top K if a set has K < 5 classes.",
        ),
    )


def _means(
    encoder: str, suite: Suite, gains: Mapping[tuple[int, str], SetGain], options: Options, results: JobResults
) -> list[Row]:
    """Means over the sets of one encoder, if it has several."""
    positions = [place for place, member in enumerate(suite.members) if member.encoder == encoder]
    group = MEAN if len(suite.encoders) == 1 else f"{MEAN}, {encoder}"
    rows = []
    for method, label in METHODS.items() if len(positions) > 1 else ():
        by_set = [_trials(suite.members[place], method, options) for place in positions]
        means = [mean_of_sets(results, by_set, field) for field in FIELDS]
        of_sets = [gains[place, method].value for place in positions if (place, method) in gains]
        points = Value(float(np.mean(of_sets))) if len(of_sets) == len(positions) else None
        rows.append(Row((label, means[0], means[1], points, means[2]), group, method == "adapt_online"))
    return rows


def _losses(titles: Sequence[str], gains: Mapping[tuple[int, str], SetGain]) -> Remark:
    """Where ADAPT does not help; the paper reports gains everywhere. Failed runs are listed too."""
    adapting = [method for method in METHODS if method != "zero_shot"]
    named = {(i, method): f"{METHODS[method]} on {title}" for i, title in enumerate(titles) for method in adapting}
    lost = [named[key] for key, gain in gains.items() if gain.high < 0]
    open_ = [named[key] for key, gain in gains.items() if gain.low <= 0 <= gain.high]
    failed = [words for key, words in named.items() if key not in gains]
    others = len(gains) > len(lost) + len(open_)
    if not lost and not open_ and not failed:
        return Remark("The interval of every gain is above zero.")
    text = [f"Worse than zero-shot: {'; '.join(lost)}."] if lost else []
    text += [f"The interval covers zero, so that the sign of the gain is open: {'; '.join(open_)}."] if open_ else []
    text += ["The intervals of the other gains are above zero."] if others else []
    text += [f"All runs failed: {'; '.join(failed)}."] if failed else []
    return Remark(" ".join(text), kind="warning" if lost or failed else "note")


def _curves(suite: Suite, titles: Sequence[str], options: Options, results: JobResults) -> list[Lines]:
    found = []
    slugs = [slug(member.name) for member in suite.members]
    for place, (title, member) in enumerate(list(zip(titles, suite.members, strict=True))[:MAX_CURVES]):
        online, whole = (results.record(_trials(member, method, options)[0]) for method in list(METHODS)[1:])
        if online is not None:
            # Names that differ only in punctuation would get the same file.
            name = slugs[place] if slugs.count(slugs[place]) == 1 else f"{slugs[place]}-{place + 1}"
            found.append(running(f"running-{name}", title, online, whole, METHODS))
    return found


def _confusion(suite: Suite, titles: Sequence[str], options: Options, results: JobResults) -> Confusion | None:
    """The confusion matrix of the first set with few enough classes and a result."""
    for title, member in zip(titles, suite.members, strict=True):
        record = results.record(_trials(member, "adapt_online", options)[0])
        if record is not None and member.dataset.n_classes <= MAX_CONFUSED:
            return confusion(title, member.dataset.class_names, record, METHODS["adapt_online"])
    return None


EXPERIMENT = Experiment(
    name="gains",
    title="ADAPT at a glance",
    question="What does ADAPT gain over zero-shot on every set, with which confidence, and when along the stream?",
    plan=_plan,
    find=_find,
    mixes_encoders=True,
)
