"""Table 23: classes of very unequal size, without and with wrong pseudo-labels near the start."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from zeroshift.evaluate import Analysis, Job
from zeroshift.evaluate.streams import Clues, Stream, early_noise, long_tail
from zeroshift.evaluate.streams.long_tail import GROUPS, IMBALANCE
from zeroshift.evaluate.streams.noise import CONFIDENT, PHASE, SHARE
from zeroshift.experiments.parts.claims import Evidence, verdict
from zeroshift.experiments.parts.experiment import Answers, Experiment, Options
from zeroshift.experiments.parts.findings import Column, Finding, Remark, Row, Table, Value
from zeroshift.experiments.parts.given_posteriors import adapt_online_given
from zeroshift.experiments.parts.reference import reference
from zeroshift.experiments.parts.suite import Member, Suite, together
from zeroshift.features import FeatureSet
from zeroshift.zero_shot import confidence, log_posterior, pseudo_class

__all__ = ["EXPERIMENT", "long_tail_with_noise"]

ALL = "all"

FEW_CLASSES = 20
"""Sets with fewer are said to have groups of a few classes each."""


def long_tail_with_noise(
    features: FeatureSet, *, prompt: str, seed: int, imbalance: float = IMBALANCE, noisy: bool
) -> dict[str, Any]:
    """Accuracy of the zero-shot classifier and of online ADAPT on a long-tailed stream, by group.

    With `noisy`, both see the same posteriors, some of the early ones swapped: see `early_noise`.
    """
    every_label = Clues(features, prompt).labels
    stream = long_tail(every_label, seed, imbalance=imbalance)
    rows = np.asarray(features.features[stream.rows], np.float64)
    labels = every_label[stream.rows]
    prototypes = features.prototypes_for(prompt).astype(np.float64)
    log_y = log_posterior(rows, prototypes, features.logit_scale)
    turned = 0
    if noisy:
        noise = early_noise(confidence(log_y), pseudo_class(log_y), features.n_classes, seed)
        log_y, turned = noise.apply(log_y), len(noise)
    adapted = adapt_online_given(rows, log_y, prototypes)
    return {
        "scored": len(labels),
        "turned": turned,
        "classes": {name: len(set(labels[_of(stream, name)].tolist())) for name in (*GROUPS, ALL)},
        "zero_shot": _accuracies(pseudo_class(log_y) == labels, stream),
        "adapt_online": _accuracies(adapted.argmax(axis=1) == labels, stream),
    }


def _accuracies(right: np.ndarray, stream: Stream) -> dict[str, float | None]:
    """By group, and over all samples; None for a group no class falls into."""
    inside = {name: right[_of(stream, name)] for name in (*GROUPS, ALL)}
    return {name: float(part.mean()) if len(part) else None for name, part in inside.items()}


def _of(stream: Stream, name: str) -> np.ndarray:
    return np.ones(len(stream), bool) if name == ALL else np.asarray(stream.groups) == GROUPS.index(name)


ROWS = (
    ("zero-shot", "zero_shot", False),
    ("zero-shot, with noise", "zero_shot", True),
    ("ADAPT", "adapt_online", False),
    ("ADAPT, with noise", "adapt_online", True),
)
"""Label, method and whether some early posteriors are swapped."""


def _jobs(member: Member, options: Options, noisy: bool) -> list[Analysis]:
    entry = member.entry
    return [
        Analysis(entry.name, entry.digest, entry.prompt, long_tail_with_noise, {"seed": seed, "noisy": noisy})
        for seed in range(options.orders)
    ]


def _plan(suite: Suite, options: Options) -> Sequence[Job]:
    return [job for member in suite.members for noisy in (False, True) for job in _jobs(member, options, noisy)]


def _find(suite: Suite, options: Options, answers: Answers) -> Sequence[Finding]:
    found = {
        (method, noisy, name): _mean(suite, options, answers, method, noisy, name)
        for _, method, noisy in ROWS
        for name in (*GROUPS, ALL)
    }
    rows = []
    for label, method, noisy in ROWS:
        cells = [found[method, noisy, name] for name in (*GROUPS, ALL)]
        change = _change(found[method, False, ALL], found[method, True, ALL]) if noisy else None
        rows.append(Row((label, *cells, change), strong=method == "adapt_online"))
    columns = (
        Column("method", "text"),
        *(Column(name.capitalize(), "percent", _classes(suite, options, answers, name)) for name in GROUPS),
        Column("All samples", "percent"),
        Column("Change by noise", "points", "all samples"),
    )
    table = Table("long-tail", "Accuracy on long-tailed streams", columns, tuple(rows), _notes(suite, options))
    return [
        table,
        *_claims(found),
        Remark(
            f"Ours are long-tailed draws from {together(suite.members)}; the paper's is one from ImageNet, whose rows "
            "are not published: compare the pattern, not the numbers.",
            kind="data",
        ),
        reference("long_tail_noise"),
    ]


def _mean(suite: Suite, options: Options, answers: Answers, method: str, noisy: bool, name: str) -> Value | None:
    """Over the sets, each counting the same, draw by draw; a draw no set has the group in is left out."""
    draws = []
    for draw in zip(*(_jobs(member, options, noisy) for member in suite.members), strict=True):
        values = [record[method][name] for record in answers.all_of(draw) if record[method][name] is not None]
        draws += [float(np.mean(values))] if values else []
    if not draws:
        return None
    one = len(draws) == 1
    return Value(float(np.mean(draws)), None if one else min(draws), None if one else max(draws))


def _change(before: Value | None, after: Value | None) -> Value | None:
    return None if before is None or after is None else Value(100 * (after.value - before.value))


def _classes(suite: Suite, options: Options, answers: Answers, name: str) -> str:
    """How many classes a group has: "1 class", "3 to 61 classes"."""
    jobs = [job for member in suite.members for job in _jobs(member, options, noisy=False)]
    counts = sorted({int(record["classes"][name]) for record in answers.all_of(jobs)})
    if not counts:
        return ""
    if counts == [1]:
        return "1 class"
    return f"{counts[0]} classes" if len(counts) == 1 else f"{counts[0]} to {counts[-1]} classes"


def _notes(suite: Suite, options: Options) -> tuple[str, ...]:
    notes = [
        f"Sizes of classes fall by equal factors, {IMBALANCE:g} to 1, in a drawn order: the paper calls it a power "
        "law, and this gives its counts exactly. Head: at least 0.8 of the largest; tail: at most 0.2.",
        f"Noise: {SHARE:.0%} of the confident pseudo-labels in the first {PHASE:.0%} of the stream are turned into "
        f"another class; confident is the surest {CONFIDENT:.0%}, because the paper does not say what is.",
        f"Draws of each set: {options.orders}. The last accuracy is over all samples. So is the paper's average, not "
        "the mean of its three columns; only CLIP's, printed as 69.33, would by its columns be 69.17.",
    ]
    few = [member for member in suite.members if member.entry.n_classes < FEW_CLASSES]
    if few:
        notes.append(
            f"Few classes ({together(few)}): a group holds a handful, and what it shows is as much which classes "
            "they happen to be."
        )
    return tuple(notes)


def _claims(found: dict[tuple[str, bool, str], Value | None]) -> list[Remark]:
    def against(noisy: bool) -> list[Evidence]:
        pairs = [(name, found["zero_shot", noisy, name], found["adapt_online", noisy, name]) for name in (*GROUPS, ALL)]
        return [
            Evidence(name, b.value > a.value, f"{100 * a.value:.1f} to {100 * b.value:.1f}")
            for name, a, b in pairs
            if a is not None and b is not None
        ]

    claims = (
        verdict("on a long tail ADAPT is more accurate than zero-shot in every group", against(False)),
        verdict("with early noise ADAPT is still more accurate than zero-shot, in every group", against(True)),
    )
    return [claim for claim in claims if claim is not None]


EXPERIMENT = Experiment(
    name="long-tail",
    title="Long tail with early noise",
    question="Does online ADAPT hold where most classes are rare, and where early pseudo-labels are wrong?",
    plan=_plan,
    find=_find,
    where="Table 23",
    tables=("long_tail_noise",),
)
