"""Posterior, confidence and pseudo-class of a zero-shot classifier."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from zeroshift import zero_shot

finite = st.floats(-1e4, 1e4)
scores = hnp.arrays(np.float64, st.tuples(st.integers(1, 5), st.integers(1, 6)), elements=finite)


@given(scores)
def test_softmax_is_a_distribution_and_ignores_a_shift(values):
    y = zero_shot.softmax(values)
    np.testing.assert_allclose(y.sum(axis=-1), 1, atol=1e-12)
    np.testing.assert_allclose(zero_shot.softmax(values + 17.0), y, atol=1e-9)


@given(scores)
def test_confidence_is_between_uniform_and_certain(values):
    c = zero_shot.confidence(zero_shot.log_softmax(values))
    assert np.isfinite(c).all()
    assert (c <= 1e-12).all()
    assert (c >= -np.log(values.shape[1]) - 1e-9).all()


def test_worked_example():
    x, prototypes = np.array([[0.8, 0.6]]), np.eye(2)
    np.testing.assert_allclose(zero_shot.logits(x, prototypes, 5.0), [[4.0, 3.0]])
    np.testing.assert_allclose(zero_shot.posterior(x, prototypes, 5.0), [[0.731059, 0.268941]], atol=1e-6)
    log_y = zero_shot.log_posterior(x, prototypes, 5.0)
    np.testing.assert_allclose(zero_shot.confidence(log_y), [-0.582203], atol=1e-6)


def test_confidence_of_a_certain_posterior_is_zero_not_nan():
    log_y = zero_shot.log_softmax(np.array([[0.0, -2000.0, -5000.0]]))
    np.testing.assert_array_equal(zero_shot.confidence(log_y), [0.0])


def test_pseudo_class_is_the_first_of_equal_prototypes_despite_rounding():
    """BLAS may give equal rows of a product different last bits; the tie must still go to the first class."""
    rng = np.random.default_rng(0)
    for d in range(3, 40):
        prototypes = rng.normal(size=(7, d))
        prototypes /= np.linalg.norm(prototypes, axis=1, keepdims=True)
        prototypes[[2, 5, 6]] = prototypes[1]
        x = prototypes[1:2]
        assert zero_shot.pseudo_class(zero_shot.log_posterior(x, prototypes, 10.0)) == [1]


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_narrow_floats_are_computed_in_float32(dtype):
    rng = np.random.default_rng(1)
    x, prototypes = rng.normal(size=(5, 8)).astype(dtype), rng.normal(size=(3, 8))
    y = zero_shot.posterior(x, prototypes, 1.0)
    assert y.dtype == np.float32
    expected = zero_shot.posterior(x.astype(np.float64), prototypes, 1.0)
    np.testing.assert_allclose(y, expected, atol=1e-5)
