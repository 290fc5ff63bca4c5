"""Every number that a parameter of any method accepts gives probabilities; every other number is refused by name."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest

from zeroshift import OnlineADAPT, ZeroShot
from zeroshift.method import Method, ViewMethod, registered_methods
from zeroshift.methods import DMN, DOTA, TDA
from zeroshift.parameters import LARGEST_SIZE, SMALLEST_SIZE, Constraint, Number, Optional, Pair
from zeroshift.testing import Case, make_problem

PROBLEM = make_problem(classes=4, dimension=8, samples=10)
FEATURES, PROTOTYPES = PROBLEM.features.astype(np.float32), PROBLEM.prototypes.astype(np.float32)
# Cosines of 1 and above, as far as unit length is accepted, and two equal samples.
FEATURES[4:8] = 1.0099 * PROTOTYPES
FEATURES[9] = FEATURES[8]


def extremes(number: Number) -> list[float]:
    """The smallest and largest numbers that are allowed, and those closest to 0."""
    edges = [-LARGEST_SIZE, -SMALLEST_SIZE, 0.0, SMALLEST_SIZE, LARGEST_SIZE, number.low, number.high]
    edges += [number.low + SMALLEST_SIZE, number.high - SMALLEST_SIZE]
    if number.integer:
        # A large integer is a long computation, not a difficult one.
        edges = [number.low, number.low + 1, number.high]
    allowed = []
    for edge in edges:
        try:
            value = number.accept(edge)
        except ValueError:
            continue
        if value not in allowed:
            allowed.append(value)
    return allowed


def numbers_of(constraint: Constraint | None) -> list[Number]:
    if isinstance(constraint, Optional):
        return numbers_of(constraint.inner)
    if isinstance(constraint, Pair):
        return numbers_of(constraint.first) + numbers_of(constraint.second)
    return [constraint] if isinstance(constraint, Number) else []


def extreme_values(cls: type[Method], name: str) -> list[Any]:
    declared = cls.declared_parameters[name]
    numbers = numbers_of(declared.allowed)
    if len(numbers) == 1:
        return extremes(numbers[0])
    return list(itertools.product(*(extremes(number) for number in numbers)))


CASES = [
    (cls, name)
    for _, cls in sorted(registered_methods().items())
    for name, declared in cls.declared_parameters.items()
    if numbers_of(declared.allowed)
]
IDS = [f"{cls.name}-{name}" for cls, name in CASES]


def test_there_are_cases_for_every_method():
    assert len(CASES) > 250
    assert {cls for cls, _ in CASES} == set(registered_methods().values())


@pytest.mark.parametrize(("cls", "name"), CASES, ids=IDS)
@np.errstate(all="ignore")
@pytest.mark.sampled(3)
def test_allowed_extremes_give_probabilities(cls, name):
    for value in extreme_values(cls, name):
        try:
            method = Case(cls).create(PROTOTYPES, **{name: value})
        except ValueError as refused:
            # A combination of parameters, such as a range that ends before it starts.
            if name not in str(refused):
                raise
            continue
        answers = [method.adapt(FEATURES), method.predict(FEATURES)]
        if isinstance(method, ViewMethod):
            answers.append(method.adapt_views(FEATURES.reshape(5, 2, 8)))
        for answer in answers:
            assert np.isfinite(answer).all(), f"{name}={value!r}"
            np.testing.assert_allclose(answer.sum(axis=1), 1.0, atol=1e-4, err_msg=f"{name}={value!r}")


@pytest.mark.parametrize(
    ("cls", "parameters", "allowed"),
    [
        (TDA, {"positive_beta": 1e30}, "a number from 0 to 1000"),
        (DMN, {"beta": 1001.0}, "a number from 0 to 1000"),
        (DOTA, {"constant": 1e200}, "a number from -1 to 1"),
        (ZeroShot, {"logit_scale": 1e39}, "a number greater than 0, and at most 1e+15"),
        (ZeroShot, {"logit_scale": 1e-30}, "a number greater than 0, and at least 1e-15 in size"),
        (OnlineADAPT, {"beta": 1e-320}, "None or a number of at least 0, and 0 or at least 1e-15 in size"),
    ],
)
def test_the_message_names_the_allowed_range(cls, parameters, allowed):
    ((name, value),) = parameters.items()
    with pytest.raises(ValueError) as raised:
        cls(np.eye(3), **parameters)
    assert str(raised.value) == f"{name} must be {allowed}; got {value!r}."


@pytest.mark.parametrize("number", [Number(), Number(low=0), Number(low=0, above=True), Number(-1, 1)])
def test_a_number_is_zero_or_of_a_size_to_compute_with(number):
    assert number.accept(SMALLEST_SIZE) == SMALLEST_SIZE
    for value in (SMALLEST_SIZE / 2, math.nextafter(LARGEST_SIZE, math.inf)):
        with pytest.raises(ValueError):
            number.accept(value)
