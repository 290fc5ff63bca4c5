"""The largest entries of rows, and nearest neighbours, against full sorting."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from zeroshift.methods._shared import top_k as blocks
from zeroshift.methods._shared.top_k import nearest, top_k
from zeroshift.testing import make_problem

both_libraries = pytest.mark.parametrize("library", [np.asarray, torch.tensor], ids=["numpy", "torch"])


@both_libraries
@pytest.mark.parametrize("k", [1, 7, 31, 100])
def test_sorted(k, library):
    scores = np.random.default_rng(0).normal(size=(13, 31))
    values, columns = (np.asarray(array) for array in top_k(library(scores), k))
    order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    np.testing.assert_array_equal(columns, order)
    np.testing.assert_array_equal(values, np.take_along_axis(scores, order, axis=1))


@both_libraries
@pytest.mark.parametrize("k", [3, 5, 10])
def test_among_equals_the_first_comes_first(k, library):
    """If all of them are among the k largest."""
    scores = np.array([[0.5, 0.9, 0.5, 0.9, 0.1, 0.9, 0.0, -1.0, -2.0, -3.0]] * 2)
    columns = np.asarray(top_k(library(scores), k)[1])
    np.testing.assert_array_equal(columns, [[1, 3, 5, 0, 2, 4, 6, 7, 8, 9][:k]] * 2)


@both_libraries
@pytest.mark.parametrize("k", [2, 12])
def test_equal_entries_at_the_limit(k, library):
    """Any of them may be chosen, but different ones, in order, and always the same."""
    scores = np.zeros((5, 20))
    values, columns = (np.asarray(array) for array in top_k(library(scores), k))
    assert (values == 0).all()
    assert (np.diff(columns, axis=1) > 0).all()
    np.testing.assert_array_equal(columns, np.asarray(top_k(library(scores.copy()), k)[1]))


@both_libraries
@pytest.mark.parametrize("k", [2, 4])
def test_entries_of_minus_infinity(k, library):
    """-inf is chosen only if nothing else is left; no column is chosen twice."""
    scores = np.array([[1.0, -np.inf, 3.0, -np.inf, -np.inf], [-np.inf, 1.0, 2.0, 3.0, 4.0]])
    values, columns = (np.asarray(array) for array in top_k(library(scores), k))
    assert columns[0, :2].tolist() == [2, 0]
    assert columns[1].tolist() == [4, 3, 2, 1][:k]
    assert all(len(set(row)) == k for row in columns.tolist())
    np.testing.assert_array_equal(values, np.take_along_axis(scores, columns, axis=1))


@both_libraries
@pytest.mark.parametrize("k", [5, 41])
@pytest.mark.parametrize("work", [200, 10**6])
def test_nearest_in_blocks(k, work, library, monkeypatch):
    monkeypatch.setattr(blocks, "WORK_NUMBERS", work)
    features, others = make_problem(samples=25, seed=1).features, make_problem(samples=40, seed=2).features
    cosines, numbers = (np.asarray(array) for array in nearest(library(features), library(others), k))
    order = np.argsort(-features @ others.T, axis=1, kind="stable")[:, :k]
    np.testing.assert_array_equal(numbers, order)
    np.testing.assert_allclose(cosines, np.take_along_axis(features @ others.T, order, axis=1), rtol=1e-13)


@both_libraries
@pytest.mark.parametrize("work", [100, 10**6])
def test_no_sample_is_its_own_neighbour(work, library, monkeypatch):
    monkeypatch.setattr(blocks, "WORK_NUMBERS", work)
    features = make_problem(samples=20, seed=3).features
    features[7] = features[3]  # as similar to each other as to themselves
    cosines, numbers = (np.asarray(array) for array in nearest(*2 * [library(features)], 50, exclude_self=True))
    assert numbers.shape == (20, 19)
    for row, listed in enumerate(numbers.tolist()):
        assert sorted(listed) == [i for i in range(20) if i != row]
    assert numbers[3, 0] == 7
    assert numbers[7, 0] == 3
    assert (np.diff(cosines, axis=1) <= 0).all()
