"""Stream diagnostics computed by hand: order g = r^2/(r^2 + correlation^2) and balance h, from posteriors."""

from __future__ import annotations

import numpy as np
import pytest

from zeroshift.arrays import Backend
from zeroshift.mixture.statistics import StreamDiagnostics, class_share, neighbour_correlation, stream_diagnostics
from zeroshift.mixture.sums import Sums

CORRELATION, BALANCE = 0.1, (0.4, 0.8)


def watched(y, *, in_order=True):
    backend = Backend.of(y)
    sums = Sums.zeros(backend, y.shape[1], 1).add_posteriors(y, None, in_order=in_order)
    return sums.posteriors, sums.watched


def diagnose(labels, classes, **changes):
    """The diagnostics of a stream whose posteriors are one-hot."""
    parameters = {"correlation": CORRELATION, "balance": BALANCE, **changes}
    return stream_diagnostics(*watched(np.eye(classes)[labels]), **parameters)


def test_random_samples_of_all_classes():
    draw = np.random.default_rng(0)
    found = diagnose(draw.integers(10, size=20_000), 10)
    assert found.order < 0.05
    assert found.balance == 0.0


def test_sorted_classes():
    """12 samples of 3 classes: random pairs share 9/33, neighbours 9/11: r = (9/11 - 9/33)/(1 - 9/33) = 3/4."""
    found = diagnose(np.repeat([0, 1, 2], 4), 3)
    assert found.order == pytest.approx(0.75**2 / (0.75**2 + 0.01))
    assert found.balance == 0.0


def test_alternating_classes():
    """Neighbours are less alike than random pairs: r would be negative and is set to 0."""
    assert diagnose(np.arange(40) % 2, 2) == StreamDiagnostics(0.0, 0.0)


def test_one_class():
    """Neighbours are as alike as random pairs; one of four classes is a share of 1/4."""
    assert diagnose(np.zeros(30, int), 4) == StreamDiagnostics(0.0, 1.0)


def test_two_classes_of_many():
    """Alternating, five each: two samples share a class with chance (2 * 5 * 4)/(10 * 9) = 4/9, so that
    effectively 9/4 of five classes occur, a share of 0.45: h = (0.8 - 0.45)/0.4."""
    found = diagnose(np.arange(10) % 2, 5)
    assert found.order == 0.0
    assert found.balance == pytest.approx(0.875)
    assert found.combined == pytest.approx(0.875)


@pytest.mark.parametrize("classes", [3, 4], ids=["3 classes", "4 classes"])
def test_balance_is_linear_between_its_two_shares(classes):
    """Two classes occur, effectively 2.25: 0.75 of three and 0.5625 of four."""
    found = diagnose(np.arange(10) % 2, classes)
    assert found.balance == pytest.approx((0.8 - 2.25 / classes) / 0.4)
    assert diagnose(np.arange(10) % 2, classes, balance=(0.1, 0.2)).balance == 0.0
    assert diagnose(np.arange(10) % 2, classes, balance=(0.9, 1.0)).balance == 1.0


def test_balance_can_be_a_step():
    assert diagnose(np.arange(10) % 2, 5, balance=(0.5, 0.5)).balance == 1.0
    assert diagnose(np.arange(10) % 2, 5, balance=(0.4, 0.4)).balance == 0.0


def test_soft_posteriors_are_normalised_by_their_own_overlap():
    """y = (0.8, 0.2) twice, then (0.2, 0.8) twice: itself 0.68, random pairs (2 * 2 * 0.68 + 8 * 0.32)/12 = 0.44,
    neighbours (0.68 + 0.32 + 0.68)/3 = 0.56: r = 0.12/0.24 = 1/2."""
    y = np.array([[0.8, 0.2], [0.8, 0.2], [0.2, 0.8], [0.2, 0.8]])
    assert neighbour_correlation(*watched(y)) == pytest.approx(0.5)
    assert stream_diagnostics(*watched(y), correlation=0.5, balance=BALANCE).order == pytest.approx(0.5)


def test_a_set_has_no_order():
    y = np.eye(3)[np.repeat([0, 1, 2], 4)]
    assert neighbour_correlation(*watched(y, in_order=False)) == 0.0
    assert stream_diagnostics(
        *watched(y, in_order=False), correlation=CORRELATION, balance=BALANCE
    ) == StreamDiagnostics(0.0, 0.0)


@pytest.mark.parametrize("n", [0, 1])
def test_fewer_than_two_samples(n):
    assert diagnose(np.zeros(n, int), 4) == StreamDiagnostics(0.0, 0.0)


def test_class_share_is_at_most_one():
    """If all samples differ, two share a class less often than with equally frequent classes."""
    assert class_share(3, 0.0) == 1.0
    assert class_share(3, 1 / 3) == pytest.approx(1.0)
    assert class_share(3, 1.0) == pytest.approx(1 / 3)


def test_combined():
    assert StreamDiagnostics(0.5, 0.5).combined == 0.75
    assert StreamDiagnostics(0.0, 0.3).combined == pytest.approx(0.3)
    assert StreamDiagnostics(1.0, 0.3).combined == 1.0
