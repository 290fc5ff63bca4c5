"""Cliques of similar rows: the graph of the largest inner products, its maximal cliques, and their means as anchors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from zeroshift.arrays import Array, Backend, to_numpy
from zeroshift.state_checks import check_lengths

TIE = 1e-9
"""Inner products closer than this are equal: they round differently in other products and orders."""

DEGREE_TOLERANCE = 0.01
"""How far the mean degree of a graph may be from its target."""

HALVINGS = 60
"""Of the range in which a threshold is searched."""

MOST_CLIQUES = 100_000
"""Listing stops there: the number of maximal cliques may grow exponentially with that of nodes."""


class CliqueSet:
    """Cliques among n nodes, and the mean of the members of each, its anchor.

    >>> cliques = CliqueSet.of(np.array([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0]]), degree=2 / 3)
    >>> cliques.sizes, cliques.anchors
    (array([2, 1]), array([[0.9, 0.3],
           [0. , 1. ]]))
    >>> cliques.nearest(np.array([1.0, 0.0]), share=0.5, n_nodes=3)
    array([ True,  True, False])
    """

    def __init__(self, members: np.ndarray, sizes: np.ndarray, anchors: np.ndarray) -> None:
        self.members, self.sizes, self.anchors = members, sizes, anchors
        """The nodes of all cliques, one clique after the other; the number of each; and (C, d)."""

    @classmethod
    def empty(cls, dimension: int) -> CliqueSet:
        return cls(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros((0, dimension)))

    @classmethod
    def of(cls, nodes: np.ndarray, *, degree: float, shared: int = 0) -> CliqueSet:
        """The maximal cliques of rows (n, d), in the graph of the largest inner products with this mean degree, less
        the edges whose ends have fewer than `shared` neighbours in common."""
        graph = joined_graph(similarity_graph(nodes @ nodes.T, degree), shared)
        cliques = maximal_cliques(graph)
        sizes = np.array([len(clique) for clique in cliques], np.int64)
        members = np.array([node for clique in cliques for node in clique], np.int64)
        starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
        return cls(members, sizes, np.add.reduceat(nodes[members], starts, axis=0) / sizes[:, None])

    def nearest(self, y: np.ndarray, share: float, n_nodes: int) -> np.ndarray:
        """Which nodes (n,) are in one of the cliques, a share of all and at least one, whose anchors have the largest
        inner products with y; equally near ones count together."""
        products = self.anchors @ y
        kept = max(1, int(share * len(products)))
        chosen = products >= np.partition(products, -kept)[-kept] - TIE
        found = np.zeros(n_nodes, dtype=bool)
        found[self.members[np.repeat(chosen, self.sizes)]] = True
        return found

    def arrays(self, backend: Backend) -> dict[str, Array]:
        """What a state file needs."""
        return {
            name: backend.xp.asarray(getattr(self, name), device=backend.device, copy=True)
            for name in ("members", "sizes", "anchors")
        }

    def restored(self, arrays: Mapping[str, Any], n_nodes: int, dimension: int) -> CliqueSet:
        """The set that `arrays` describes; ValueError if it is none of so many nodes."""
        members, sizes = (to_numpy(arrays[name]).astype(np.int64) for name in ("members", "sizes"))
        anchors = to_numpy(arrays["anchors"]).astype(np.float64)
        if members.ndim != 1 or sizes.ndim != 1 or anchors.shape != (len(sizes), dimension):
            raise ValueError(f"cliques of the shapes {members.shape}, {sizes.shape} and {anchors.shape} do not fit")
        if (sizes < 1).any() or sizes.sum() != len(members) or ((members < 0) | (members >= n_nodes)).any():
            raise ValueError(f"the cliques are not made of {n_nodes} nodes")
        check_lengths("anchors", anchors)
        return CliqueSet(members, sizes, anchors)


def similarity_graph(products: np.ndarray, degree: float) -> np.ndarray:
    """The edges (n, n) with the largest products, so many that the mean degree is the target.

    A threshold is found by bisection between the smallest and the largest product, as the authors of COSMIC do. If no
    threshold reaches the target, equal products among them, the next sparser graph is taken.
    """
    n, low = len(products), products.min()
    products = np.round(products, 9)  # equal ones, which may differ by rounding, are on the same side
    pairs, high = np.sort(products[np.tri(n, k=-1, dtype=bool)]), products.max()
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        mean = 2 * (len(pairs) - np.searchsorted(pairs, middle, side="right")) / n
        if mean > degree:
            low = middle
        else:
            high = middle
        if abs(mean - degree) < DEGREE_TOLERANCE:
            high = middle
            break
    edges = np.tril(products > high, -1)
    return edges | edges.T


def joined_graph(edges: np.ndarray, shared: int) -> np.ndarray:
    """The edges (n, n) whose ends have at least so many neighbours in common.

    >>> triangle = ~np.eye(3, dtype=bool)
    >>> int(joined_graph(triangle, 1).sum()), int(joined_graph(triangle, 2).sum())
    (6, 0)
    """
    if not shared:
        return edges
    kept = np.zeros_like(edges)
    neighbours = _masks(edges)
    for i, j in zip(*np.nonzero(np.triu(edges)), strict=True):
        kept[i, j] = kept[j, i] = (neighbours[i] & neighbours[j]).bit_count() >= shared
    return kept


def maximal_cliques(edges: np.ndarray) -> list[list[int]]:
    """Every maximal clique of a graph (n, n) as its nodes in order; a node without edges is one by itself.

    Bron and Kerbosch's algorithm with pivots. Sets of nodes are the bits of integers.

    >>> path = np.array([[0, 1, 0], [1, 0, 1], [0, 1, 0]], dtype=bool)
    >>> maximal_cliques(path)
    [[0, 1], [1, 2]]
    """
    neighbours = _masks(edges)
    found: list[list[int]] = []
    waiting = [(0, (1 << len(edges)) - 1, 0)]  # a clique, the nodes that may join it, and those already tried
    while waiting and len(found) < MOST_CLIQUES:
        clique, candidates, tried = waiting.pop()
        if not candidates:
            if not tried:
                found.append(_nodes(clique))
            continue
        pivot = max(_nodes(candidates | tried), key=lambda u: (candidates & neighbours[u]).bit_count())
        for v in _nodes(candidates & ~neighbours[pivot]):
            waiting.append((clique | 1 << v, candidates & neighbours[v], tried & neighbours[v]))
            candidates &= ~(1 << v)
            tried |= 1 << v
    return sorted(found)


def _masks(edges: np.ndarray) -> list[int]:
    """The neighbours of each node as bits."""
    return [int.from_bytes(row.tobytes(), "little") for row in np.packbits(edges, axis=1, bitorder="little")]


def _nodes(mask: int) -> list[int]:
    nodes = []
    while mask:
        lowest = mask & -mask
        nodes.append(lowest.bit_length() - 1)
        mask ^= lowest
    return nodes
