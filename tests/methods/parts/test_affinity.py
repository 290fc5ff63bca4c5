"""The affinity of neighbours, in both directions, and the contribution of labelled samples."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from goldens import golden, problem
from zeroshift.methods._shared import top_k as blocks
from zeroshift.methods._shared.gaussian_method import few_shot_affinity, neighbour_affinity, neighbour_edges
from zeroshift.testing import make_problem


def as_matrix(edges, shape):
    dense = np.zeros(shape)
    np.add.at(dense, (np.asarray(edges.rows), np.asarray(edges.columns)), np.asarray(edges.cosines))
    return dense


@pytest.mark.parametrize("library", [np.asarray, torch.tensor], ids=["numpy", "torch"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_golden(dtype, library):
    expected = golden("transclip")
    edges = neighbour_edges(*2 * [library(problem(dtype)["features"])], 3, exclude_self=True)
    order = np.lexsort((np.asarray(edges.columns), np.asarray(edges.rows)))
    np.testing.assert_array_equal(np.asarray(edges.rows)[order], expected["affinity_rows"])
    np.testing.assert_array_equal(np.asarray(edges.columns)[order], expected["affinity_cols"])
    np.testing.assert_allclose(np.asarray(edges.cosines)[order], expected["affinity_vals"], rtol=0, atol=1e-6)


def test_block_size_does_not_change_results(monkeypatch):
    features = problem("float64")["features"]
    whole = neighbour_edges(features, features, 3, exclude_self=True)
    monkeypatch.setattr(blocks, "WORK_NUMBERS", 7 * len(features))
    parts = neighbour_edges(features, features, 3, exclude_self=True)
    np.testing.assert_array_equal(whole.columns, parts.columns)
    np.testing.assert_allclose(whole.cosines, parts.cosines, rtol=0, atol=1e-14)


def test_no_sample_is_its_own_neighbour_even_among_duplicates():
    features = np.repeat(make_problem(samples=5).features, 6, axis=0)
    edges = neighbour_edges(features, features, 3, exclude_self=True)
    assert (edges.rows != edges.columns).all()
    assert (edges.rows // 6 == edges.columns // 6).all()


def test_neighbours_count_in_both_directions():
    features = make_problem(samples=20).features
    W = as_matrix(neighbour_edges(features, features, 3, exclude_self=True), (20, 20))
    z = np.random.default_rng(0).random((20, 4))
    assert (W > 0).sum() == 60
    np.testing.assert_allclose(neighbour_affinity(features, 3).neighbour_sums(z), W @ z + W.T @ z, rtol=0, atol=1e-14)


def test_one_sample_has_no_neighbours():
    for features in (make_problem(samples=1).features, torch.tensor(make_problem(samples=1).features)):
        assert not neighbour_affinity(features, 3).neighbour_sums(features * 0 + 1).any()


@pytest.mark.parametrize(("n_labelled", "n_samples"), [(4, 10), (10, 4)])
def test_labelled_samples(n_labelled, n_samples):
    """With dense matrices: rows of W for the set and for the labelled samples, and the authors' mixture of both."""
    made = make_problem(samples=n_labelled + n_samples, seed=3)
    support, features = made.features[:n_labelled], made.features[n_labelled:]
    one_hot = np.eye(6)[made.labels[:n_labelled]]
    z = np.random.default_rng(1).random((n_samples, 6))
    own = as_matrix(neighbour_edges(features, features, 2, exclude_self=True), (n_samples, n_samples))

    def neighbour_weights(first):
        cosines = support @ features.T
        kept = np.argsort(-cosines, axis=1)[:, first : first + 2]
        return cosines * (np.arange(n_samples) == kept[:, :, None]).any(axis=1)

    expected = own @ z + own.T @ z + neighbour_weights(0).T @ one_hot
    np.testing.assert_allclose(
        few_shot_affinity(features, support, one_hot, 2).neighbour_sums(z), expected, rtol=0, atol=1e-12
    )

    W = np.concatenate([neighbour_weights(1), own])
    expected = W.T @ np.concatenate([z, one_hot]) + (W @ z)[:n_samples]
    actual = few_shot_affinity(features, support, one_hot, 2, released=True).neighbour_sums(z)
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-12)
