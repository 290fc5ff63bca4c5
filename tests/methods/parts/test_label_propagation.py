"""Scaling by degrees and label propagation, against dense inverses."""

from __future__ import annotations

import numpy as np
import pytest

from zeroshift.methods._shared.sparse import degree_factors, link_matrix, scaled_by_degrees
from zeroshift.methods.zlap import propagate_labels


def links(*, n=30, lone=None):
    """A random graph scaled by its degrees."""
    rng = np.random.default_rng(3)
    nodes = np.array([rng.choice(np.delete(np.arange(n), i), size=4, replace=False) for i in range(n)])
    weights = rng.random((n, 4))
    if lone is not None:
        weights[lone] = 0
        weights[nodes == lone] = 0
    directed = link_matrix(nodes, weights, n)
    return scaled_by_degrees((directed + directed.T).tocsr())


@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.99])
def test_propagation_is_the_inverse(alpha):
    """Of a symmetric matrix, whose largest eigenvalue is 1."""
    assert np.linalg.eigvalsh(links().toarray()).max() == pytest.approx(1)
    expected = np.linalg.inv(np.eye(30) - alpha * links().toarray())[:, :5]
    np.testing.assert_allclose(propagate_labels(links(), alpha, 5), expected, rtol=0, atol=1e-8)


def test_a_lone_node_keeps_its_label():
    found = propagate_labels(links(lone=2), 0.5, 5)
    np.testing.assert_array_equal(found[2], np.eye(5)[2])
    np.testing.assert_array_equal(np.delete(found[:, 2], 2), 0)


def test_labels_are_never_negative():
    """Two halves without a link between them: labels in the other half are exactly 0."""
    weights = np.where(np.arange(40) % 20 == 19, 0.0, 1.0)
    chain = link_matrix(np.minimum(np.arange(40) + 1, 39)[:, None], weights[:, None], 40)
    found = propagate_labels(scaled_by_degrees((chain + chain.T).tocsr()), 0.9, 3)
    assert (found >= 0).all()
    np.testing.assert_array_equal(found[20:], 0)
    assert (found[:20] > 0).all()


def test_degree_factors():
    degrees = np.array([4.0, 0.0, 0.25])
    np.testing.assert_allclose(degree_factors(degrees), [0.5, 1.0, 2.0])
    np.testing.assert_allclose(degree_factors(degrees, 0.5), [0.4, 2.0, 1.0])
