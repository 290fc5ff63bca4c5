"""The label bias: the worked example, power iteration against eigenvectors, and classes that are never predicted."""

from __future__ import annotations

import numpy as np
import pytest

from zeroshift.methods.frolic import remove_bias, stationary_vector, transition_matrix
from zeroshift.zero_shot import log_softmax, softmax

EXAMPLE = np.array([[0.8, 0.1], [0.2, 0.9]])
LOGITS = 3 * np.random.default_rng(1).normal(size=(200, 6))


def test_worked_example():
    """The vector before the last change is returned: the fourteenth update ends the iteration and is discarded."""
    beta = stationary_vector(EXAMPLE)
    np.testing.assert_allclose(beta, [0.334948, 0.665052], atol=5e-7)
    np.testing.assert_allclose(beta, np.linalg.matrix_power(EXAMPLE, 13) @ [0.5, 0.5], rtol=1e-13)
    assert np.abs(EXAMPLE @ beta - beta).sum() < 1e-3
    np.testing.assert_allclose(remove_bias(np.zeros(2), beta), [1.0938, 0.4079], atol=5e-5)
    np.testing.assert_allclose(stationary_vector(EXAMPLE, iterations=2), EXAMPLE @ EXAMPLE @ [0.5, 0.5], rtol=1e-14)


def test_power_iteration_finds_the_eigenvector():
    transition = transition_matrix(LOGITS)
    values, vectors = np.linalg.eig(transition)
    expected = np.real(vectors[:, np.argmax(np.real(values))])
    beta = stationary_vector(transition, tolerance=1e-14, iterations=5000)
    np.testing.assert_allclose(beta, expected / expected.sum(), atol=1e-11)


@pytest.mark.parametrize("margin", [0.0, 1 / 6, 3.0])
def test_columns_are_mean_posteriors_of_samples_with_the_margin(margin):
    """A sample exactly at the margin is ignored, as is one with two equal classes."""
    log_p = log_softmax(np.concatenate([LOGITS, np.zeros((3, 6))]))
    best = np.sort(log_p, axis=1)
    margins = best[:, -1] - best[:, -2]
    margin = margins[margins >= margin].min()
    chosen = [(log_p.argmax(axis=1) == k) & (margins > margin) for k in range(6)]
    columns = [softmax(log_p)[rows].mean(axis=0) if rows.any() else np.zeros(6) for rows in chosen]
    np.testing.assert_allclose(transition_matrix(log_p, margin), np.stack(columns, axis=1), atol=1e-13)


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
