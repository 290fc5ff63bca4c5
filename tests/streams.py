"""Streams for the tests of ADAPT: full banks and replacements, ties, empty classes, negative cosines, d > N."""

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

    confidences = confidence(log_posterior(stream.features, stream.prototypes, stream.logit_scale))
    return stream._replace(features=stream.features[np.argsort(confidences)])


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


def _rising_in_one_class() -> Stream:
    stream = _one_class_only()
    return stream._replace(features=stream.features[np.argsort(stream.features @ stream.prototypes[3])])


def _whole_sphere() -> Stream:
    """Every sample is followed by its opposite, so that bounds on cosines never rule out a negative one."""
    rng = np.random.default_rng(31)
    features = _unit(rng.normal(size=(110, 10)))
    return Stream(np.stack([features, -features], axis=1).reshape(-1, 10), _unit(rng.normal(size=(6, 10))), 4.0)


def _shrinking(last: float) -> Stream:
    """Ever closer samples replace distant ones: with alpha = 1 the scatter becomes tiny compared with its changes.

    With two classes the posterior is most confident along t_0 - t_1, so closer samples are more confident.
    """
    rng = np.random.default_rng(32)
    prototypes = _unit(rng.normal(size=(2, 8)) + 1.0)
    most_confident = _unit(prototypes - prototypes.mean(axis=0))
    width = np.geomspace(2.0, last, 240)[:, None]
    return Stream(_unit(most_confident[np.arange(240) % 2] + width * rng.normal(size=(240, 8))), prototypes, 4.0)


def _identical() -> Stream:
    stream = _stream(4, 8, 1, seed=33)
    return stream._replace(features=np.repeat(stream.features, 60, axis=0))


def _outlier() -> Stream:
    """One outlier accounts for nearly all of the trace, until a more confident sample replaces it."""
    rng = np.random.default_rng(34)
    prototypes = _unit(rng.normal(size=(2, 12)) + 1.0)
    labels = np.arange(160) % 2
    features = prototypes[labels] + 1e-3 * rng.normal(size=(160, 12))
    features[9] = prototypes[1] + 2.0 * rng.normal(size=12)
    return Stream(_unit(features), prototypes, 20.0)


def _in_one_dimension() -> Stream:
    rng = np.random.default_rng(35)
    signs = np.where(rng.random(60) < 0.7, 1.0, -1.0)
    return Stream(signs[:, None], np.array([[1.0], [-1.0]]), 2.0)


def _unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


ADVERSARIAL = {
    "confidences rising in one class": _rising_in_one_class,
    "the whole sphere": _whole_sphere,
    "spread shrinking": lambda: _shrinking(1e-3),
    "spread shrinking to nearly nothing": lambda: _shrinking(1e-5),
    "all samples identical": _identical,
    "an outlier that holds the trace": _outlier,
    "one class in all": lambda: _stream(1, 8, 80, seed=36),
    "two classes": lambda: _stream(2, 8, 120, seed=37),
    "one dimension": _in_one_dimension,
    "two dimensions": lambda: _stream(3, 2, 100, scale=5.0, seed=38),
    "three dimensions": lambda: _stream(4, 3, 120, scale=5.0, seed=39, cone=0.0),
    "logits of no weight": lambda: _stream(5, 10, 150, scale=1e-3, seed=40),
    "logits of great weight": lambda: _stream(5, 10, 150, scale=1e4, seed=41),
    "many classes with negative cosines": lambda: _stream(24, 12, 500, scale=5.0, seed=43, cone=0.0, gap=0.0),
    "whole blocks": lambda: _stream(24, 48, 300, seed=42),
}
"""Streams designed to break an engine; they do not resemble real features."""
