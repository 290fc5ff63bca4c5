"""Table 23: long-tailed streams, without and with wrong pseudo-labels near the start."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from zeroshift.adapt.bank import KnowledgeBank
from zeroshift.adapt.statistics import AdaptSettings, estimate, score
from zeroshift.arrays import Backend
from zeroshift.evaluate import Analysis, Job
from zeroshift.evaluate.streams.long_tail import (
    CONFIDENT,
    FEWEST,
    GROUPS,
    IMBALANCE,
    PHASE,
    SHARE,
    early_noise,
    long_tail,
)
from zeroshift.evaluate.streams.spec import StreamInputs
from zeroshift.evaluate.streams.stream import Stream
from zeroshift.experiments._shared.claims import ClaimEvidence, effective_samples, higher, verdict
from zeroshift.experiments._shared.experiment import Experiment, JobResults, Options
from zeroshift.experiments._shared.findings import Column, Finding, Remark, Row, Table, Value
from zeroshift.experiments._shared.suite import Member, Suite, describe_sets
from zeroshift.experiments._shared.tables import reference
from zeroshift.experiments._shared.trials import analysis, points, spread
from zeroshift.features import FeatureSet
from zeroshift.parameters import Flag, Number, Optional
from zeroshift.zero_shot import confidence, log_posterior, pseudo_class

__all__ = ["ALL", "EXPERIMENT", "adapt_online_given", "long_tail_with_noise"]


def adapt_online_given(
    features: np.ndarray,
    log_posteriors: np.ndarray,
    prototypes: np.ndarray,
    *,
    bank_size: int = 16,
    alpha: float = 0.9,
    beta: float | None = None,
    use_bank_term: bool = True,
    update_mean: bool = True,
    update_covariance: bool = True,
) -> np.ndarray:
    """Scores (N, K) of online ADAPT with given zero-shot posteriors, as `OnlineADAPT(engine="direct")` computes them in
    float64.

    Parameters
    ----------
    features : (N, d) unit rows, in stream order.
    log_posteriors : (N, K) replacement for the zero-shot posteriors; used for the banks and in the fusion.
    prototypes : (K, d) unit rows, the initial means.
    bank_size, alpha, beta, use_bank_term, update_mean, update_covariance : as in `OnlineADAPT`; a bank is needed.

    >>> log_y = np.log([[0.9, 0.1], [0.2, 0.8]])
    >>> adapt_online_given(np.eye(2), log_y, np.eye(2)).argmax(axis=1)
    array([0, 1])
    """
    features = np.asarray(features, np.float64)
    prototypes = np.asarray(prototypes, np.float64)
    log_y = np.asarray(log_posteriors, np.float64)
    if log_y.shape != (len(features), len(prototypes)):
        raise ValueError(
            f"log_posteriors must have one row per sample and one column per class, "
            f"{(len(features), len(prototypes))}; got {log_y.shape}. Fix: the posteriors of the same rows."
        )
    rule = AdaptSettings(
        alpha=float(Number(0, 1).check("alpha", alpha)),
        beta=Optional(Number(0)).check("beta", beta),
        use_bank_term=Flag().check("use_bank_term", use_bank_term),
        update_mean=Flag().check("update_mean", update_mean),
        update_covariance=Flag().check("update_covariance", update_covariance),
        per_class=False,
    )
    capacity = int(Number(1, integer=True).check("bank_size", bank_size))
    bank = KnowledgeBank(Backend.of(prototypes), len(prototypes), prototypes.shape[1], capacity)
    gaussians = estimate(bank, bank.sums(), prototypes, rule)
    scores = np.empty(log_y.shape)
    for place in range(len(features)):
        row = slice(place, place + 1)
        if bank.offer(features[row], log_y[row]):
            gaussians = estimate(bank, bank.sums(), prototypes, rule)
        scores[row] = score(features[row], log_y[row], gaussians, bank, rule)
    return scores


ALL = "all"
"""Name of the whole stream next to its groups."""


def long_tail_with_noise(
    features: FeatureSet, *, prompt: str, seed: int, imbalance: float = IMBALANCE, noisy: bool
) -> dict[str, Any]:
    """Accuracy of zero-shot and of online ADAPT on a long-tailed stream, by group.

    With `noisy`, both get the same posteriors, some of the early ones swapped: see `early_noise`. `zero_shot_accuracy`
    is without noise, on the rows of the stream. If a class has too few samples for a long tail, nothing is scored
    and there are no accuracies.
    """
    every_label = StreamInputs(features, prompt).labels
    if np.unique(every_label, return_counts=True)[1].min() < FEWEST:
        return {"scored": 0, "zero_shot_accuracy": None}
    stream = long_tail(every_label, seed, imbalance=imbalance)
    rows = np.asarray(features.features[stream.rows], np.float64)
    labels = every_label[stream.rows]
    prototypes = features.prototypes_for(prompt).astype(np.float64)
    log_y = log_posterior(rows, prototypes, features.logit_scale)
    plain, turned = float(np.mean(pseudo_class(log_y) == labels)), 0
    if noisy:
        noise = early_noise(confidence(log_y), pseudo_class(log_y), features.n_classes, seed, labels=labels)
        log_y, turned = noise.apply(log_y), len(noise)
    adapted = adapt_online_given(rows, log_y, prototypes)
    inside = {name: labels[_of(stream, name)] for name in (*GROUPS, ALL)}
    sizes = np.unique(labels, return_counts=True)[1]
    return {
        "scored": len(labels),
        "zero_shot_accuracy": plain,
        "turned": turned,
        "imbalance": float(sizes.max() / sizes.min()),
        "samples": {name: len(part) for name, part in inside.items()},
        "classes": {name: len(set(part.tolist())) for name, part in inside.items()},
        "zero_shot": _accuracies(pseudo_class(log_y) == labels, stream),
        "adapt_online": _accuracies(adapted.argmax(axis=1) == labels, stream),
    }


def _accuracies(right: np.ndarray, stream: Stream) -> dict[str, float | None]:
    """Accuracy by group and over all samples; None for a group without classes."""
    inside = {name: right[_of(stream, name)] for name in (*GROUPS, ALL)}
    return {name: float(part.mean()) if len(part) else None for name, part in inside.items()}


def _of(stream: Stream, name: str) -> np.ndarray:
    return np.ones(len(stream), bool) if name == ALL else np.asarray(stream.groups) == GROUPS.index(name)


Record = Mapping[str, Any]

FEW_CLASSES = 20
"""Sets with fewer classes get a note."""

MIN_CLASSES = 3
"""Minimum number of classes: the wrong class must differ from the pseudo-class and the true class."""


ROWS = (
    ("zero-shot", "zero_shot", False),
    ("zero-shot, with noise", "zero_shot", True),
    ("ADAPT", "adapt_online", False),
    ("ADAPT, with noise", "adapt_online", True),
)
"""Label, method, and whether some early posteriors are swapped."""


def _jobs(member: Member, options: Options, noisy: bool) -> list[Analysis]:
    return [analysis(member, long_tail_with_noise, {"seed": seed, "noisy": noisy}) for seed in range(options.orders)]


def _taken(suite: Suite) -> list[Member]:
    return [member for member in suite.members if member.dataset.n_classes >= MIN_CLASSES]


def _plan(suite: Suite, options: Options) -> Sequence[Job]:
    return [job for member in _taken(suite) for noisy in (False, True) for job in _jobs(member, options, noisy)]


Records = Mapping[bool, Sequence[Sequence[Record]]]
"""Without and with noise: for each set, the record of each draw."""


def _find(suite: Suite, options: Options, results: JobResults) -> Sequence[Finding | None]:
    included, left_out_remarks = (
        [],
        [*_left_out([m for m in suite.members if m not in _taken(suite)], f"{MIN_CLASSES} classes")],
    )
    failed, too_small = [], []
    records: dict[bool, list[list[Record]]] = {False: [], True: []}
    for member in _taken(suite):
        jobs = {noisy: _jobs(member, options, noisy) for noisy in records}
        if any(len(results.records(those)) < len(those) for those in jobs.values()):
            failed.append(member)
        elif not all(record["scored"] for those in jobs.values() for record in results.records(those)):
            too_small.append(member)
        else:
            included.append(member)
            for noisy, those in jobs.items():
                records[noisy].append(results.records(those))
    left_out_remarks += _left_out(too_small, f"{FEWEST} samples of some class")
    if failed:
        left_out_remarks.append(Remark(f"Left out, because runs failed: {describe_sets(failed)}.", kind="warning"))
    other_data = Remark(
        f"Ours are long-tailed draws from {describe_sets(included)}; the paper's is one from ImageNet, whose rows are "
        "not published: compare the pattern, not the numbers.",
        kind="data",
    )
    found: list[Finding | None] = (
        [_table(included, records, options), *_claims(records), other_data] if included else []
    )
    return [*found, *left_out_remarks, reference("long_tail_noise")]


def _left_out(members: Sequence[Member], what: str) -> list[Remark]:
    return [Remark(f"Left out, because of fewer than {what}: {describe_sets(members)}.")] if members else []


def _table(members: Sequence[Member], records: Records, options: Options) -> Table:
    rows = []
    for label, method, noisy in ROWS:
        cells = [_mean(records[noisy], method, name) for name in (*GROUPS, ALL)]
        before = _mean(records[False], method, ALL)
        change = Value(points(before.value, cells[-1].value)) if noisy and before and cells[-1] else None
        rows.append(Row((label, *cells, change), strong=method == "adapt_online"))
    all_records = [record for draws in records[False] for record in draws]
    columns = (
        Column("method", "text"),
        *(Column(name.capitalize(), "percent", _classes([r["classes"][name] for r in all_records])) for name in GROUPS),
        Column("All samples", "percent"),
        Column("Change by noise", "points", "all samples"),
    )
    notes = _notes(members, records, options)
    return Table("long-tail", "Accuracy on long-tailed streams", columns, tuple(rows), notes)


def _mean(by_set: Sequence[Sequence[Record]], method: str, name: str) -> Value | None:
    """The mean over sets, weighted equally, per draw; draws without samples in the group are omitted."""
    draws = []
    for draw in zip(*by_set, strict=True):
        values = [record[method][name] for record in draw if record[method][name] is not None]
        draws += [float(np.mean(values))] if values else []
    return spread(draws) if draws else None


def _ends(words: Sequence[str]) -> str:
    """A range of numbers as text, or the only number."""
    return words[0] if words[0] == words[-1] else f"{words[0]} to {words[-1]}"


def _classes(counts: Sequence[int]) -> str:
    """Number of classes of a group: "1 class", "3 to 61 classes"."""
    return f"{_ends([str(count) for count in sorted(counts)])} {'class' if max(counts) == 1 else 'classes'}"


def _notes(members: Sequence[Member], records: Records, options: Options) -> tuple[str, ...]:
    turned = [100 * record["turned"] / record["scored"] for draws in records[True] for record in draws]
    ratios = [record["imbalance"] for draws in records[True] for record in draws]
    share, ratio = _ends([f"{value:.1f}%" for value in sorted(turned)]), _ends([f"{n:.0f}:1" for n in sorted(ratios)])
    notes = [
        f"Class sizes fall by equal factors, in a random order of the classes, up to {IMBALANCE:g}:1 or as far as the "
        f"smallest class allows: here {ratio}. The paper calls it a power law, and this gives its counts exactly. "
        "Head: at least 0.8 of the largest; tail: at most 0.2.",
        f"Noise: {SHARE:.0%} of the confident pseudo-labels in the first {PHASE:.0%} of the stream are changed to "
        f"another wrong class, here {share} of all samples. Confident means the most confident {CONFIDENT:.0%}; the "
        "paper does not define it.",
        f"Draws of each set: {options.orders}. The last accuracy is over all samples. So is the paper's average; it is "
        "not the mean of its three columns. Only CLIP's, printed as 69.33, would by its columns be 69.17.",
    ]
    few = [member for member in members if member.dataset.n_classes < FEW_CLASSES]
    if few:
        notes.append(
            f"Few classes ({describe_sets(few)}): each group has only a few, so its result depends much on which "
            "classes they are."
        )
    return tuple(notes)


def _claims(records: Records) -> list[Remark | None]:
    def against(noisy: bool) -> list[ClaimEvidence]:
        found = []
        for name in (*GROUPS, ALL):
            a, b = (_mean(records[noisy], method, name) for method in ("zero_shot", "adapt_online"))
            sizes = [size for draws in records[noisy] if (size := draws[0]["samples"][name])]
            if a is not None and b is not None and sizes:
                holds = higher(b.value, a.value, samples=effective_samples(sizes))
                where = "all samples" if name == ALL else name
                found.append(ClaimEvidence(where, holds, f"{100 * a.value:.1f}% to {100 * b.value:.1f}%"))
        return found

    return [
        verdict("on a long tail ADAPT is more accurate than zero-shot in every group", against(False)),
        verdict("with early noise ADAPT is still more accurate than zero-shot, in every group", against(True)),
    ]


EXPERIMENT = Experiment(
    name="long-tail",
    title="Long tail with early noise",
    question="Does online ADAPT still help if most classes are rare, or if early pseudo-labels are wrong?",
    plan=_plan,
    find=_find,
    where="Table 23",
    tables=("long_tail_noise",),
)
