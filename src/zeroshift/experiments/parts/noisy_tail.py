"""Online ADAPT on a long-tailed stream, without and with wrong pseudo-labels near the start."""

from __future__ import annotations

from typing import Any

import numpy as np

# By module: the key of the work follows these, so that other code is other work.
from zeroshift.evaluate.streams.clues import Clues
from zeroshift.evaluate.streams.long_tail import FEWEST, GROUPS, IMBALANCE, long_tail
from zeroshift.evaluate.streams.noise import early_noise
from zeroshift.evaluate.streams.stream import Stream
from zeroshift.experiments.parts.given_posteriors import adapt_online_given
from zeroshift.features import FeatureSet
from zeroshift.zero_shot import confidence, log_posterior, pseudo_class

__all__ = ["ALL", "long_tail_with_noise"]

ALL = "all"
"""What the whole stream is called beside its groups."""


def long_tail_with_noise(
    features: FeatureSet, *, prompt: str, seed: int, imbalance: float = IMBALANCE, noisy: bool
) -> dict[str, Any]:
    """Accuracy of the zero-shot classifier and of online ADAPT on a long-tailed stream, by group.

    With `noisy`, both see the same posteriors, some of the early ones swapped: see `early_noise`; noise never corrects.
    `zero_shot_accuracy` is that without noise, on the rows that came. Where a class has too few samples for a tail,
    none are scored, and there are no accuracies.
    """
    every_label = Clues(features, prompt).labels
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
    """By group, and over all samples; None for a group no class falls into."""
    inside = {name: right[_of(stream, name)] for name in (*GROUPS, ALL)}
    return {name: float(part.mean()) if len(part) else None for name, part in inside.items()}


def _of(stream: Stream, name: str) -> np.ndarray:
    return np.ones(len(stream), bool) if name == ALL else np.asarray(stream.groups) == GROUPS.index(name)
