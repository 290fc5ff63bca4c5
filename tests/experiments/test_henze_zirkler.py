"""Both tests of normality: against loops, against SciPy, and by simulation."""

import math

import numpy as np
import pytest
from scipy import stats

from zeroshift.experiments.normality import (
    generalised_shapiro_wilk,
    henze_zirkler,
    null_moments,
    shapiro_w,
    smoothing,
    whitened,
)


def looped_henze_zirkler(x):
    """The definition, one pair at a time."""
    n, d = x.shape
    inverse = np.linalg.inv(np.cov(x.T, bias=True).reshape(d, d))
    b2 = 0.5 * ((2 * d + 1) * n / 4) ** (2 / (d + 4))
    mean = x.mean(axis=0)
    total = 0.0
    for a in x:
        for b in x:
            total += math.exp(-b2 / 2 * (a - b) @ inverse @ (a - b)) / n
        total -= 2 * (1 + b2) ** (-d / 2) * math.exp(-b2 / (2 * (1 + b2)) * (a - mean) @ inverse @ (a - mean))
    return total + n * (1 + 2 * b2) ** (-d / 2)


@pytest.mark.parametrize(("n", "d"), [(15, 1), (24, 2), (40, 5)])
def test_the_statistic_is_the_definitions(n, d):
    samples = np.random.default_rng(n).gamma(2.0, size=(3, n, d))
    statistics, _ = henze_zirkler(samples)
    np.testing.assert_allclose(statistics, [looped_henze_zirkler(x) for x in samples], rtol=1e-9)


def test_the_mean_under_normality_is_the_integral_it_stands_for():
    n, d = 80, 1
    b2 = smoothing(n, d) ** 2
    # At t the limit has variance 1 - (1 + t^2 + t^4 / 2) exp(-t^2); t has the weight of a normal of variance b2.
    t = np.linspace(-12, 12, 200_001) * math.sqrt(b2)
    variance = 1 - (1 + t**2 + t**4 / 2) * np.exp(-(t**2))
    weight = np.exp(-(t**2) / (2 * b2)) / math.sqrt(2 * math.pi * b2)
    mean, _ = null_moments(n, d)
    assert mean == pytest.approx(float(np.trapezoid(variance * weight, t)), rel=1e-6)


@pytest.mark.parametrize(("n", "d"), [(200, 1), (200, 3)])
def test_the_moments_are_those_of_simulated_normal_samples(n, d):
    statistics, _ = henze_zirkler(np.random.default_rng(d).normal(size=(1500, n, d)))
    mean, variance = null_moments(n, d)
    # Five standard errors, and what is left of the limit at this n.
    assert statistics.mean() == pytest.approx(mean, abs=5 * math.sqrt(variance / 1500) + 0.01)
    assert statistics.var() == pytest.approx(variance, rel=0.25)


@pytest.mark.parametrize("test", [henze_zirkler, generalised_shapiro_wilk], ids=["hz", "sw"])
@pytest.mark.parametrize("d", [2, 4])
def test_p_values_are_uniform_for_normal_samples_and_tiny_otherwise(test, d):
    draws = np.random.default_rng(7)
    correlated = draws.normal(size=(500, 120, d)) @ draws.normal(size=(d, d)) + 3.0
    _, p = test(correlated)
    assert 0.02 < np.mean(p < 0.05) < 0.085
    assert 0.45 < p.mean() < 0.56
    assert stats.kstest(p, "uniform").statistic < 0.09
    _, p = test(draws.exponential(size=(20, 120, d)))
    assert p.max() < 1e-3


def test_any_affine_map_of_the_samples_has_the_same_henze_zirkler():
    draws = np.random.default_rng(3)
    x = draws.gamma(3.0, size=(2, 60, 3))
    moved = x @ draws.normal(size=(3, 3)) - 7.0
    np.testing.assert_allclose(henze_zirkler(x)[0], henze_zirkler(moved)[0], rtol=1e-7)


def test_samples_in_a_plane_are_rejected():
    stability_evidence = np.random.default_rng(0).normal(size=(1, 40, 3))
    stability_evidence[:, :, 2] = stability_evidence[:, :, 0] + stability_evidence[:, :, 1]
    assert not whitened(stability_evidence)[1].any()
    assert henze_zirkler(stability_evidence)[0] == 160
    assert henze_zirkler(stability_evidence)[1] < 1e-6
    assert generalised_shapiro_wilk(stability_evidence)[1] < 1e-6


@pytest.mark.parametrize("n", [12, 51, 150, 500])
def test_w_is_scipys(n):
    draws = np.random.default_rng(n)
    samples = np.stack([draws.normal(size=n), draws.exponential(size=n), draws.uniform(size=n)])
    np.testing.assert_allclose(shapiro_w(samples), [stats.shapiro(x).statistic for x in samples], atol=1e-7)


def test_in_one_dimension_the_p_value_is_scipys():
    draws = np.random.default_rng(5)
    samples = np.stack([draws.normal(size=60), draws.gamma(8.0, size=60), draws.normal(size=60)])
    _, p = generalised_shapiro_wilk(samples[:, :, None])
    np.testing.assert_allclose(p, [stats.shapiro(x).pvalue for x in samples], atol=1e-3)
