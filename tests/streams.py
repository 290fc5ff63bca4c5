"""The streams every engine must get right: fills and replacements, ties, empty classes, negative cosines, d > N."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from zeroshift.testing import make_problem


class Stream(NamedTuple):
    features: np.ndarray
    prototypes: np.ndarray
    logit_scale: float


def _stream(classes: int, dimension: int, samples: int, scale: float = 20.0, **geometry: float) -> Stream:
    problem = make_problem(classes, dimension, samples, **geometry)
    return Stream(problem.features, problem.prototypes, scale)


def _duplicates() -> Stream:
    stream = _stream(6, 12, 100, seed=11)
    return stream._replace(features=np.repeat(stream.features, 3, axis=0))


def _interleaved_duplicates() -> Stream:
    stream = _stream(6, 12, 100, seed=12)
    return stream._replace(features=np.concatenate([stream.features] * 3))


def _one_class_only() -> Stream:
    problem = make_problem(7, 16, 1500, seed=13, noise=0.6)
    return Stream(problem.features[problem.labels == 3], problem.prototypes, 20.0)


def _every_sample_replaces() -> Stream:
    stream = _stream(5, 10, 250, seed=14)
    from zeroshift.zero_shot import confidence, log_posterior

    sureness = confidence(log_posterior(stream.features, stream.prototypes, stream.logit_scale))
    return stream._replace(features=stream.features[np.argsort(sureness)])


def _equal_prototypes() -> Stream:
    stream = _stream(6, 12, 200, seed=15)
    prototypes = stream.prototypes.copy()
    prototypes[4] = prototypes[1]
    return stream._replace(prototypes=prototypes)


def _on_the_prototypes() -> Stream:
    stream = _stream(5, 9, 1, seed=16)
    return stream._replace(features=stream.prototypes[np.arange(60) % 5])


STREAMS = {
    "small": lambda: _stream(5, 8, 300),
    "medium": lambda: _stream(20, 32, 250, seed=1),
    "many classes": lambda: _stream(60, 64, 160, seed=2),
    "wide": lambda: _stream(10, 128, 150, seed=3),
    "more dimensions than samples": lambda: _stream(8, 96, 40, seed=4),
    "classes that stay empty": lambda: _stream(30, 16, 120, seed=5, noise=0.3),
    "negative cosines": lambda: _stream(8, 24, 250, seed=6, cone=0.0, gap=0.0),
    "prototypes far from the features": lambda: _stream(6, 16, 200, seed=7, gap=6.0),
    "sharp posteriors": lambda: _stream(6, 16, 200, scale=100.0, seed=8),
    "duplicates": _duplicates,
    "interleaved duplicates": _interleaved_duplicates,
    "one class only": _one_class_only,
    "every sample replaces": _every_sample_replaces,
    "equal prototypes": _equal_prototypes,
    "on the prototypes": _on_the_prototypes,
}
