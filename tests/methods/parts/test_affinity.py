"""The sums over neighbours, in both directions, and the contribution of labelled samples."""

from __future__ import annotations

import numpy as np
import pytest

from goldens import golden, problem
from zeroshift.methods._shared import top_k as blocks
from zeroshift.methods._shared.gaussian_method import neighbour_sums
from zeroshift.testing import make_problem


def near(cosines, first, count):
    """The `count` largest cosines of each row after the `first`; all others are 0."""
    order = np.argsort(-cosines, axis=1, kind="stable")[:, first : first + count]
    links = np.zeros_like(cosines)
    np.put_along_axis(links, order, np.take_along_axis(cosines, order, axis=1), axis=1)
    return links


def test_golden():
    features, expected = problem("float64")["features"], golden("transclip")
    links = np.zeros((len(features), len(features)))
    links[expected["affinity_rows"], expected["affinity_cols"]] = expected["affinity_vals"]
    found = neighbour_sums(features, 3)(np.eye(len(features)))
    np.testing.assert_allclose(found, links + links.T, rtol=0, atol=2e-6)


def test_block_size_does_not_change_results(monkeypatch):
    features, z = problem("float64")["features"], np.random.default_rng(0).random((600, 4))
    whole = neighbour_sums(features, 3)(z)
    monkeypatch.setattr(blocks, "WORK_NUMBERS", 7 * len(features))
    np.testing.assert_allclose(neighbour_sums(features, 3)(z), whole, rtol=0, atol=1e-13)


def test_no_sample_is_its_own_neighbour_even_among_duplicates():
    features = np.repeat(make_problem(samples=5).features, 6, axis=0)
    sums = neighbour_sums(features, 3)(np.eye(30))
    assert not np.diag(sums).any()
    rows, columns = np.nonzero(sums)
    np.testing.assert_array_equal(rows // 6, columns // 6)


@pytest.mark.parametrize(("n_labelled", "n_samples"), [(4, 10), (10, 4)])
def test_labelled_samples(n_labelled, n_samples):
    """With dense matrices: rows of W for the set and for the labelled samples, and the authors' mixture of both."""
    made = make_problem(samples=n_labelled + n_samples, seed=3)
    support, features = made.features[:n_labelled], made.features[n_labelled:]
    one_hot = np.eye(6)[made.labels[:n_labelled]]
    z = np.random.default_rng(1).random((n_samples, 6))
    cosines = features @ features.T
    np.fill_diagonal(cosines, -2.0)
    own = near(cosines, 0, 2)
    correct = own @ z + own.T @ z + near(support @ features.T, 0, 2).T @ one_hot
    found = neighbour_sums(features, 2, (support, one_hot))(z)
    np.testing.assert_allclose(found, correct, rtol=0, atol=1e-12)
    W = np.concatenate([near(support @ features.T, 1, 2), own])
    theirs = W.T @ np.concatenate([z, one_hot]) + (W @ z)[:n_samples]
    found = neighbour_sums(features, 2, (support, one_hot), released=True)(z)
    np.testing.assert_allclose(found, theirs, rtol=0, atol=1e-12)
