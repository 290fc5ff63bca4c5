"""Sinkhorn's scaling against scaling in full, step by step, and at its edges."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from zeroshift.methods.parts.sinkhorn import balance, class_shares, sinkhorn
from zeroshift.zero_shot import softmax

SCORES = np.random.default_rng(0).normal(size=(40, 5)) / 20


def in_full(scores, temperature, gamma, iterations):
    """The recipe word for word: the matrix itself is scaled."""
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
def test_two_vectors_say_what_scaling_in_full_does(gamma, iterations):
    labels = sinkhorn(SCORES, temperature=0.02, gamma=gamma, iterations=iterations)
    np.testing.assert_allclose(labels, in_full(SCORES, 0.02, gamma, iterations), rtol=1e-11)


@pytest.mark.parametrize("gamma", [0.0, 0.5, 1.0])
def test_rows_sum_to_one_and_columns_to_their_shares(gamma):
    labels = sinkhorn(SCORES, temperature=0.05, gamma=gamma, iterations=300)
    np.testing.assert_allclose(labels.sum(axis=1), 1, atol=1e-12)
    shares = class_shares(softmax(SCORES / 0.05), gamma)
    np.testing.assert_allclose(labels.sum(axis=0), len(SCORES) * shares, atol=1e-9)


def test_torch_answers_the_same():
    labels = sinkhorn(torch.tensor(SCORES), gamma=0.5)
    np.testing.assert_allclose(labels.numpy(), sinkhorn(SCORES, gamma=0.5), rtol=1e-11)


def test_scores_are_left_alone():
    scores = SCORES.copy()
    sinkhorn(scores)
    np.testing.assert_array_equal(scores, SCORES)


def test_no_iterations_leave_the_softmax():
    np.testing.assert_array_equal(sinkhorn(SCORES, iterations=0), softmax(SCORES / 0.01))


@pytest.mark.parametrize("gamma", [0.0, 1.0])
@pytest.mark.parametrize("low", [-0.9, -1.03, -5.0], ids=["tiny", "denormal", "zero"])
def test_a_class_of_hardly_any_weight_stays_finite_in_float32(gamma, low):
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
