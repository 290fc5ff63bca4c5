"""Samples of unknown classes: how well they can be recognised before and after adaptation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from zeroshift.adapt.online import OnlineADAPT
from zeroshift.evaluate import Analysis, Job
from zeroshift.evaluate.metrics.reject import RejectCurve
from zeroshift.evaluate.metrics.scorecard import uncertainty
from zeroshift.evaluate.resources import one_blas_thread
from zeroshift.experiments._shared.experiment import Experiment, JobResults, Options
from zeroshift.experiments._shared.findings import Bar, Bars, Column, Finding, Remark, Row, Table, Value
from zeroshift.experiments._shared.main_table import unique_titles
from zeroshift.experiments._shared.suite import Member, Suite, describe_sets
from zeroshift.experiments._shared.trials import analysis, spread
from zeroshift.features import FeatureSet
from zeroshift.methods.zero_shot import ZeroShot
from zeroshift.mixture.online import OnlineAnchoredMixture
from zeroshift.mixture.transductive import TransductiveAnchoredMixture
from zeroshift.reject import RejectRule, class_distances

__all__ = ["EXPERIMENT", "HELD_OUT", "MIN_CLASSES", "unknown_classes"]


HELD_OUT = 1 / 3
"""Fraction of classes that the classifier does not know."""

MIN_CLASSES = 3
"""Minimum number of classes, so that a third can be held out."""


def unknown_classes(features: FeatureSet, *, prompt: str, seed: int, held_out: float = HELD_OUT) -> dict[str, Any]:
    """Hide the prototypes of random classes; the stream still has all samples, in random order.

    For every score: `auroc`, and `fpr95`, the fraction of samples of known classes rejected at the threshold that
    rejects 95% of the unknown ones; empty if all samples are of one kind. Accuracies are for samples of known
    classes: zero-shot, and as `known_accuracy` online ADAPT. `rejected` has the shares of known and of unknown samples
    beyond the cut that `RejectRule` finds without labels.
    """
    labels = features.labels
    if labels is None or features.n_classes < MIN_CLASSES:
        raise ValueError(f"features must be labelled and have at least {MIN_CLASSES} classes; got {features!r}.")
    draw = np.random.default_rng(seed)
    hidden = np.sort(draw.permutation(features.n_classes)[: max(1, round(held_out * features.n_classes))])
    order = draw.permutation(features.n_samples)
    known = np.setdiff1d(np.arange(features.n_classes), hidden)
    unknown = np.isin(labels[order], hidden)
    seen = FeatureSet(
        np.asarray(features.features[order]),
        prototypes=features.prototypes_for(prompt)[known],
        logit_scale=features.logit_scale,
    )
    prototypes = seen.prototypes_for()
    with one_blas_thread():
        distances = class_distances(seen.features, prototypes)
        probabilities = {
            "zero_shot": ZeroShot(prototypes, logit_scale=seen.logit_scale).predict(seen.features),
            **{
                kind.name: kind(prototypes, logit_scale=seen.logit_scale).adapt(seen.features)
                for kind in (OnlineADAPT, OnlineAnchoredMixture, TransductiveAnchoredMixture)
            },
        }
    right = {name: known[np.argmax(given, axis=1)] == labels[order] for name, given in probabilities.items()}
    accuracy = {name: None if unknown.all() else float(hits[~unknown].mean()) for name, hits in right.items()}
    scores = {
        "cosine": distances[:, 0],
        **{name: uncertainty(given) for name, given in probabilities.items()},
    }
    both = unknown.any() and not unknown.all()
    rejected, kinds = RejectRule.fit(distances).rejected(distances), {"known": ~unknown, "unknown": unknown}
    return {
        "scored": len(order),
        "unknown": int(unknown.sum()),
        "hidden": hidden.tolist(),
        "scores": {name: _separation(given, unknown) for name, given in scores.items()} if both else {},
        "rejected": {name: float(rejected[rows].mean()) for name, rows in kinds.items()} if both else {},
        "zero_shot_accuracy": accuracy["zero_shot"],
        "known_accuracy": accuracy["adapt_online"],
    }


def _separation(scores: np.ndarray, unknown: np.ndarray) -> dict[str, float | None]:
    curve = RejectCurve()
    curve.update(scores, unknown)
    return {"auroc": curve.auroc, "fpr95": curve.false_positive_rate()}


SCORES = {
    "cosine": "one minus the largest cosine",
    "zero_shot": "one minus the largest probability, zero-shot",
    "adapt_online": "one minus the largest probability, ADAPT (online)",
    "anchored_mixture_online": "one minus the largest probability, mixture (online)",
    "anchored_mixture_transductive": "one minus the largest probability, mixture (transductive)",
}

METHODS = ("zero_shot", "adapt_online", "anchored_mixture_online", "anchored_mixture_transductive")
"""Scores computed from the probabilities of a method, with the name of the method."""

COMPARED = (
    ("AUROC of ADAPT's probabilities, against zero-shot's", "adapt_online", "zero_shot"),
    ("AUROC of the online mixture's probabilities, against zero-shot's", "anchored_mixture_online", "zero_shot"),
    ("AUROC of zero-shot's probabilities, against the cosine's", "zero_shot", "cosine"),
)
"""Comparisons of scores: text, score after adaptation, score before."""

CHANCE = 0.5


def _jobs(member: Member, options: Options) -> list[Analysis]:
    return [analysis(member, unknown_classes, {"seed": seed, "held_out": HELD_OUT}) for seed in range(options.orders)]


def _taken(suite: Suite) -> list[Member]:
    return [member for member in suite.members if member.dataset.n_classes >= MIN_CLASSES]


def _plan(suite: Suite, options: Options) -> Sequence[Job]:
    return [job for member in _taken(suite) for job in _jobs(member, options)]


def _find(suite: Suite, options: Options, results: JobResults) -> Sequence[Finding | None]:
    members = _taken(suite)
    too_few_classes = [member for member in suite.members if member not in members]
    found: list[Finding] = []
    by_set = {member.name: _drawn(member, options, results) for member in members}
    included = [member for member in members if by_set[member.name]]
    if included:
        titles = unique_titles([member.title for member in included], included)
        records = [by_set[member.name] for member in included]
        found += [_table(titles, records), _bars(titles, records)]
        found += [_against(words, after, before, titles, records) for words, after, before in COMPARED]
        found.append(_at_the_cut(titles, records))
    failed = [member for member in members if not results.records(_jobs(member, options))]
    one_sided = [member for member in members if member not in included and member not in failed]
    if failed:
        found.append(Remark(f"All draws failed: {describe_sets(failed)}.", kind="warning"))
    if one_sided:
        found.append(Remark(f"No draw had samples both known and unknown: {describe_sets(one_sided)}.", kind="warning"))
    if too_few_classes:
        few = f"fewer than {MIN_CLASSES} classes"
        found.append(Remark(f"Left out, because no third can be held out of {few}: {describe_sets(too_few_classes)}."))
    return found


def _drawn(member: Member, options: Options, results: JobResults) -> list[Mapping[str, Any]]:
    """The draws with both known and unknown samples."""
    return [record for record in results.records(_jobs(member, options)) if record["scores"]]


def _value(records: Sequence[Mapping[str, Any]], score: str, measure: str) -> Value:
    return spread([float(record["scores"][score][measure]) for record in records])


def _table(titles: Sequence[str], by_set: Sequence[Sequence[Mapping[str, Any]]]) -> Table:
    rows = [
        Row((SCORES[score], _value(records, score, "auroc"), _value(records, score, "fpr95")), title)
        for title, records in zip(titles, by_set, strict=True)
        for score in SCORES
    ]
    if len(titles) > 1:
        for score in SCORES:
            means = [
                float(np.mean([_value(records, score, measure).value for records in by_set]))
                for measure in ("auroc", "fpr95")
            ]
            rows.append(Row((SCORES[score], *map(Value, means)), "Mean of the sets"))
    return Table(
        "unknown-classes",
        "Detecting samples of unknown classes",
        (
            Column("score", "text"),
            Column("AUROC", detail="50 is chance"),
            Column("FPR95", detail="the lower the better"),
        ),
        tuple(rows),
        (
            "A third of the classes, drawn at random, have no prototype; the stream has all samples, in random order. "
            "Mean, minimum and maximum over the draws.",
            "FPR95: share of samples of known classes rejected at the threshold that rejects 95% of the unknown.",
            "The cosine does not use what a method has learned, so it is the same for all.",
        ),
    )


def _bars(titles: Sequence[str], by_set: Sequence[Sequence[Mapping[str, Any]]]) -> Bars:
    bars = []
    for title, records in zip(titles, by_set, strict=True):
        for score in SCORES:
            value = _value(records, score, "auroc")
            low, high = (None if end is None else 100 * (end - CHANCE) for end in (value.low, value.high))
            bars.append(
                Bar(SCORES[score], 100 * (value.value - CHANCE), low, high, title, score if score in METHODS else "")
            )
    return Bars(
        "auroc",
        "How far above chance unknown classes are recognised",
        "AUROC above chance (points)",
        tuple(bars),
        "Whiskers go from the lowest to the highest of the draws." if any(bar.low is not None for bar in bars) else "",
    )


def _against(
    words: str, after: str, before: str, titles: Sequence[str], by_set: Sequence[Sequence[Mapping[str, Any]]]
) -> Remark:
    """One score against another, per set."""
    by_verdict: dict[bool | None, list[str]] = {}
    for title, records in zip(titles, by_set, strict=True):
        new, old = (_value(records, score, "auroc").value for score in (after, before))
        by_verdict.setdefault(_higher(new, old, records), []).append(f"{title} ({100 * (new - old):+.1f} points)")
    verdicts = {False: "worse on", True: "better on", None: "too close to call on"}
    text = "; ".join(f"{verdicts[holds]} {', '.join(by_verdict[holds])}" for holds in verdicts if holds in by_verdict)
    return Remark(f"{words}: {text}.", kind="warning" if False in by_verdict else "note")


def _at_the_cut(titles: Sequence[str], by_set: Sequence[Sequence[Mapping[str, Any]]]) -> Remark:
    """What the default cut rejects, per set."""
    shares = (
        [100 * float(np.mean([record["rejected"][kind] for record in records])) for kind in ("unknown", "known")]
        for records in by_set
    )
    parts = [
        f"{title} ({unknown:.1f}% and {known:.1f}%)" for title, (unknown, known) in zip(titles, shares, strict=True)
    ]
    return Remark(f"Beyond the default cut, of unknown and of known samples: {', '.join(parts)}.")


def _higher(a: float, b: float, records: Sequence[Mapping[str, Any]]) -> bool | None:
    """Whether one AUROC is higher; None if they differ by less than one standard error of the difference, as if the
    samples were independent (see `claims.higher`)."""
    unknown = float(np.mean([record["unknown"] for record in records]))
    known = float(np.mean([record["scored"] for record in records])) - unknown
    if abs(a - b) <= np.hypot(area_error(a, unknown, known), area_error(b, unknown, known)):
        return None
    return a > b


def area_error(auroc: float, positive: float, negative: float) -> float:
    """Standard error of an AUROC for these numbers of samples, by Hanley and McNeil (1982).

    >>> round(area_error(0.5, 50, 50), 3), area_error(1.0, 50, 50)
    (0.058, 0.0)
    """
    one, two = auroc / (2 - auroc), 2 * auroc**2 / (1 + auroc)
    variance = auroc * (1 - auroc) + (positive - 1) * (one - auroc**2) + (negative - 1) * (two - auroc**2)
    return float(np.sqrt(max(variance, 0.0) / (positive * negative)))


EXPERIMENT = Experiment(
    name="open-set",
    title="Samples of no class",
    question="Can samples of unknown classes be recognised, and does adaptation make that harder?",
    plan=_plan,
    find=_find,
)
