"""The temperature at which two classifiers are equally confident."""

from __future__ import annotations

import numpy as np
import pytest

from zeroshift.methods import frolic
from zeroshift.methods.frolic import matching_temperature, mean_confidence
from zeroshift.zero_shot import softmax

LOGITS = 5 * np.random.default_rng(2).normal(size=(90, 7))


def test_mean_confidence():
    assert mean_confidence(LOGITS, 3.0) == pytest.approx(softmax(LOGITS / 3).max(axis=1).mean(), rel=1e-13)


@pytest.mark.parametrize("confidence", [0.2, 0.5, 0.99])
def test_the_requested_confidence_is_reached(confidence):
    temperature = matching_temperature(LOGITS, confidence)
    assert mean_confidence(LOGITS, temperature) == pytest.approx(confidence, abs=1e-9)


def test_an_unreachable_confidence_gives_the_end_of_the_range():
    spread = float(np.ptp(LOGITS, axis=1).max())
    assert matching_temperature(LOGITS, 0.0) == pytest.approx(spread * frolic.TEMPERATURE_RANGE, rel=1e-6)
    assert matching_temperature(LOGITS, 1.1) == pytest.approx(spread / frolic.TEMPERATURE_RANGE, rel=1e-6)


def test_equal_logits_have_temperature_one():
    assert matching_temperature(np.zeros((4, 3)), 0.7) == 1.0
