"""One temperature for all answers: the exponent at which they are as sure, on average, as the calm look is of them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mixture.sets import first_rows
from zeroshift import OnlineAnchoredMixture, TransductiveAnchoredMixture
from zeroshift.mixture.temperature import N_TEMPERATURES, TEMPERATURES, confidence_curve, temperature_for

COUNT = 1e9
"""Samples beside which the prior one is nothing."""


def sums(belief, curve):
    return np.concatenate([[belief], curve])


def test_exponents_go_from_one_to_a_sixty_fourth_by_root_two():
    assert TEMPERATURES[0] == 1.0
    assert TEMPERATURES[-1] == 1 / 64
    np.testing.assert_allclose(TEMPERATURES[1:] / TEMPERATURES[:-1], 0.5**0.5)


def test_a_posterior_raised_to_an_exponent():
    """(16, 1)/17 to the power 1/2 is (4, 1)/5, to 1/4 (2, 1)/3."""
    curve = confidence_curve(np.log(np.array([[16.0, 1.0]]) / 17))
    np.testing.assert_allclose(curve[0, [0, 2, 4]], [16 / 17, 4 / 5, 2 / 3])


def test_equal_posteriors_are_as_unsure_at_every_exponent():
    np.testing.assert_allclose(confidence_curve(np.log(np.full((2, 5), 0.2))), 0.2)


@given(st.lists(st.floats(-300, 0), min_size=1, max_size=6))
def test_a_lower_exponent_is_never_surer(scores):
    curve = confidence_curve(np.array([scores]))[0]
    assert (np.diff(curve) <= 1e-12).all()
    assert (curve >= 1 / len(scores) - 1e-12).all()
    np.testing.assert_allclose(
        curve, [1 / np.exp((np.array(scores) - max(scores)) * power).sum() for power in TEMPERATURES], rtol=1e-12
    )


def test_nothing_answered_leaves_answers_as_they_are():
    assert temperature_for(np.zeros(1 + N_TEMPERATURES)) == 1.0


def test_the_exponent_whose_confidence_is_believed():
    curve = np.linspace(1.0, 0.4, N_TEMPERATURES)
    for place in (0, 3, 12):
        assert temperature_for(COUNT * sums(curve[place], curve)) == pytest.approx(TEMPERATURES[place])


def test_between_two_exponents_its_logarithm_is_interpolated():
    curve = np.linspace(1.0, 0.4, N_TEMPERATURES)
    half_way = (curve[2] + curve[3]) / 2
    assert temperature_for(COUNT * sums(half_way, curve)) == pytest.approx((TEMPERATURES[2] * TEMPERATURES[3]) ** 0.5)


def test_what_no_exponent_reaches_is_the_nearer_end():
    curve = np.linspace(0.9, 0.4, N_TEMPERATURES)
    assert temperature_for(COUNT * sums(0.95, curve)) == 1.0
    assert temperature_for(COUNT * sums(0.3, curve)) == pytest.approx(1 / 64)


def test_the_prior_is_one_sample():
    """One sample, certain at every exponent and half believed: 1.5 of the sums from 2 down to 1 is the middle."""
    assert temperature_for(sums(0.5, np.ones(N_TEMPERATURES))) == pytest.approx(TEMPERATURES[6])


@given(st.floats(0, 1), st.floats(0, 1), st.integers(0, 1000))
def test_less_belief_is_never_a_higher_exponent(one, other, seed):
    curve = 50 * np.sort(np.random.default_rng(seed).random(N_TEMPERATURES))[::-1]
    low, high = sorted((50 * one, 50 * other))
    assert temperature_for(sums(low, curve)) <= temperature_for(sums(high, curve))


@pytest.mark.parametrize("cls", [OnlineAnchoredMixture, TransductiveAnchoredMixture], ids=lambda cls: cls.name)
def test_answers_are_tempered_and_keep_their_class(cls):
    """Without a temperature, which the calmest look never asks for, the same classes lead; others are less sure."""
    stream = first_rows("small")
    tempered = cls(stream.prototypes, logit_scale=stream.logit_scale)
    as_found = cls(stream.prototypes, logit_scale=stream.logit_scale, calm=1.0)
    one, other = tempered.adapt(stream.features), as_found.adapt(stream.features)
    assert tempered.temperature < as_found.temperature
    np.testing.assert_array_equal(one.argmax(axis=1), other.argmax(axis=1))
    assert one.max(axis=1).mean() < other.max(axis=1).mean()
