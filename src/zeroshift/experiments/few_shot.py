"""The figure of few-shot adaptation: ADAPT given 0 to 16 labelled samples a class."""

from __future__ import annotations

from collections.abc import Sequence

from zeroshift.evaluate import Analysis, Job
from zeroshift.experiments.parts.claims import Evidence, paper_beside, verdict
from zeroshift.experiments.parts.experiment import Answers, Experiment, Options
from zeroshift.experiments.parts.findings import Column, Finding, Lines, Remark, Row, Series, Table, Value
from zeroshift.experiments.parts.shots import few_shot
from zeroshift.experiments.parts.suite import Member, Suite, Task, together
from zeroshift.experiments.parts.sweep import Curve, rising
from zeroshift.experiments.parts.trials import mean_of_sets

__all__ = ["EXPERIMENT"]

SHOTS = (0, 1, 2, 4, 8, 16)
"""The paper's."""

METHODS = {"online": "adapt_online", "transductive": "adapt_transductive"}

TOLERANCE = 0.5
"""Points that accuracy may fall below what fewer shots reached and still count as rising."""


def _draws(member: Member, method: str, shots: int, options: Options) -> list[Analysis]:
    """The same for every number of shots but for what is given."""
    entry = member.entry
    return [
        Analysis(
            entry.name,
            entry.digest,
            entry.prompt,
            few_shot,
            {"method": method, "shots": shots, "most": max(SHOTS), "seed": seed},
        )
        for seed in range(options.orders)
    ]


def _plan(suite: Suite, options: Options) -> Sequence[Job]:
    return [
        draw
        for member in suite.members
        for method in METHODS.values()
        for shots in SHOTS
        for draw in _draws(member, method, shots, options)
    ]


def _curve(method: str, task: Task, suite: Suite, options: Options, answers: Answers, field: str = "accuracy") -> Curve:
    """The mean over the sets of a task, draw by draw, for each number of shots."""
    found = {}
    for shots in SHOTS:
        by_set = [_draws(member, method, shots, options) for member in suite.of_task(task.id)]
        mean = mean_of_sets(answers, by_set, field)
        if mean is not None:
            found[float(shots)] = mean
    return found


def _find(suite: Suite, options: Options, answers: Answers) -> Sequence[Finding]:
    found = {
        protocol: [(task, _curve(method, task, suite, options, answers)) for task in suite.tasks]
        for protocol, method in METHODS.items()
    }
    found = {protocol: [(task, curve) for task, curve in curves if curve] for protocol, curves in found.items()}
    figures = [_figure(protocol, curves) for protocol, curves in found.items()]
    said = [
        verdict(
            f"{protocol} accuracy rises with every labelled sample (read as: it falls by at most {TOLERANCE:g} points "
            "on the way)",
            rising(curves, TOLERANCE),
        )
        for protocol, curves in found.items()
    ]
    said.append(_transductive_better(found["online"], found["transductive"]))
    kept = [remark for remark in said if remark is not None]
    return [*figures, _table(suite, options, answers), *kept, *paper_beside(suite)]


def _figure(protocol: str, curves: Sequence[tuple[Task, Curve]]) -> Lines:
    series = []
    for task, curve in curves:
        y, low, high = ([100 * end for end in ends] for ends in zip(*map(_ends, curve.values()), strict=True))
        band = (tuple(low), tuple(high)) if low != high else (None, None)
        series.append(Series(task.title, tuple(curve), tuple(y), *band))
    return Lines(
        f"few-shot-{protocol}",
        f"Accuracy with labelled samples, {protocol}",
        "labelled samples a class",
        "accuracy, percent",
        tuple(series),
        caption="The band reaches from the worst draw to the best.",
        steps=True,
    )


def _ends(value: Value) -> tuple[float, float, float]:
    low, high = (value.value if end is None else end for end in (value.low, value.high))
    return value.value, low, high


def _table(suite: Suite, options: Options, answers: Answers) -> Table:
    columns = [Column("labelled samples a class", "text")]
    columns += [Column(task.title, "percent", together(suite.of_task(task.id))) for task in suite.tasks]
    zero_shot = [
        _curve(METHODS["online"], task, suite, options, answers, "zero_shot_accuracy").get(0.0) for task in suite.tasks
    ]
    rows = [Row(("zero-shot", *zero_shot))]
    for protocol, method in METHODS.items():
        curves = [_curve(method, task, suite, options, answers) for task in suite.tasks]
        rows += [Row((str(shots), *(curve.get(float(shots)) for curve in curves)), protocol) for shots in SHOTS]
    notes = (
        f"{options.orders} random draws. Whatever the number, scored are the rows left over when {max(SHOTS)} of a "
        "class (at most half of it) are drawn, so that neither the rows nor their zero-shot accuracy change with it.",
    )
    return Table("few-shot", "Accuracy with labelled samples", tuple(columns), tuple(rows), notes)


def _transductive_better(
    online: Sequence[tuple[Task, Curve]], transductive: Sequence[tuple[Task, Curve]]
) -> Remark | None:
    evidence = []
    for (task, first), (_, second) in zip(online, transductive, strict=False):
        better = [second[shots].value > value.value for shots, value in first.items() if shots in second]
        evidence.append(Evidence(task.title, all(better), f"at {sum(better)} of {len(better)} numbers of samples"))
    return verdict("transductive ADAPT does better than online at every number of labelled samples", evidence)


EXPERIMENT = Experiment(
    name="few-shot",
    title="Few-shot adaptation",
    question="What do a few labelled samples of each class add?",
    plan=_plan,
    find=_find,
    where="Figure of few-shot adaptation (Section B.3)",
)
