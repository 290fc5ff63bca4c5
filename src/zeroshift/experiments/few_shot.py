"""The figure on few-shot adaptation: ADAPT with 0 to 16 labelled samples per class, compared with few-shot methods."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from zeroshift.adapt.online import OnlineADAPT
from zeroshift.adapt.transductive import TransductiveADAPT
from zeroshift.evaluate import Analysis, Job
from zeroshift.evaluate.metrics.functions import accuracy
from zeroshift.evaluate.resources import one_blas_thread
from zeroshift.evaluate.trial import split
from zeroshift.experiments._shared.claims import (
    ClaimEvidence,
    all_hold,
    effective_samples,
    higher,
    paper_reference,
    verdict,
)
from zeroshift.experiments._shared.compared_methods import OURS
from zeroshift.experiments._shared.experiment import Experiment, JobResults, Options
from zeroshift.experiments._shared.findings import Column, Finding, Lines, Remark, Row, Series, Table, Value
from zeroshift.experiments._shared.suite import Member, Suite, Task, describe_sets
from zeroshift.experiments._shared.sweep import Curve, rising_evidence
from zeroshift.experiments._shared.trials import analysis, mean_of_sets
from zeroshift.features import FeatureSet
from zeroshift.method import Method
from zeroshift.methods.gda_clip import GDACLIP
from zeroshift.methods.timo import TIMO
from zeroshift.methods.tip_adapter import TipAdapter
from zeroshift.methods.zero_shot import ZeroShot

__all__ = ["EXPERIMENT", "SEVERAL_PROMPTS", "WITHOUT_LABELS", "few_shot"]


SHOTS_METHODS: dict[str, Callable[..., Method]] = {
    "adapt_online": OnlineADAPT,
    "adapt_transductive": TransductiveADAPT,
    "tip_adapter": TipAdapter,
    "gda_clip": GDACLIP,
    "timo": TIMO,
}

WITHOUT_LABELS = ("adapt_online", "adapt_transductive")
"""Methods that also work without labelled samples."""

SEVERAL_PROMPTS = ("timo",)
"""Methods that weight the prompts of a class; they get the prototypes of all prompt modes."""


def few_shot(
    features: FeatureSet, *, prompt: str, method: str, shots: int, most: int, seed: int
) -> dict[str, float | int]:
    """Accuracy of a method with `shots` labelled samples per class, on the rows left over when `most` are drawn.

    At most half of each class is drawn; `support` is the number of samples given. Other methods run with default
    parameters, without a validation set.

    Draws with the same seed are nested: the samples of fewer shots are among those of more. So the scored rows are
    never given, and are the same for every number of shots.

    >>> from zeroshift.data import packs
    >>> pack = packs.load("cifar10c_fog_5").subset(slice(0, 200))
    >>> detail = [
    ...     few_shot(pack, prompt="ensemble", method="adapt_transductive", shots=n, most=4, seed=0) for n in (0, 4)
    ... ]
    >>> [(record["support"], record["scored"]) for record in detail]
    [(0, 160), (40, 160)]
    """
    if features.labels is None:
        raise ValueError("few_shot draws labelled samples, and the set has no labels. Fix: give labels.")
    if not shots and method not in WITHOUT_LABELS:
        raise ValueError(f"{method} needs labelled samples; got shots=0. Fix: at least 1.")
    scored = split(features.labels, seed=seed, shuffled=method == "adapt_online", shots=most).scored
    drawn = split(features.labels, seed=seed, shuffled=False, shots=shots).support
    arguments: dict[str, Any] = {"logit_scale": features.logit_scale}
    if method in SEVERAL_PROMPTS:
        arguments = {"prompts": features.prompts_of_each_class()}
    if shots and drawn is not None:
        arguments["support"] = (np.asarray(features.features[drawn]), features.labels[drawn])
    prototypes = features.prototypes_for(prompt)
    stream, labels = np.asarray(features.features[scored]), features.labels[scored]
    with one_blas_thread():
        began = time.perf_counter()
        probabilities = SHOTS_METHODS[method](prototypes, **arguments).adapt(stream)
        seconds = time.perf_counter() - began
    zero_shot = ZeroShot(prototypes, logit_scale=features.logit_scale).predict(stream)
    return {
        "accuracy": accuracy(probabilities, labels),
        "zero_shot_accuracy": accuracy(zero_shot, labels),
        "scored": len(labels),
        "support": 0 if not shots or drawn is None else len(drawn),
        "seconds": seconds,
    }


SHOTS = (0, 1, 2, 4, 8, 16)
"""The paper's."""


PEERS = {"tip_adapter": "Tip-Adapter", "gda_clip": "GDA-CLIP", "timo": "TIMO"}
"""Few-shot methods in closed form, for comparison; not in the paper's figure."""

SEVERAL = 2
"""Minimum number of prompt modes for TIMO."""

TOLERANCE = 0.5
"""Points by which accuracy may fall below that of fewer shots and still count as rising."""


def _draws(member: Member, method: str, shots: int, options: Options) -> list[Analysis]:
    """One analysis per draw; the draws are the same for all methods and numbers of shots."""
    return [
        analysis(member, few_shot, {"method": method, "shots": shots, "most": max(SHOTS), "seed": seed})
        for seed in range(options.orders)
    ]


def _able(suite: Suite) -> Suite:
    """The sets with a class of at least two samples: one to give and one to score."""
    return Suite(tuple(member for member in suite.members if member.dataset.spare))


def _peers(suite: Suite) -> dict[str, str]:
    """Few-shot methods that run on every set, so that means are over the same sets."""
    prompts = min(member.dataset.n_prompts for member in suite.members)
    return {name: label for name, label in PEERS.items() if name not in SEVERAL_PROMPTS or prompts >= SEVERAL}


def _given(method: str) -> tuple[int, ...]:
    return SHOTS if method in WITHOUT_LABELS else SHOTS[1:]


def _plan(suite: Suite, options: Options) -> Sequence[Job]:
    able = _able(suite)
    if not able.members:
        return []
    return [
        draw
        for member in able.members
        for method in (*OURS.values(), *_peers(able))
        for shots in _given(method)
        for draw in _draws(member, method, shots, options)
    ]


def _find(suite: Suite, options: Options, results: JobResults) -> Sequence[Finding | None]:
    able = _able(suite)
    if not able.members:
        return [Remark("No class of any set has two samples: none can be labelled and another scored.", kind="warning")]
    found = {
        protocol: [_curve(method, task, able, options, results) for task in able.tasks]
        for protocol, method in OURS.items()
    }
    figures = [_figure(protocol, [c for c in curves if c.values]) for protocol, curves in found.items()]
    remarks = [
        verdict(
            f"{protocol} accuracy rises with every labelled sample (read as: it falls by at most {TOLERANCE:g} points "
            "on the way)",
            rising_evidence(curves, TOLERANCE),
        )
        for protocol, curves in found.items()
    ]
    remarks += [_transductive_better(found["online"], found["transductive"]), _left_out(suite, able)]
    return [*figures, _table(able, options, results), *remarks, *paper_reference(able)]


def _left_out(suite: Suite, able: Suite) -> Remark | None:
    names = [member.title for member in suite.members if member not in able.members]
    return Remark(f"Left out, because no class has two samples: {', '.join(names)}.") if names else None


def _means(method: str, task: Task, suite: Suite, options: Options, results: JobResults) -> dict[float, Value | None]:
    """The mean over the sets of a task per draw, for each number of shots."""
    return {
        float(shots): mean_of_sets(results, [_draws(m, method, shots, options) for m in suite.of_task(task.id)])
        for shots in _given(method)
    }


def _curve(method: str, task: Task, suite: Suite, options: Options, results: JobResults) -> Curve:
    members = suite.of_task(task.id)
    first = [results.record(_draws(member, method, SHOTS[0], options)[0]) for member in members]
    scored = [
        m.dataset.n_samples if record is None else int(record["scored"])
        for m, record in zip(members, first, strict=True)
    ]
    return Curve.of(task, _means(method, task, suite, options, results), effective_samples(scored))


def _figure(protocol: str, curves: Sequence[Curve]) -> Lines:
    series = []
    for curve in curves:
        y, low, high = ([100 * end for end in ends] for ends in zip(*map(_ends, curve.values.values()), strict=True))
        band = (tuple(low), tuple(high)) if low != high else (None, None)
        series.append(Series(curve.task.title, tuple(curve.values), tuple(y), *band))
    return Lines(
        f"few-shot-{protocol}",
        f"Accuracy with labelled samples, {protocol}",
        "labelled samples per class",
        "accuracy, percent",
        tuple(series),
        caption="The band shows the range from the worst draw to the best." if any(s.low for s in series) else "",
        steps=True,
    )


def _ends(value: Value) -> tuple[float, float, float]:
    low, high = (value.value if end is None else end for end in (value.low, value.high))
    return value.value, low, high


def _table(suite: Suite, options: Options, results: JobResults) -> Table:
    columns = [Column("labelled samples per class", "text")]
    columns += [Column(task.title, "percent", describe_sets(suite.of_task(task.id))) for task in suite.tasks]
    zero_shot = [
        mean_of_sets(
            results,
            [_draws(member, OURS["online"], SHOTS[0], options) for member in suite.of_task(task.id)],
            "zero_shot_accuracy",
        )
        for task in suite.tasks
    ]
    rows = [Row(("zero-shot", *zero_shot))]
    labels = {**{method: f"ADAPT, {protocol}" for protocol, method in OURS.items()}, **_peers(suite)}
    for method, label in labels.items():
        means = [_means(method, task, suite, options, results) for task in suite.tasks]
        rows += [Row((str(shots), *(mean[float(shots)] for mean in means)), label) for shots in _given(method)]
    draws = "One random draw" if options.orders == 1 else f"The mean of {options.orders} random draws"
    notes = (
        f"{draws}. Labelled samples are drawn from the test set and never scored. For every number of them, the scored "
        f"rows are those left over when {max(SHOTS)} per class (at most half of the class) are drawn, so neither the "
        "rows nor their zero-shot accuracy change with the number.",
        *_fewer(suite, options, results),
        f"{', '.join(_peers(suite).values())}: our addition, at their default parameters; their authors tune them on "
        "a validation set, which does not exist here.",
    )
    return Table("few-shot", "Accuracy with labelled samples", tuple(columns), tuple(rows), notes)


def _fewer(suite: Suite, options: Options, results: JobResults) -> list[str]:
    """How many samples were available if classes are too small."""
    detail = []
    for member in suite.members:
        for shots in reversed(SHOTS):
            wanted = shots * member.dataset.n_classes
            records = results.records(_draws(member, OURS["online"], shots, options)[:1])
            if records and int(records[0]["support"]) < wanted:
                detail.append(f"{member.title} at {shots} per class, {records[0]['support']:,} of {wanted:,}")
                break
    return [f"Fewer were available in small classes: {'; '.join(detail)}."] if detail else []


def _transductive_better(online: Sequence[Curve], transductive: Sequence[Curve]) -> Remark | None:
    """Per task, at every number of samples; complete curves only."""
    others = {curve.task.id: curve for curve in transductive if curve.whole}
    evidence = []
    for first in online:
        second = others.get(first.task.id)
        if second is None or not first.whole:
            continue
        better = [
            higher(second.values[shots].value, value.value, samples=first.samples)
            for shots, value in first.values.items()
        ]
        detail = f"above at {better.count(True)}, below at {better.count(False)} of {len(better)} numbers of samples"
        evidence.append(ClaimEvidence(first.task.title, all_hold(better), detail))
    return verdict("transductive ADAPT does better than online at every number of labelled samples", evidence)


EXPERIMENT = Experiment(
    name="few-shot",
    title="Few-shot adaptation",
    question="What do a few labelled samples of each class add?",
    plan=_plan,
    find=_find,
    where="Figure 5",
)
