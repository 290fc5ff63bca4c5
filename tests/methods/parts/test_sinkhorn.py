"""Sinkhorn iterations compared with scaling the matrix itself, and edge cases."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from zeroshift.methods._shared.sinkhorn import (
    alternate,
    balance,
    class_shares,
    scaling_round,
    sinkhorn,
    small_change,
    transport,
    transport_plan,
)
from zeroshift.zero_shot import softmax

SCORES = np.random.default_rng(0).normal(size=(40, 5)) / 20


def scale_matrix(scores, temperature, gamma, iterations):
    """The definition: the matrix itself is scaled."""
    n, classes = scores.shape
    p = softmax(scores / temperature) / n
    target = p.sum(axis=0) ** gamma if gamma > 0 else np.ones(classes)
    target = target / target.sum()
    for _ in range(iterations):
        p = p / p.sum(axis=0) * target
        p = p / p.sum(axis=1, keepdims=True) / n
    return p * n


@pytest.mark.parametrize("gamma", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("iterations", [1, 3, 20])
def test_factors_agree_with_scaling_the_matrix(gamma, iterations):
    labels = sinkhorn(SCORES, temperature=0.02, gamma=gamma, iterations=iterations)
    np.testing.assert_allclose(labels, scale_matrix(SCORES, 0.02, gamma, iterations), rtol=1e-11)


@pytest.mark.parametrize("gamma", [0.0, 0.5, 1.0])
def test_rows_sum_to_one_and_columns_to_their_shares(gamma):
    labels = sinkhorn(SCORES, temperature=0.05, gamma=gamma, iterations=300)
    np.testing.assert_allclose(labels.sum(axis=1), 1, atol=1e-12)
    shares = class_shares(softmax(SCORES / 0.05), gamma)
    np.testing.assert_allclose(labels.sum(axis=0), len(SCORES) * shares, atol=1e-9)


def test_torch_agrees_with_numpy():
    labels = sinkhorn(torch.tensor(SCORES), gamma=0.5)
    np.testing.assert_allclose(labels.numpy(), sinkhorn(SCORES, gamma=0.5), rtol=1e-11)


def test_scores_are_not_changed():
    scores = SCORES.copy()
    sinkhorn(scores)
    np.testing.assert_array_equal(scores, SCORES)


def test_zero_iterations_give_the_softmax():
    np.testing.assert_array_equal(sinkhorn(SCORES, iterations=0), softmax(SCORES / 0.01))


@pytest.mark.parametrize("gamma", [0.0, 1.0])
@pytest.mark.parametrize("low", [-0.9, -1.03, -5.0], ids=["tiny", "denormal", "zero"])
def test_a_class_of_very_little_weight_stays_finite_in_float32(gamma, low):
    scores = SCORES.astype("float32")
    scores[:, 2] = low
    labels = sinkhorn(scores, gamma=gamma)
    assert np.isfinite(labels).all()
    np.testing.assert_allclose(labels.sum(axis=1), 1, atol=1e-5)


def test_given_shares():
    labels = balance(softmax(SCORES), np.array([0.4, 0.3, 0.2, 0.1, 0.0]), 200)
    np.testing.assert_allclose(labels.sum(axis=0), [16, 12, 8, 4, 0], atol=1e-8)


def test_one_class_and_one_sample():
    np.testing.assert_array_equal(sinkhorn(np.array([[0.3], [0.1]])), np.ones((2, 1)))
    np.testing.assert_allclose(sinkhorn(SCORES[:1]), softmax(SCORES[:1] / 0.01), rtol=1e-12)


def problems(n=8, rows=9, columns=5, seed=1):
    """Costs, and weights of rows and columns, of transports that need different numbers of rounds."""
    rng = np.random.default_rng(seed)
    cost = rng.uniform(size=(n, rows, columns)) * np.geomspace(0.005, 2, n)[:, None, None]
    return cost, rng.dirichlet(np.ones(rows), size=n), rng.dirichlet(np.ones(columns), size=n)


def pot_transport(cost, a, b, regularisation, iterations, tolerance):
    """One transport, step by step: columns, rows, and a check of the column sums after rounds 1, 11, 21 ..."""
    kernel = np.exp(-cost / regularisation)
    u = np.full(len(a), 1 / len(a))
    for i in range(iterations):
        v = b / (kernel.T @ u)
        u = a / (kernel @ v)
        if i % 10 == 0 and np.linalg.norm(np.einsum("i,ij,j->j", u, kernel, v) - b) < tolerance:
            break
    return u[:, None] * kernel * v, i + 1


@pytest.mark.parametrize("library", [np.asarray, torch.tensor], ids=["numpy", "torch"])
@pytest.mark.parametrize(("regularisation", "tolerance"), [(0.1, 1e-2), (0.1, 1e-6), (0.05, 1e-9)])
def test_each_transport_stops_where_pot_stops(regularisation, tolerance, library):
    given = problems()
    expected, rounds = zip(
        *(pot_transport(*one, regularisation, 100, tolerance) for one in zip(*given, strict=True)), strict=True
    )
    assert len(set(rounds)) > 1
    settings = {"regularisation": regularisation, "iterations": 100, "tolerance": tolerance}
    plans = np.asarray(transport(*map(library, given), **settings))
    np.testing.assert_allclose(plans, expected, rtol=0, atol=1e-15)
    np.testing.assert_allclose(transport(*(array[3] for array in given), **settings), expected[3], rtol=0, atol=1e-15)


def test_a_converged_transport_has_both_marginals_and_low_cost():
    cost, a, b = problems()
    plans = transport(cost, a, b, regularisation=0.1, iterations=5000, tolerance=1e-14)
    np.testing.assert_allclose(plans.sum(axis=2), a, rtol=0, atol=1e-13)
    np.testing.assert_allclose(plans.sum(axis=1), b, rtol=0, atol=1e-13)
    independent = a[:, :, None] * b[:, None, :]
    assert ((plans * cost).sum(axis=(1, 2)) < (independent * cost).sum(axis=(1, 2))).all()


def test_zero_weights_transport_nothing():
    cost, a, b = problems(n=1)
    a[0, 2] = 0
    a /= a.sum()
    plans = transport(cost, a, b, regularisation=0.1, iterations=50, tolerance=0.0)
    assert (plans[0, 2] == 0).all()
    np.testing.assert_allclose(plans.sum(axis=2), a, rtol=0, atol=1e-13)


@pytest.mark.parametrize("library", [np.asarray, torch.tensor], ids=["numpy", "torch"])
def test_groups_stop_together_by_their_mean_change(library):
    """Two groups of four problems: each stops after the round in which the mean change of its four is small."""
    cost, a, b = problems()
    kernel = np.exp(-cost / 0.05).reshape(2, 4, 9, 5)
    a, b = a.reshape(2, 4, 9), b.reshape(2, 4, 5)
    counts = []
    for group in range(2):
        r, c = np.ones((4, 9)), np.ones((4, 5))
        rounds, moved = 0, np.inf
        while rounds < 100 and moved >= 1e-3:
            rounds += 1
            before = r
            r = a[group] / np.einsum("kij,kj->ki", kernel[group], c)
            c = b[group] / np.einsum("kij,ki->kj", kernel[group], r)
            moved = np.abs(r - before).mean()
        counts.append(rounds)
        rows, columns = alternate(
            scaling_round(library(kernel), library(a), library(b)),
            (library(np.ones_like(a)), library(np.ones_like(b))),
            iterations=100,
            done=small_change(1e-3, axes=(-2, -1)),
        )
        actual = transport_plan(library(kernel), rows, columns)[group]
        np.testing.assert_allclose(np.asarray(actual), transport_plan(kernel[group], r, c), rtol=0, atol=1e-13)
    assert counts[0] != counts[1]
    assert max(counts) < 100


def test_zero_rounds_keep_the_factors():
    start = np.ones(2), np.full(2, 0.5)
    assert alternate(scaling_round(np.eye(2), 1.0, 1.0), start, iterations=0) == start
