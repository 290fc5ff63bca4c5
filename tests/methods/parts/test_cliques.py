"""Graphs and cliques against definitions by enumeration."""

import itertools

import numpy as np
import pytest

from zeroshift.arrays import Backend
from zeroshift.methods._shared import cliques as module
from zeroshift.methods._shared.cliques import CliqueSet, joined_graph, maximal_cliques, similarity_graph


def random_graph(n, share, seed):
    upper = np.triu(np.random.default_rng(seed).random((n, n)) < share, 1)
    return upper | upper.T


@pytest.mark.parametrize("share", [0.0, 0.2, 0.5, 0.8, 1.0])
def test_maximal_cliques_by_enumeration(share):
    edges = random_graph(9, share, 1)

    def is_clique(nodes):
        return all(edges[i, j] for i, j in itertools.combinations(nodes, 2))

    every = [
        set(nodes) for size in range(1, 10) for nodes in itertools.combinations(range(9), size) if is_clique(nodes)
    ]
    expected = sorted(sorted(one) for one in every if not any(one < other for other in every))
    found = maximal_cliques(edges)
    assert found == expected
    assert set(itertools.chain(*found)) == set(range(9))  # every node is in some clique


def test_a_large_clique_needs_no_recursion():
    assert maximal_cliques(~np.eye(3000, dtype=bool)) == [list(range(3000))]


def test_listing_stops(monkeypatch):
    monkeypatch.setattr(module, "MOST_CLIQUES", 5)
    three_parts = np.kron(~np.eye(4, dtype=bool), np.ones((3, 3), dtype=bool))  # 3^4 maximal cliques
    assert len(maximal_cliques(three_parts)) == 5


def test_common_neighbours():
    edges = random_graph(12, 0.5, 3)
    for shared in (0, 1, 2, 3):
        common = edges.astype(int) @ edges.astype(int)
        np.testing.assert_array_equal(joined_graph(edges, shared), edges & (common >= shared))


@pytest.mark.parametrize("degree", [0.0, 1.0, 2.43, 2.5, 4.0, 100.0])
@pytest.mark.parametrize("n", [1, 2, 8, 41])
def test_the_mean_degree_is_the_target_or_the_next_smaller(n, degree):
    rows = np.random.default_rng(n).normal(size=(n, 6))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    products = rows @ rows.T
    edges = similarity_graph(products, degree)
    assert not edges.diagonal().any()
    np.testing.assert_array_equal(edges, edges.T)
    count = edges.sum() / 2
    best = min(int(n * (degree + 0.01) / 2), n * (n - 1) // 2)
    most = {best, best - 1} if best == n * (n - 1) // 2 and degree > n else {best}  # the smallest is never above it
    assert count in most
    if 0 < count < n * (n - 1) // 2:
        off = products[np.triu_indices(n, 1)]
        chosen = edges[np.triu_indices(n, 1)]
        assert off[chosen].min() > off[~chosen].max()


def test_equal_products_are_treated_alike():
    """Six equal edges and a target of two: none is chosen, however they are rounded."""
    products = np.eye(4) + 0.5 * (1 - np.eye(4)) + 1e-13 * np.random.default_rng(0).normal(size=(4, 4))
    assert similarity_graph(products, 1.0).sum() == 0
    products[0, 1] = products[1, 0] = 0.9
    assert similarity_graph(products, 1.0).sum() == 2  # that edge alone
    assert similarity_graph(products, 0.5).sum() == 2


def test_anchors_and_the_nearest_cliques():
    rows = np.random.default_rng(5).normal(size=(20, 4))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    found = CliqueSet.of(rows, degree=4.0)
    starts = np.cumsum([0, *found.sizes])
    groups = [found.members[a:b] for a, b in itertools.pairwise(starts)]
    np.testing.assert_allclose(found.anchors, [rows[one].mean(axis=0) for one in groups], rtol=0, atol=1e-15)
    kept = max(1, int(0.3 * len(groups)))
    order = np.argsort(-(found.anchors @ rows[3]))[:kept]
    expected = np.isin(np.arange(20), np.concatenate([groups[one] for one in order]))
    np.testing.assert_array_equal(found.nearest(rows[3], 0.3, 20), expected)
    # Of equally near ones all are chosen.
    alone = CliqueSet.of(np.eye(3), degree=0.0)
    np.testing.assert_array_equal(alone.nearest(np.array([0.6, 0.6, 0.0]), 0.1, 3), [True, True, False])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"members": np.array([0, 9])}, "not made of 3 nodes"),
        ({"sizes": np.array([1, 0, 1])}, "not made of 3 nodes"),
        ({"anchors": np.zeros((2, 3))}, "do not fit"),
        ({"anchors": 5 * np.eye(3)}, "anchors must be no longer than 1"),
    ],
)
def test_saved_cliques_are_checked(change, message):
    found = CliqueSet.of(np.eye(3), degree=0.0)
    arrays = found.arrays(Backend.of(np.eye(3)))
    again = CliqueSet.empty(0).restored(arrays, 3, 3)
    np.testing.assert_array_equal(again.members, found.members)
    with pytest.raises(ValueError, match=message):
        CliqueSet.empty(0).restored({**arrays, **change}, 3, 3)
