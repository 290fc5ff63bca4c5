"""Sinkhorn iterations against their definition, and edge cases."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from zeroshift.methods._shared.sinkhorn import (
    marginal_met,
    mean_over_plan,
    sinkhorn,
    small_change,
)
from zeroshift.zero_shot import softmax

both_libraries = pytest.mark.parametrize("library", [np.asarray, torch.tensor], ids=["numpy", "torch"])

SCORES = np.random.default_rng(0).normal(size=(40, 5)) / 20


@pytest.mark.parametrize("gamma", [0.0, 0.5, 1.0])
def test_rows_sum_to_one_and_columns_to_their_shares(gamma):
    labels = sinkhorn(SCORES, temperature=0.05, gamma=gamma, iterations=300)
    np.testing.assert_allclose(labels.sum(axis=1), 1, atol=1e-12)
    shares = softmax(SCORES / 0.05).sum(axis=0) ** gamma
    np.testing.assert_allclose(labels.sum(axis=0), len(SCORES) * shares / shares.sum(), atol=1e-9)


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


def test_one_class_and_one_sample():
    np.testing.assert_array_equal(sinkhorn(np.array([[0.3], [0.1]])), np.ones((2, 1)))
    np.testing.assert_allclose(sinkhorn(SCORES[:1]), softmax(SCORES[:1] / 0.01), rtol=1e-12)


def problems(n=8, rows=9, columns=5, seed=1):
    """Costs, and weights of rows and columns, of transports that need different numbers of rounds."""
    rng = np.random.default_rng(seed)
    cost = rng.uniform(size=(n, rows, columns)) * np.geomspace(0.005, 2, n)[:, None, None]
    return cost, rng.dirichlet(np.ones(rows), size=n), rng.dirichlet(np.ones(columns), size=n)


def scaled(kernel, a, b, rounds):
    """The plan after some rounds, with the row factors before the last and after it."""
    r, c = np.ones(a.shape), np.ones(b.shape)
    for _ in range(rounds):
        before, r = r, a / np.einsum("...ij,...j->...i", kernel, c)
        c = b / np.einsum("...ij,...i->...j", kernel, r)
    return r[..., None] * kernel * c[..., None, :], before, r


@both_libraries
@pytest.mark.parametrize(("regularisation", "tolerance"), [(0.1, 1e-2), (0.1, 1e-6), (0.05, 1e-9)])
def test_each_transport_stops_where_pot_stops(regularisation, tolerance, library):
    """After the first of rounds 1, 11, 21 ... in which the row sums are met."""
    expected, rounds = [], []
    for cost, a, b in zip(*problems(), strict=True):
        for n in range(1, 101):
            plan, _, _ = scaled(np.exp(-cost / regularisation), a, b, n)
            if n == 100 or (n % 10 == 1 and np.linalg.norm(plan.sum(axis=1) - a) < tolerance):
                break
        expected.append((plan * cost).sum())
        rounds.append(n)
    assert len(set(rounds)) > 1
    cost, a, b = map(library, problems())
    kernel, done = library(np.exp(-problems()[0] / regularisation)), marginal_met(a, tolerance)
    means = np.asarray(mean_over_plan(cost, kernel, a, b, iterations=100, done=done))
    np.testing.assert_allclose(means, expected, rtol=0, atol=1e-14)


@both_libraries
def test_groups_stop_together_by_their_mean_change(library):
    """Two groups of four problems: each stops after the round in which the mean change of its four is small."""
    cost, a, b = problems()
    kernel, a, b = np.exp(-cost / 0.05).reshape(2, 4, 9, 5), a.reshape(2, 4, 9), b.reshape(2, 4, 5)
    expected, rounds = [], []
    for group in zip(kernel, a, b, strict=True):
        for n in range(1, 101):
            plan, before, r = scaled(*group, n)
            if np.abs(r - before).mean() < 1e-3:
                break
        expected.append((plan * kernel[len(expected)]).sum(axis=(1, 2)))
        rounds.append(n)
    assert rounds[0] != rounds[1]
    assert max(rounds) < 100
    done = small_change(1e-3, axes=(-2, -1))
    given = map(library, (kernel, kernel, a, b))
    np.testing.assert_allclose(
        np.asarray(mean_over_plan(*given, iterations=100, done=done)), expected, rtol=0, atol=1e-13
    )


def test_a_converged_transport_has_the_weights_of_the_rows_and_low_cost():
    cost, a, b = problems()
    kernel, rule = np.exp(-cost / 0.1), {"iterations": 5000, "done": marginal_met(a, 1e-14)}
    for row in range(9):
        of_row = np.broadcast_to((np.arange(9) == row)[:, None], cost.shape)
        np.testing.assert_allclose(mean_over_plan(of_row, kernel, a, b, **rule), a[:, row], rtol=0, atol=1e-13)
    independent = (a[:, :, None] * b[:, None, :] * cost).sum(axis=(1, 2))
    assert (mean_over_plan(cost, kernel, a, b, **rule) < independent).all()


def test_zero_weights_transport_nothing():
    cost, a, b = problems(n=1)
    a[0, 2] = 0
    costly = cost + 1000.0 * (np.arange(9) == 2)[:, None]
    rule = {"iterations": 50, "done": marginal_met(a, 0.0)}
    kernel = np.exp(-cost / 0.1)
    assert mean_over_plan(costly, kernel, a, b, **rule) == mean_over_plan(cost, kernel, a, b, **rule)
