"""Samples of none of the classes: how well they can be told from the others, before and after adapting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from zeroshift.adapt.online import OnlineADAPT
from zeroshift.evaluate import Analysis, Job
from zeroshift.evaluate.metrics.reject import RejectCurve, reject_scores
from zeroshift.evaluate.metrics.scorecard import uncertainty
from zeroshift.evaluate.resources import one_blas_thread
from zeroshift.experiments._shared.experiment import Answers, Experiment, Options
from zeroshift.experiments._shared.findings import Bar, Bars, Column, Finding, Remark, Row, Table, Value
from zeroshift.experiments._shared.main_table import unlike
from zeroshift.experiments._shared.suite import Member, Suite, together
from zeroshift.experiments._shared.trials import spread
from zeroshift.features import FeatureSet
from zeroshift.methods.zero_shot import ZeroShot
from zeroshift.mixture.base import AnchoredMixture
from zeroshift.mixture.online import OnlineAnchoredMixture
from zeroshift.mixture.transductive import TransductiveAnchoredMixture

__all__ = ["EXPERIMENT", "HELD_OUT", "MIN_CLASSES", "mixture_scores", "unknown_classes"]


# A look at a set some of whose classes the classifier does not know: can their samples be told from the others?


# By module: the key of the work follows these, so that other code is other work.


HELD_OUT = 1 / 3
"""Share of the classes that the classifier does not know."""

MIN_CLASSES = 3
"""With fewer no third can be held out and two be kept."""

AT_ONCE = 32
"""Samples an online mixture is asked about, and then given, at a time."""


def unknown_classes(features: FeatureSet, *, prompt: str, seed: int, held_out: float = HELD_OUT) -> dict[str, Any]:
    """Hide the prototypes of some classes, drawn with `seed`; all samples still come, in an order drawn with it.

    For every score: `auroc`, and `fpr95`, the share of samples of known classes rejected at the threshold that rejects
    95% of the unknown ones; none where all samples are of one kind. The accuracies are those on the samples of known
    classes, of the classifiers that know no other: zero-shot's, and as `known_accuracy` online ADAPT's.
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
    online = OnlineAnchoredMixture(prototypes, logit_scale=seen.logit_scale)
    at_once = TransductiveAnchoredMixture(prototypes, logit_scale=seen.logit_scale)
    with one_blas_thread():
        answers = {
            "zero_shot": ZeroShot(prototypes, logit_scale=seen.logit_scale).predict(seen.features),
            "adapt_online": OnlineADAPT(prototypes, logit_scale=seen.logit_scale).adapt(seen.features),
        }
        answers[online.name], online_scores = mixture_scores(online, seen.features)
        _, set_scores = mixture_scores(at_once, seen.features)
    right = {name: known[np.argmax(given, axis=1)] == labels[order] for name, given in answers.items()}
    accuracy = {name: None if unknown.all() else float(hits[~unknown].mean()) for name, hits in right.items()}
    scores = {
        "cosine": reject_scores(seen),
        **{name: uncertainty(given) for name, given in answers.items()},
        "mixture_online": online_scores,
        "mixture_transductive": set_scores,
    }
    both = unknown.any() and not unknown.all()
    return {
        "scored": len(order),
        "unknown": int(unknown.sum()),
        "hidden": hidden.tolist(),
        "scores": {name: _told(given, unknown) for name, given in scores.items()} if both else {},
        "zero_shot_accuracy": accuracy["zero_shot"],
        "known_accuracy": accuracy["adapt_online"],
    }


def mixture_scores(mixture: AnchoredMixture, features: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Answers (N, K) and reject scores (N,): of an online mixture by what it has seen before, of the other by all."""
    if mixture.protocol != "online":
        answers = mixture.adapt(features)
        return answers, mixture.reject_scores(features)
    answers, scores = [], []
    for start in range(0, len(features), AT_ONCE):
        some = features[start : start + AT_ONCE]
        scores.append(mixture.reject_scores(some))
        answers.append(mixture.adapt(some))
    return np.concatenate(answers), np.concatenate(scores)


def _told(scores: np.ndarray, unknown: np.ndarray) -> dict[str, float | None]:
    curve = RejectCurve()
    curve.update(scores, unknown)
    return {"auroc": curve.auroc, "fpr95": curve.false_positive_rate()}


SCORES = {
    "cosine": "one less the largest cosine",
    "zero_shot": "one less the largest probability, zero-shot",
    "adapt_online": "one less the largest probability, ADAPT (online)",
    "anchored_mixture_online": "one less the largest probability, mixture (online)",
    "mixture_online": "the mixture's reject score (online)",
    "mixture_transductive": "the mixture's reject score (transductive)",
}

METHODS = ("zero_shot", "adapt_online", "anchored_mixture_online")
"""Scores that are a method's probabilities, and called as it is."""

COMPARED = (
    (
        "How well ADAPT's probabilities tell unknown classes, by AUROC and against zero-shot's",
        "adapt_online",
        "zero_shot",
    ),
    ("How well the online mixture's reject score tells them, against the cosine", "mixture_online", "cosine"),
    ("How well the transductive mixture's does, against the cosine", "mixture_transductive", "cosine"),
)
"""Whether adapting to a stream with strangers in it costs the means to recognise them: words, after, before."""

CHANCE = 0.5


def _jobs(member: Member, options: Options) -> list[Analysis]:
    dataset = member.dataset
    return [
        Analysis(dataset.name, dataset.digest, dataset.prompt, unknown_classes, {"seed": seed, "held_out": HELD_OUT})
        for seed in range(options.orders)
    ]


def _taken(suite: Suite) -> list[Member]:
    return [member for member in suite.members if member.dataset.n_classes >= MIN_CLASSES]


def _plan(suite: Suite, options: Options) -> Sequence[Job]:
    return [job for member in _taken(suite) for job in _jobs(member, options)]


def _find(suite: Suite, options: Options, answers: Answers) -> Sequence[Finding]:
    members = _taken(suite)
    left_out = [member for member in suite.members if member not in members]
    found: list[Finding] = []
    by_set = {member.name: _drawn(member, options, answers) for member in members}
    told = [member for member in members if by_set[member.name]]
    if told:
        titles = unlike([member.title for member in told], told)
        records = [by_set[member.name] for member in told]
        found += [_table(titles, records), _bars(titles, records)]
        found += [_against(words, after, before, titles, records) for words, after, before in COMPARED]
    silent = [member for member in members if not answers.all_of(_jobs(member, options))]
    mute = [member for member in members if member not in told and member not in silent]
    if silent:
        found.append(Remark(f"No draw gave an answer: {together(silent)}.", kind="warning"))
    if mute:
        found.append(Remark(f"No draw had samples both known and unknown: {together(mute)}.", kind="warning"))
    if left_out:
        few = f"fewer than {MIN_CLASSES} classes"
        found.append(Remark(f"Left out, because no third can be held out of {few}: {together(left_out)}."))
    return found


def _drawn(member: Member, options: Options, answers: Answers) -> list[Mapping[str, Any]]:
    """The draws in which there was something to tell apart."""
    return [record for record in answers.all_of(_jobs(member, options)) if record["scores"]]


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
        "Telling samples of unknown classes from the others",
        (
            Column("score", "text"),
            Column("AUROC", detail="50 is chance"),
            Column("FPR95", detail="the lower the better"),
        ),
        tuple(rows),
        (
            "A third of the classes, drawn at random, have no prototype; all samples come, in a random order. Mean, "
            "least and greatest of the draws.",
            "FPR95: share of samples of known classes that is rejected where 95% of the unknown are.",
            "The cosine knows nothing of what a method has learned, and hence is the same for all.",
            "The online mixture is asked for its reject score before it sees a sample, the other after the whole set.",
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
        "Whiskers go from the least to the greatest of the draws.",
    )


def _against(
    words: str, after: str, before: str, titles: Sequence[str], by_set: Sequence[Sequence[Mapping[str, Any]]]
) -> Remark:
    """One score against another, set by set."""
    places: dict[bool | None, list[str]] = {}
    for title, records in zip(titles, by_set, strict=True):
        new, old = (_value(records, score, "auroc").value for score in (after, before))
        places.setdefault(_higher(new, old, records), []).append(f"{title} ({100 * (new - old):+.1f} points)")
    verdicts = {False: "worse on", True: "better on", None: "too close to say on"}
    said = "; ".join(f"{verdicts[holds]} {', '.join(places[holds])}" for holds in verdicts if holds in places)
    return Remark(f"{words}: {said}.", kind="warning" if False in places else "note")


def _higher(a: float, b: float, records: Sequence[Mapping[str, Any]]) -> bool | None:
    """Whether one area lies above the other; None where they are less than one standard error of a difference apart.

    As simple as `claims.higher`, and for the same reason too careful: as if the two were of different samples.
    """
    unknown = float(np.mean([record["unknown"] for record in records]))
    known = float(np.mean([record["scored"] for record in records])) - unknown
    if abs(a - b) <= np.hypot(area_error(a, unknown, known), area_error(b, unknown, known)):
        return None
    return a > b


def area_error(auroc: float, positive: float, negative: float) -> float:
    """Standard error of an area under the curve of so many samples of either kind, by Hanley and McNeil (1982).

    >>> round(area_error(0.5, 50, 50), 3), area_error(1.0, 50, 50)
    (0.058, 0.0)
    """
    one, two = auroc / (2 - auroc), 2 * auroc**2 / (1 + auroc)
    variance = auroc * (1 - auroc) + (positive - 1) * (one - auroc**2) + (negative - 1) * (two - auroc**2)
    return float(np.sqrt(max(variance, 0.0) / (positive * negative)))


EXPERIMENT = Experiment(
    name="open-set",
    title="Samples of no class",
    question="Can samples that belong to none of the classes be recognised, and does adapting make that harder?",
    plan=_plan,
    find=_find,
)
