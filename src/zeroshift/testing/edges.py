"""Checks at the edges: one class, one sample, samples all alike, classes nobody belongs to."""

from __future__ import annotations

import numpy as np

from zeroshift.testing.case import Case, assert_same

__all__ = ["CHECKS"]


def _sound(case: Case, features: np.ndarray, prototypes: np.ndarray, what: str) -> np.ndarray:
    method = case.create(prototypes)
    for call, answer in (("adapt", method.adapt(features)), ("predict", method.predict(features))):
        assert np.isfinite(answer).all(), f"{what}: {call} is not finite"
        assert_same(answer.sum(axis=1), np.ones(len(features)), f"{what}: row sums of {call}", tolerance=1e-9)
    return case.create(prototypes).adapt(features)


def one_class(case: Case) -> None:
    problem = case.problem(classes=1, samples=30)
    answer = _sound(case, problem.features, problem.prototypes, "one class")
    assert_same(answer, np.ones((30, 1)), "one class", tolerance=1e-12)


def two_classes(case: Case) -> None:
    problem = case.problem(classes=2, samples=60, noise=0.5)
    answer = _sound(case, problem.features, problem.prototypes, "two classes")
    assert (answer.argmax(axis=1) == problem.labels).mean() > 0.6, "two well separated classes are not told apart"


def one_sample(case: Case) -> None:
    problem = case.problem(samples=1)
    _sound(case, problem.features, problem.prototypes, "one sample")


def more_dimensions_than_samples(case: Case) -> None:
    problem = case.problem(dimension=64, samples=10)
    _sound(case, problem.features, problem.prototypes, "d > N")


def all_samples_equal(case: Case) -> None:
    problem = case.problem()
    answer = _sound(case, np.repeat(problem.features[:1], 40, axis=0), problem.prototypes, "all samples equal")
    if case.cls.protocol == "transductive":
        assert_same(answer, np.repeat(answer[:1], 40, axis=0), "equal samples, equal answers", tolerance=1e-12)


def samples_on_their_prototypes(case: Case) -> None:
    """No spread at all: every sample is exactly a prototype."""
    problem = case.problem()
    labels = np.arange(30) % len(problem.prototypes)
    answer = _sound(case, problem.prototypes[labels], problem.prototypes, "samples on their prototypes")
    assert (answer.argmax(axis=1) == labels).all(), "a sample equal to a prototype is not given that class"


def absent_class(case: Case) -> None:
    problem = case.problem(classes=6, samples=80)
    kept = problem.features[problem.labels != 2]
    _sound(case, kept, problem.prototypes, "a class that never appears")


def class_opposite_to_everything(case: Case) -> None:
    """A prototype so far off that its posterior underflows to zero."""
    problem = case.problem()
    prototypes = problem.prototypes.copy()
    prototypes[4] = -problem.features.mean(axis=0) / np.linalg.norm(problem.features.mean(axis=0))
    scaled = {"logit_scale": 1000.0} if "logit_scale" in case.cls.parameter_names() else {}
    answer = case.create(prototypes, **scaled).adapt(problem.features)
    assert np.isfinite(answer).all(), "a class of vanishing posterior: not finite"


def duplicate_prototypes(case: Case) -> None:
    problem = case.problem()
    prototypes = problem.prototypes.copy()
    prototypes[3] = prototypes[1]
    _sound(case, problem.features, prototypes, "duplicate prototypes")


def cosines_of_both_signs(case: Case) -> None:
    problem = case.problem(cone=0.0, gap=0.0, samples=120)
    assert (problem.features @ problem.features.T < 0).any(), "the problem has no negative cosine"
    _sound(case, problem.features, problem.prototypes, "negative cosines")


CHECKS = (
    one_class,
    two_classes,
    one_sample,
    more_dimensions_than_samples,
    all_samples_equal,
    samples_on_their_prototypes,
    absent_class,
    class_opposite_to_everything,
    duplicate_prototypes,
    cosines_of_both_signs,
)
