"""Neighbour lists updated node by node, compared with sorting all cosines at each step."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from zeroshift.arrays import Backend
from zeroshift.methods.ecalp import NO_NEIGHBOUR, NeighbourLists, largest_indices

both_libraries = pytest.mark.parametrize("library", [np.asarray, torch.tensor], ids=["numpy", "torch"])


def cosines_of(n, *, ties):
    rng = np.random.default_rng(5)
    cosines = rng.uniform(-0.5, 1.0, size=(n, n))
    # Few different values: ties everywhere, also at the ends of lists.
    return np.maximum(np.round(cosines, 1), cosines.T.round(1)) if ties else (cosines + cosines.T) / 2


def build_lists(cosines, k, library, n=None):
    lists = NeighbourLists.empty(Backend.of(library(cosines)), k)
    for i in range(len(cosines) if n is None else n):
        row = library(cosines[i, : i + 1].copy())
        lists = lists.with_node(row, row**2)
    return lists


@both_libraries
@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("k", [1, 3, 8, 40])
def test_with_node(k, ties, library):
    cosines = cosines_of(30, ties=ties)
    lists = build_lists(cosines, k, library)
    order = np.argsort(-cosines, axis=1, kind="stable")[:, :k]
    width = min(k, 30)
    np.testing.assert_array_equal(np.asarray(lists.nodes)[:, :width], order)
    expected = np.take_along_axis(cosines, order, axis=1)
    np.testing.assert_array_equal(np.asarray(lists.cosines)[:, :width], expected)
    np.testing.assert_array_equal(np.asarray(lists.weights)[:, :width], expected**2)
    assert (np.asarray(lists.cosines)[:, width:] == NO_NEIGHBOUR).all()
    assert (np.asarray(lists.weights)[:, width:] == 0).all()


@both_libraries
@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("k", [2, 3, 8, 40])
def test_with_twin(k, ties, library):
    """Old nodes rank the twin just before the newest node; the newest and the twin rank it just after."""
    cosines = cosines_of(30, ties=ties)
    for n in (1, 2, 3, 9, 30):
        last = library(cosines[n - 1, :n].copy())
        nodes, weights = map(np.asarray, build_lists(cosines, k, library, n).with_twin(last, last**2))
        assert nodes.shape == weights.shape == (n + 1, k)
        for row in range(n + 1):
            like = min(row, n - 1)
            near = np.append(cosines[like, :n], cosines[like, n - 1])
            rank = np.arange(n + 1.0)
            if row < n - 1:
                rank[n] = n - 1.5
            best = np.lexsort((rank, -near))[:k]
            linked = {int(node): weight for node, weight in zip(nodes[row], weights[row], strict=True) if weight}
            assert linked == {int(node): near[node] ** 2 for node in best if near[node]}


@both_libraries
def test_updates_do_not_change_the_lists(library):
    cosines = cosines_of(10, ties=False)
    lists = build_lists(cosines, 3, library, 9)
    before = [np.asarray(part).copy() for part in lists]
    row = library(cosines[9].copy())
    lists.with_node(row, row).with_twin(row, row)
    for part, old in zip(lists, before, strict=True):
        np.testing.assert_array_equal(np.asarray(part), old)


@both_libraries
@pytest.mark.parametrize("k", [1, 2, 4, 5, 9])
def test_largest_indices(k, library):
    values = np.array([0.5, 0.9, 0.5, 0.5, 0.9])
    assert np.asarray(largest_indices(library(values), k)).tolist() == [1, 4, 0, 2, 3][:k]
