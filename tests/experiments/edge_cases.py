"""Unusual sets, and outcomes with failures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from zeroshift import FeatureSet, normalize
from zeroshift.data import packs
from zeroshift.evaluate import JobOutcome
from zeroshift.experiments import Suite


def scattered(
    classes: int, each: int, *, dimension: int = 8, prompts=("vanilla", "ensemble"), **provenance
) -> FeatureSet:
    """`each` samples per class around a centre; `provenance` is that of the set.

    Sets with equal numbers of classes and dimensions share their prototypes; corrupted ones have other features.
    """
    random = np.random.default_rng(classes + dimension)
    labels = np.repeat(np.arange(classes), each)
    centres = normalize(random.normal(size=(classes, dimension)))
    modes = {mode: normalize(centres + 0.3 * random.normal(size=centres.shape)) for mode in prompts}
    noise = np.random.default_rng([each, "corruption" in provenance]).normal(size=(len(labels), dimension))
    features = normalize(centres[labels] + 0.4 * noise)
    return FeatureSet(features, prototypes=modes, labels=labels, default_prompt=prompts[0], provenance=provenance)


def narrowed(name: str, rows: int, dimension: int = 24) -> FeatureSet:
    """The first rows and dimensions of a bundled pack, to save time."""
    pack = packs.load(name)
    images = np.asarray(pack.features if pack.views is None else pack.views, np.float64)[:rows, ..., :dimension]
    images = images / np.linalg.norm(images, axis=-1, keepdims=True)
    return FeatureSet(
        images if pack.views is None else None,
        views=None if pack.views is None else images,
        prototypes={mode: normalize(matrix[:, :dimension]) for mode, matrix in pack.prototypes.items()},
        labels=pack.labels[:rows],
        class_names=pack.class_names,
        logit_scale=pack.logit_scale,
        default_prompt=pack.default_prompt,
        provenance=pack.provenance,
    )


def in_two_encoders() -> dict[str, FeatureSet]:
    """The same images from two encoders; one of them also has them in fog."""
    clean, fog = {"data_set": "CIFAR-10"}, {"data_set": "CIFAR-10", "corruption": "fog", "severity": 5}
    return {
        "clean a": scattered(4, 8, encoder="CLIP RN50", **clean),
        "clean b": scattered(4, 8, dimension=6, encoder="CLIP ViT-B/16", **clean),
        "fog b": scattered(4, 8, dimension=6, encoder="CLIP ViT-B/16", **fog),
    }


ODD_SUITES: dict[str, Callable[[], Mapping[str, FeatureSet]]] = {
    "two classes of six samples": lambda: {"pair": scattered(2, 6, data_set="CIFAR-10")},
    "a plane": lambda: {"flat": scattered(3, 8, dimension=2, data_set="CIFAR-10")},
    "one sample per class": lambda: {"ones": scattered(6, 1, data_set="Fashion-MNIST")},
    "two encoders": in_two_encoders,
    "none of the tasks, one prompt mode": lambda: {"mine": scattered(4, 8, prompts=("only",))},
    "views": lambda: {"views": narrowed("views_cifar10c_fog_5", 30, 12)},
}
"""Unusual sets by description."""


def odd_suite(name: str) -> Suite:
    return Suite.of(ODD_SUITES[name]())


def with_failures(outcomes: Sequence[JobOutcome[Any]], failed: Callable[[int], bool]) -> list[JobOutcome[Any]]:
    """The outcomes, failed at the positions where `failed` returns True."""
    return [
        JobOutcome(outcome.job, None, "made to fail", False) if failed(place) else outcome
        for place, outcome in enumerate(outcomes)
    ]
