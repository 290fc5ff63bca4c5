"""A look at a set some of whose classes the classifier does not know: can their samples be told from the others?"""

from __future__ import annotations

from typing import Any

import numpy as np

# By module: the key of the work follows these, so that other code is other work.
from zeroshift.adapt.online import OnlineADAPT
from zeroshift.evaluate.reject import reject_scores
from zeroshift.evaluate.tallies.doubt import doubt
from zeroshift.evaluate.tallies.reject_curve import RejectCurve
from zeroshift.evaluate.threads import one_blas_thread
from zeroshift.features import FeatureSet
from zeroshift.methods.zero_shot import ZeroShot
from zeroshift.mixture.base import AnchoredMixture
from zeroshift.mixture.online import OnlineAnchoredMixture
from zeroshift.mixture.transductive import TransductiveAnchoredMixture

__all__ = ["HELD_OUT", "MIN_CLASSES", "mixture_scores", "unknown_classes"]

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
        **{name: doubt(given) for name, given in answers.items()},
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
