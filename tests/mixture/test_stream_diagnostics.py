"""Imbalance and few classes: the two shares and the ramps between their limits, computed by hand from posteriors."""

from __future__ import annotations

import numpy as np
import pytest

from zeroshift.arrays import Backend
from zeroshift.mixture.statistics import (
    FEW_OCCURRING,
    StreamDiagnostics,
    imbalance_and_few_classes,
    occurring_share,
    varying_share,
)
from zeroshift.mixture.sums import Sums

OCCURRING, VARYING = (0.4, 0.8), (0.4, 0.5)


def watched(y):
    sums = Sums.zeros(Backend.of(y), y.shape[1], 1).add_posteriors(y)
    return sums.posteriors, sums.squares


def one_hot(labels, classes):
    return np.eye(classes)[labels]


def diagnose(y, occurring=OCCURRING, varying=VARYING):
    """The imbalance, and whether few classes occur."""
    return imbalance_and_few_classes(*watched(y), occurring=occurring, varying=varying)


def test_random_samples_of_all_classes():
    y = one_hot(np.random.default_rng(0).integers(10, size=20_000), 10)
    assert occurring_share(*watched(y)) > 0.99
    assert varying_share(*watched(y)) > 0.99
    assert diagnose(y) == (0.0, 0.0)


def test_the_occurring_share_of_two_classes():
    """Five samples each: two share a class with probability (2 * 5 * 4)/(10 * 9) = 4/9, so effectively 9/4 occur."""
    y = one_hot(np.arange(10) % 2, 5)
    assert occurring_share(*watched(y)) == pytest.approx(9 / 4 / 5)


def test_the_varying_share_of_two_classes():
    """Both variances are 1/4, those of the other three 0: (1/2)^2/(5 * 2/16) = 2/5, times 1 + 5/10."""
    y = one_hot(np.arange(10) % 2, 5)
    assert varying_share(*watched(y)) == pytest.approx(0.6)


def test_soft_posteriors():
    """y = (0.8, 0.2) and (0.4, 0.6), two each. Pairs: 4 of 12 alike, with 0.68 or 0.52, 8 with 0.44, so
    p = (2 * 0.68 + 2 * 0.52 + 8 * 0.44)/12 and 1/(2 p) is above 1. Both variances are 0.04: a share of 1."""
    y = np.array([[0.8, 0.2], [0.4, 0.6]] * 2)
    p = (2 * 0.68 + 2 * 0.52 + 8 * 0.44) / 12
    assert p < 0.5
    assert occurring_share(*watched(y)) == 1.0
    assert varying_share(*watched(y)) == 1.0
    y = np.array([[0.8, 0.2, 0.0], [0.4, 0.6, 0.0]] * 2)
    assert occurring_share(*watched(y)) == pytest.approx(1 / (3 * p))
    assert varying_share(*watched(y)) == pytest.approx(min(1.0, (1 + 3 / 4) * 0.08**2 / (3 * 2 * 0.04**2)))


def test_favoured_classes_vary_like_the_others():
    """A classifier that gives every sample half to class 0: that class seems to occur in half of the samples, but its
    posterior varies as those of the others do."""
    labels = np.random.default_rng(1).integers(8, size=4000)
    y = 0.5 * one_hot(labels, 8) + 0.5 * one_hot(np.zeros(4000, int), 8)
    assert occurring_share(*watched(y)) < 0.5
    assert varying_share(*watched(y)) > 0.95
    imbalance, few = diagnose(y)
    assert imbalance > 0.5
    assert few == 0.0


def test_a_long_tail_is_imbalance_and_not_few_classes():
    labels = np.repeat(np.arange(8), [600, 300, 150, 75, 75, 75, 75, 75])
    y = 0.2 / 8 + 0.8 * one_hot(labels, 8)
    assert diagnose(y)[0] == pytest.approx((0.8 - occurring_share(*watched(y))) / 0.4)
    assert diagnose(y)[0] > 0.1
    assert diagnose(y)[1] == 0.0


def test_few_classes_need_both_shares():
    """Shares of 0.45 and 0.6. Of the occurring one, only 0.7 to 0.85 counts."""
    y = one_hot(np.arange(10) % 2, 5)
    assert FEW_OCCURRING == (0.7, 0.85)
    assert diagnose(y, varying=(0.7, 0.8))[1] == 1.0
    assert diagnose(y, varying=(0.1, 0.2))[1] == 0.0
    y = one_hot([0, 1, 2, 3] * 25, 5)  # four of five: p = 24/99, a share of 0.825
    assert diagnose(y, varying=(1.0, 1.0))[1] == pytest.approx((0.85 - 99 / 24 / 5) / 0.15)


def test_both_are_linear_between_their_limits():
    y = one_hot(np.arange(10) % 2, 5)
    assert diagnose(y, occurring=(0.4, 0.6), varying=(0.5, 0.9)) == pytest.approx((0.75, 0.75))
    assert diagnose(y, occurring=(0.5, 0.6), varying=(0.7, 0.8)) == (1.0, 1.0)
    assert diagnose(y, occurring=(0.3, 0.4), varying=(0.4, 0.5)) == (0.0, 0.0)


def test_equal_limits_are_a_step():
    y = one_hot(np.arange(10) % 2, 5)
    assert diagnose(y, occurring=(0.5, 0.5), varying=(0.7, 0.7)) == (1.0, 1.0)
    assert diagnose(y, occurring=(0.4, 0.4), varying=(0.5, 0.5)) == (0.0, 0.0)


def test_one_class():
    """No posterior varies."""
    y = one_hot(np.zeros(30, int), 4)
    assert occurring_share(*watched(y)) == pytest.approx(0.25)
    assert varying_share(*watched(y)) == 0.0
    assert diagnose(y) == (1.0, 1.0)


def test_shares_are_at_most_one():
    """If all samples differ, two share a class less often than with equally frequent classes."""
    assert occurring_share(*watched(one_hot([0, 1, 2], 3))) == 1.0
    assert varying_share(*watched(one_hot([0, 1, 2], 3))) == 1.0


@pytest.mark.parametrize("n", [0, 1])
def test_fewer_than_two_samples(n):
    assert diagnose(one_hot(np.zeros(n, int), 4)) == (0.0, 0.0)


def test_the_order_of_the_samples_does_not_matter():
    y = np.random.default_rng(2).dirichlet(np.full(6, 0.2), size=50)
    for share in (occurring_share, varying_share):
        assert share(*watched(y[::-1])) == pytest.approx(share(*watched(y)))


def test_combined():
    """A stream whose classes stay half of the time is fully ordered."""
    assert StreamDiagnostics(0.25, 0.5, 0.2).combined == 0.75
    assert StreamDiagnostics(0.25, 0.2, 0.5).combined == 0.75
    assert StreamDiagnostics(0.0, 0.3, 0.0).combined == pytest.approx(0.3)
    assert StreamDiagnostics(0.5, 0.3, 0.3).combined == 1.0
