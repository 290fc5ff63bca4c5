"""The prompts' Gaussian, against NumPy's covariance and plain formulas."""

from __future__ import annotations

import numpy as np
import pytest

from goldens import problem
from zeroshift.methods.frolic import mean_prompts, moment_covariance, pooled_variance, prompt_logits

GIVEN = problem("float64")
X, PROMPTS = GIVEN["features"], GIVEN["prompts"]


def test_pooled_variance():
    expected = np.var(np.concatenate([X, PROMPTS.reshape(-1, X.shape[1])]), axis=0, ddof=1)
    np.testing.assert_allclose(pooled_variance(X, PROMPTS), expected, rtol=1e-12)


def test_logits_are_half_squared_distances():
    precision = np.random.default_rng(0).uniform(0.5, 2, X.shape[1])
    means = mean_prompts(PROMPTS)
    expected = -0.5 * ((X[:9, None, :] - means) ** 2 * precision).sum(axis=2)
    np.testing.assert_allclose(prompt_logits(X[:9], means, precision), expected, atol=1e-13)


@pytest.mark.parametrize("ridge", [0.01, 1.0, 3.0])
def test_the_ridge_is_the_smallest_eigenvalue_of_the_moment_covariance(ridge):
    means = mean_prompts(PROMPTS)
    plain = X.T @ X / len(X) - means.T @ means / len(means)
    eigenvalues = np.linalg.eigvalsh(plain)
    assert eigenvalues[0] < 0, "a problem without a gap between texts and images needs no ridge"
    covariance, added = moment_covariance(X, means, ridge)
    np.testing.assert_allclose(covariance, plain + added * np.eye(len(plain)), atol=1e-14)
    smallest = np.linalg.eigvalsh(covariance)[0]
    np.testing.assert_allclose(smallest, ridge * np.abs(eigenvalues).max(), rtol=1e-10)


def test_a_positive_definite_covariance_does_not_change():
    features = np.eye(3)
    covariance, added = moment_covariance(features, 0.1 * np.eye(3), 0.5)
    assert added == 0
    np.testing.assert_allclose(covariance, np.eye(3) * (1 - 0.01) / 3)


def test_no_spread_gives_the_identity():
    covariance, _ = moment_covariance(np.eye(3), np.eye(3), 1.0)
    np.testing.assert_array_equal(covariance, np.eye(3))
