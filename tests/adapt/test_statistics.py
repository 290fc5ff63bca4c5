"""The equations one by one: numbers worked out by hand, and properties."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zeroshift.adapt import statistics


def some_bank(seed=0, classes=3, slots=4, d=5):
    rng = np.random.default_rng(seed)
    occupied = (rng.random((classes, slots)) < 0.7).astype(float)
    features = rng.normal(size=(classes, slots, d)) * occupied[:, :, None]
    return features, rng.random((classes, slots)) * occupied, occupied


def discriminant(x, means, precision):
    return statistics.discriminant(x, *statistics.linear_head(means, precision))


def test_bank_sums_by_hand():
    features = np.array([[[1.0, 0.0], [0.0, 2.0]], [[3.0, 3.0], [0.0, 0.0]]])
    weights = np.array([[0.5, 0.25], [1.0, 0.0]])
    weighted_sum, weight = statistics.bank_sums(features, weights)
    np.testing.assert_allclose(weighted_sum, [[0.5, 0.5], [3.0, 3.0]])
    np.testing.assert_allclose(weight, [0.75, 1.0])


def test_means_with_beta_grow_with_the_weight():
    prototypes = np.array([[1.0, 0.0], [0.0, 1.0]])
    means = statistics.class_means(np.array([[0.0, 3.0], [0.0, 0.0]]), np.array([3.0, 0.0]), prototypes, 0.9, beta=1.0)
    np.testing.assert_allclose(means, [[0.25, 0.75], [0.0, 1.0]])


@given(st.floats(0, 1), st.integers(0, 50))
def test_means_lie_between_prototype_and_bank_mean(alpha, seed):
    features, weights, _ = some_bank(seed)
    prototypes = np.random.default_rng(seed + 1).normal(size=(3, 5))
    sums, weight = statistics.bank_sums(features, weights)
    means = statistics.class_means(sums, weight, prototypes, alpha, None)
    for k in range(3):
        inner = sums[k] / weight[k] if weight[k] > 0 else prototypes[k]
        np.testing.assert_allclose(means[k], alpha * inner + (1 - alpha) * prototypes[k], atol=1e-12)


def test_scatter_is_the_sum_of_outer_products():
    features, _, occupied = some_bank(3)
    means = np.random.default_rng(4).normal(size=(3, 5))
    expected = np.zeros((3, 5, 5))
    for k, slot in zip(*np.nonzero(occupied), strict=True):
        deviation = features[k, slot] - means[k]
        expected[k] += np.outer(deviation, deviation)
    np.testing.assert_allclose(statistics.bank_scatter(features, occupied, means), expected.sum(axis=0), atol=1e-12)
    per_class = statistics.bank_scatter(features, occupied, means, per_class=True)
    np.testing.assert_allclose(per_class, expected, atol=1e-12)


def test_soft_scatter_equals_its_definition():
    rng = np.random.default_rng(5)
    x, means = rng.normal(size=(20, 4)), rng.normal(size=(3, 4))
    y = rng.dirichlet(np.ones(3), size=20)
    expected = sum(y[i, k] * np.outer(x[i] - means[k], x[i] - means[k]) for i in range(20) for k in range(3))
    actual = statistics.soft_scatter(x.T @ x, y.T @ x, y.sum(axis=0), means)
    np.testing.assert_allclose(actual, expected, atol=1e-10)


@given(st.integers(2, 40), st.integers(0, 100))
def test_precision_inverts_the_ridge_covariance(count, seed):
    d = 6
    deviations = np.random.default_rng(seed).normal(size=(count, d))
    scatter = deviations.T @ deviations
    covariance = scatter / count
    precision = statistics.ridge_precision(scatter, count)
    ridge = (count - 1) * covariance + np.trace(covariance) * np.eye(d)
    np.testing.assert_allclose(precision @ ridge, d * np.eye(d), atol=1e-9)
    assert (np.linalg.eigvalsh(precision) > 0).all()


def test_precision_without_spread_is_the_identity():
    np.testing.assert_array_equal(statistics.ridge_precision(np.zeros((3, 3)), 5), np.eye(3))
    np.testing.assert_array_equal(statistics.ridge_precision(np.zeros((3, 3)), 0), np.eye(3))
    np.testing.assert_array_equal(statistics.ridge_precision(np.full((3, 3), 1e-32), 5), np.eye(3))


def test_discriminant_is_the_gaussian_log_likelihood_up_to_a_shared_constant():
    rng = np.random.default_rng(7)
    x, means = rng.normal(size=(9, 4)), rng.normal(size=(3, 4))
    root = rng.normal(size=(4, 4))
    precision = root @ root.T + np.eye(4)
    likelihood = np.array([[-0.5 * (a - m) @ precision @ (a - m) for m in means] for a in x])
    difference = discriminant(x, means, precision) - likelihood
    np.testing.assert_allclose(difference, difference[:, :1] * np.ones((1, 3)), atol=1e-10)


def test_discriminant_takes_one_precision_per_class():
    rng = np.random.default_rng(8)
    x, means = rng.normal(size=(5, 4)), rng.normal(size=(3, 4))
    precisions = np.stack([np.eye(4) * (k + 1) for k in range(3)])
    expected = np.stack([discriminant(x, means, p)[:, k] for k, p in enumerate(precisions)], axis=1)
    np.testing.assert_allclose(discriminant(x, means, precisions), expected)


def test_bank_term_ignores_negative_cosines():
    features = np.array([[[1.0, 0.0], [-1.0, 0.0]], [[0.0, 1.0], [0.0, 0.0]]])
    weights = np.array([[0.5, 0.9], [0.8, 0.0]])
    np.testing.assert_allclose(statistics.bank_term(np.array([[0.6, 0.8]]), features, weights), [[0.3, 0.64]])


def test_fuse_is_the_sum():
    assert statistics.fuse(np.array([-1.0]), np.array([2.0]), np.array([0.5])) == pytest.approx([1.5])
