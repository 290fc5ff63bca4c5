"""The label bias: the worked example, power iteration against eigenvectors, and classes that are never predicted."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from zeroshift.methods.frolic import remove_bias, stationary_vector, transition_matrix
from zeroshift.zero_shot import log_softmax, softmax

EXAMPLE = np.array([[0.8, 0.1], [0.2, 0.9]])
LOGITS = 3 * np.random.default_rng(1).normal(size=(200, 6))


def test_worked_example():
    beta = stationary_vector(EXAMPLE)
    np.testing.assert_allclose(beta, [0.334948, 0.665052], atol=5e-7)
    offsets = remove_bias(np.zeros(2), beta)
    np.testing.assert_allclose(offsets, [1.0938, 0.4079], atol=5e-5)
    assert round(offsets[0] - offsets[1], 4) == 0.6859


def test_the_vector_before_the_last_change_is_returned():
    beta = np.full(2, 0.5)
    for _ in range(13):
        beta = EXAMPLE @ beta
    np.testing.assert_allclose(stationary_vector(EXAMPLE), beta, rtol=1e-14)
    assert np.abs(EXAMPLE @ beta - beta).sum() < 1e-3  # the fourteenth update ends the iteration and is discarded


def test_iterations_are_limited():
    np.testing.assert_allclose(stationary_vector(EXAMPLE, iterations=2), EXAMPLE @ EXAMPLE @ [0.5, 0.5], rtol=1e-14)


def test_power_iteration_finds_the_eigenvector():
    transition = transition_matrix(LOGITS)
    values, vectors = np.linalg.eig(transition)
    expected = np.real(vectors[:, np.argmax(np.real(values))])
    beta = stationary_vector(transition, tolerance=1e-14, iterations=5000)
    np.testing.assert_allclose(beta, expected / expected.sum(), atol=1e-11)


def by_class(logits, margin):
    best = np.sort(logits, axis=1)
    columns = []
    for k in range(logits.shape[1]):
        chosen = (logits.argmax(axis=1) == k) & (best[:, -1] - best[:, -2] > margin)
        columns.append(softmax(logits)[chosen].mean(axis=0) if chosen.any() else np.zeros(logits.shape[1]))
    return np.stack(columns, axis=1)


@pytest.mark.parametrize("margin", [0.0, 1 / 6, 3.0])
def test_columns_are_mean_posteriors_of_samples_with_the_margin(margin):
    np.testing.assert_allclose(transition_matrix(LOGITS, margin), by_class(LOGITS, margin), atol=1e-13)


@pytest.mark.parametrize("library", [np.asarray, torch.tensor], ids=["numpy", "torch"])
def test_a_sample_exactly_at_the_margin_is_ignored(library):
    logits = library(LOGITS)
    log_p = log_softmax(logits)
    best = np.sort(np.asarray(log_p), axis=1)
    margins = best[:, -1] - best[:, -2]
    row = int(np.argsort(margins)[60])
    others = [number for number in range(200) if number != row]
    at, just_below = (np.asarray(transition_matrix(logits, m)) for m in (margins[row], np.nextafter(margins[row], 0)))
    np.testing.assert_allclose(at, transition_matrix(LOGITS[others], margins[row]), atol=1e-13)
    assert np.abs(at - just_below).max() > 1e-4
    tied = library(np.array([[0.0, 0.0], [2.0, 0.0]]))
    np.testing.assert_allclose(np.asarray(transition_matrix(tied, 0.0))[:, 0], softmax(np.array([2.0, 0.0])))


def test_torch_gives_the_same():
    transition = transition_matrix(torch.tensor(LOGITS), 0.2)
    np.testing.assert_allclose(transition.numpy(), transition_matrix(LOGITS, 0.2), atol=1e-13)
    expected = stationary_vector(transition_matrix(LOGITS, 0.2))
    np.testing.assert_allclose(stationary_vector(transition).numpy(), expected, atol=1e-13)


def test_a_class_that_is_never_predicted_has_no_column():
    logits = LOGITS.copy()
    logits[:, 4] = -1000.0
    transition = transition_matrix(logits, 0.1)
    assert (transition[:, 4] == 0).all()
    beta = stationary_vector(transition)
    assert beta[4] == 0
    assert np.isfinite(remove_bias(np.zeros(6), beta)).all()


def test_without_samples_with_the_margin_the_bias_is_uniform():
    transition = transition_matrix(np.zeros((5, 4)), 0.25)
    assert (transition == 0).all()
    np.testing.assert_array_equal(stationary_vector(transition), np.full(4, 0.25))


def test_one_class():
    transition = transition_matrix(np.array([[0.3], [2.0]]), 1.0)
    np.testing.assert_array_equal(transition, [[1.0]])
    np.testing.assert_array_equal(stationary_vector(transition), [1.0])


def test_a_balanced_symmetric_problem_gets_a_constant():
    logits = np.log(np.array([[0.7, 0.2, 0.1], [0.1, 0.7, 0.2], [0.2, 0.1, 0.7]]))
    offsets = remove_bias(np.zeros(3), stationary_vector(transition_matrix(logits)))
    np.testing.assert_allclose(offsets, np.log(3), atol=1e-11)
