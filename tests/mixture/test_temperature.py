"""One temperature for all answers: the exponent at which their mean confidence equals the reference posterior's."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mixture.sets import first_rows
from zeroshift import OnlineAnchoredMixture, TransductiveAnchoredMixture
from zeroshift.arrays import Backend
from zeroshift.mixture import temperature
from zeroshift.mixture.temperature import N_TEMPERATURES, TEMPERATURES, confidence_curve, temperature_for

MANY_SAMPLES = 1e9
"""So many samples that the prior sample makes no difference."""


def confidence_sums(reference, curve):
    return np.concatenate([[reference], curve])


def test_exponents():
    assert TEMPERATURES[0] == 1.0
    assert TEMPERATURES[-1] == 1 / 64
    np.testing.assert_allclose(TEMPERATURES[1:] / TEMPERATURES[:-1], 0.5**0.5)


def test_confidence_curve_of_one_posterior():
    """(16, 1)/17 to the power 1/2 is (4, 1)/5, to 1/4 (2, 1)/3."""
    curve = confidence_curve(np.log(np.array([[16.0, 1.0]]) / 17))
    np.testing.assert_allclose(curve[0, [0, 2, 4]], [16 / 17, 4 / 5, 2 / 3])


def test_uniform_posteriors_have_the_same_confidence_at_every_exponent():
    np.testing.assert_allclose(confidence_curve(np.log(np.full((2, 5), 0.2))), 0.2)


@given(st.lists(st.floats(-300, 0), min_size=1, max_size=6))
def test_confidence_falls_with_the_exponent(scores):
    curve = confidence_curve(np.array([scores]))[0]
    assert (np.diff(curve) <= 1e-12).all()
    assert (curve >= 1 / len(scores) - 1e-12).all()
    np.testing.assert_allclose(
        curve, [1 / np.exp((np.array(scores) - max(scores)) * power).sum() for power in TEMPERATURES], rtol=1e-12
    )


def test_confidence_curve_of_a_gpu(monkeypatch):
    """The operations of a GPU, on torch's CPU."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    rng = np.random.default_rng(0)
    logs = np.log(rng.dirichlet(np.full(40, 0.05), 30) + 1e-300)
    expected = confidence_curve(logs)
    monkeypatch.setattr(Backend, "on_gpu", property(lambda backend: backend.library == "torch"))
    monkeypatch.setattr(temperature, "SMALL_SIZE_ON_GPU", 0)
    np.testing.assert_allclose(confidence_curve(torch.tensor(logs)).numpy(), expected, rtol=1e-12)


def test_temperature_is_one_without_samples():
    assert temperature_for(np.zeros(1 + N_TEMPERATURES)) == 1.0


def test_temperature_matches_the_reference_confidence():
    curve = np.linspace(1.0, 0.4, N_TEMPERATURES)
    for index in (0, 3, 12):
        assert temperature_for(MANY_SAMPLES * confidence_sums(curve[index], curve)) == pytest.approx(
            TEMPERATURES[index]
        )


def test_temperature_is_interpolated_logarithmically():
    curve = np.linspace(1.0, 0.4, N_TEMPERATURES)
    halfway = (curve[2] + curve[3]) / 2
    assert temperature_for(MANY_SAMPLES * confidence_sums(halfway, curve)) == pytest.approx(
        (TEMPERATURES[2] * TEMPERATURES[3]) ** 0.5
    )


def test_temperature_is_limited_to_the_exponents():
    curve = np.linspace(0.9, 0.4, N_TEMPERATURES)
    assert temperature_for(MANY_SAMPLES * confidence_sums(0.95, curve)) == 1.0
    assert temperature_for(MANY_SAMPLES * confidence_sums(0.3, curve)) == pytest.approx(1 / 64)


def test_prior_counts_as_one_sample():
    """One sample, certain at every exponent, with reference probability 0.5: 1.5 is the middle of sums from 2 to 1."""
    assert temperature_for(confidence_sums(0.5, np.ones(N_TEMPERATURES))) == pytest.approx(TEMPERATURES[6])


@given(st.floats(0, 1), st.floats(0, 1), st.integers(0, 1000))
def test_temperature_rises_with_the_reference_confidence(one, other, seed):
    curve = 50 * np.sort(np.random.default_rng(seed).random(N_TEMPERATURES))[::-1]
    low, high = sorted((50 * one, 50 * other))
    assert temperature_for(confidence_sums(low, curve)) <= temperature_for(confidence_sums(high, curve))


@pytest.mark.parametrize("cls", [OnlineAnchoredMixture, TransductiveAnchoredMixture], ids=lambda cls: cls.name)
def test_temperature_keeps_the_predicted_class(cls):
    """Without a temperature, which the calmest look never asks for, the same classes lead; others are less sure."""
    stream = first_rows("small")
    tempered = cls(stream.prototypes, logit_scale=stream.logit_scale)
    as_found = cls(stream.prototypes, logit_scale=stream.logit_scale, calm=1.0)
    one, other = tempered.adapt(stream.features), as_found.adapt(stream.features)
    assert tempered.temperature < as_found.temperature
    np.testing.assert_array_equal(one.argmax(axis=1), other.argmax(axis=1))
    assert one.max(axis=1).mean() < other.max(axis=1).mean()
