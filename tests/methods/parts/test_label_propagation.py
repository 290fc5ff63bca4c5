"""Scaling by degrees and label propagation, against dense inverses."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from zeroshift.methods import zlap
from zeroshift.methods._shared.sparse import SparseMatrix, degree_factors
from zeroshift.methods.zlap import propagate_labels, without_self

both_libraries = pytest.mark.parametrize("library", [np.asarray, torch.tensor], ids=["numpy", "torch"])


def links(library, *, n=30, self_links=False, lone=None):
    """A random graph scaled by its degrees, as a sparse and as a dense matrix."""
    rng = np.random.default_rng(3)
    nodes = np.array([rng.choice(n, size=4, replace=False) for _ in range(n)])
    nodes[:, 0] = np.arange(n)
    weights = rng.random((n, 4))
    if lone is not None:
        weights[lone] = 0
        weights[nodes == lone] = 0
    nodes, weights = library(nodes), library(weights)
    kept = weights if self_links else without_self(nodes, weights)
    both = SparseMatrix.of_lists(nodes, kept, n).plus_transpose()
    factors = degree_factors(both.row_sums())
    matrix = both.scaled(factors, factors)
    return matrix, np.asarray(matrix.dense())


@both_libraries
@pytest.mark.parametrize("self_links", [False, True])
def test_scaled_by_degrees(self_links, library):
    _, dense = links(library, self_links=self_links)
    np.testing.assert_allclose(dense, dense.T, rtol=1e-13)
    assert (np.diag(dense) > 0).all() == self_links
    eigenvalues = np.linalg.eigvalsh(dense)
    assert eigenvalues.max() == pytest.approx(1)
    assert eigenvalues.min() > -1 - 1e-12


@both_libraries
@pytest.mark.parametrize("work", [1, 70, 10**6])
@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.99])
def test_propagation_is_the_inverse(alpha, work, library, monkeypatch):
    monkeypatch.setattr(zlap, "SOLVE_NUMBERS", work)
    matrix, dense = links(library)
    expected = np.linalg.inv(np.eye(30) - alpha * dense)[:, :5]
    found = propagate_labels(matrix, alpha, 5)
    assert type(found) is type(library(dense))
    np.testing.assert_allclose(np.asarray(found), expected, rtol=0, atol=1e-8)


@both_libraries
def test_a_lone_node_keeps_its_label(library):
    matrix, _ = links(library, lone=2)
    found = np.asarray(propagate_labels(matrix, 0.5, 5))
    np.testing.assert_array_equal(found[2], np.eye(5)[2])
    np.testing.assert_array_equal(np.delete(found[:, 2], 2), 0)


def test_labels_are_never_negative():
    """Two halves without a link between them: labels in the other half are exactly 0."""
    chain = np.arange(39)[np.arange(39) != 19]
    both = SparseMatrix(chain, chain + 1, np.ones(38), (40, 40)).plus_transpose()
    factors = degree_factors(both.row_sums())
    found = propagate_labels(both.scaled(factors, factors), 0.9, 3)
    assert (found >= 0).all()
    np.testing.assert_array_equal(found[20:], 0)
    assert (found[:20] > 0).all()


@both_libraries
def test_degree_factors(library):
    degrees = library(np.array([4.0, 0.0, 0.25]))
    np.testing.assert_allclose(np.asarray(degree_factors(degrees)), [0.5, 1.0, 2.0])
    np.testing.assert_allclose(np.asarray(degree_factors(degrees, 0.5)), [0.4, 2.0, 1.0])


@both_libraries
def test_without_self(library):
    nodes, weights = np.array([[0, 2], [0, 2], [1, 2]]), np.ones((3, 2))
    np.testing.assert_array_equal(np.asarray(without_self(library(nodes), library(weights))), [[0, 1], [1, 1], [1, 0]])
    np.testing.assert_array_equal(weights, 1)
