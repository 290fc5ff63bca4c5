"""ECALP's graph: it grows by a sample at a time, and at each step class labels spread over all of it."""

from __future__ import annotations

from typing import NamedTuple

from zeroshift.arrays import Array, Home, namespace
from zeroshift.methods.parts.graph import degree_factors
from zeroshift.methods.parts.neighbour_lists import NeighbourLists
from zeroshift.methods.parts.sparse import SparseMatrix

__all__ = ["Arrival", "GrowingGraph", "SpreadRule"]

SOFTENING = 1e-6
"""Added to the square roots of degrees, as in the authors' code."""


class SpreadRule(NamedTuple):
    alpha: float
    rounds: int
    carry: float
    labels: Array
    """The class (f,) of each fixed node: the texts, then labelled samples."""
    n_classes: int


class Arrival(NamedTuple):
    """A sample's links to the n before it, to itself, and to the fixed nodes nearest to it."""

    cosines: Array
    """(n + 1,), the last with itself."""
    weights: Array
    """(n + 1,)."""
    fixed: Array
    """(t,)."""
    fixed_weights: Array
    """(t,)."""


class Snapshot(NamedTuple):
    """The graph of one step: n samples, the newest, and its twin, which is asked and then forgotten."""

    lists: NeighbourLists
    fixed: Array
    fixed_weights: Array
    links: SparseMatrix
    """(n + 2, n + 2), scaled by the degrees."""
    told: SparseMatrix
    """(n + 2, K): what the fixed nodes say in every round."""
    begun: SparseMatrix
    """(n + 2, K): labels carried over from the step before, one a sample."""


class GrowingGraph(NamedTuple):
    """What stays of n samples: a new graph is made at each step, so that an interrupt leaves the old one whole."""

    lists: NeighbourLists
    fixed: Array
    """(n, t): the fixed nodes each is linked to."""
    fixed_weights: Array
    """(n, t)."""
    fixed_degrees: Array
    """(f,): sums of the weights of all links to each fixed node."""
    classes: Array
    """(n,): the class of each one's largest label."""
    values: Array
    """(n,): the part of that label that is carried over."""

    @classmethod
    def empty(cls, home: Home, n_neighbors: int, n_fixed_links: int, n_fixed: int) -> GrowingGraph:
        whole = home.xp.int64
        return cls(
            NeighbourLists.empty(home, n_neighbors),
            home.zeros((0, n_fixed_links), whole),
            home.zeros((0, n_fixed_links)),
            home.zeros((n_fixed,)),
            home.zeros((0,), whole),
            home.zeros((0,)),
        )

    @property
    def size(self) -> int:
        return int(self.values.shape[0])

    def grown(self, arrival: Arrival, rule: SpreadRule) -> tuple[Array, GrowingGraph]:
        """The newcomer's labels (K,), and the graph with it. Every label changes a little, so all are spread."""
        xp = namespace(self.values)
        now = self._snapshot(arrival, rule)
        told = now.told.dense()
        labels: Array = now.begun
        begun = now.begun.dense() if rule.alpha != 1.0 else None
        for _ in range(rule.rounds):
            labels = now.links @ labels
            labels += told
            if begun is not None:
                labels = rule.alpha * labels + (1.0 - rule.alpha) * begun
        kept = labels[:-1, :]
        classes = xp.argmax(kept, axis=1)
        values = rule.carry * xp.take_along_axis(kept, classes[:, None], axis=1)[:, 0]
        fixed_degrees = _added(self.fixed_degrees, arrival)
        grown = GrowingGraph(now.lists, now.fixed[:-1, :], now.fixed_weights[:-1, :], fixed_degrees, classes, values)
        return labels[-1, :], grown

    def asked(self, arrival: Arrival, rule: SpreadRule) -> Array:
        """The labels (K,) the newcomer would get; nothing changes.

        The links are symmetric, so instead of every label coming to the twin, the twin's own weight goes out to where
        labels are: products with a vector in place of a matrix.
        """
        now = self._snapshot(arrival, rule)
        weight = Home.of(self.values).zeros((self.size + 2, 1))
        weight[-1, 0] = 1.0
        heard = 0.0 * weight
        for _ in range(rule.rounds):
            heard += weight
            weight = rule.alpha * (now.links @ weight)
        return (rule.alpha * (now.told.T @ heard) + now.begun.T @ ((1.0 - rule.alpha) * heard + weight))[:, 0]

    def _snapshot(self, arrival: Arrival, rule: SpreadRule) -> Snapshot:
        home, n = Home.of(self.values), self.size
        xp = home.xp
        lists = self.lists.joined(arrival.cosines, arrival.weights)
        nodes, weights = lists.twinned(arrival.cosines, arrival.weights)
        both = SparseMatrix.of_lists(nodes, weights, n + 2).plus_transpose()
        fixed = xp.concat([self.fixed, arrival.fixed[None, :], arrival.fixed[None, :]], axis=0)
        new = arrival.fixed_weights[None, :]
        fixed_weights = xp.concat([self.fixed_weights, new, new], axis=0)
        factors = degree_factors(both.row_sums() + xp.sum(fixed_weights, axis=1), SOFTENING)
        fixed_factors = degree_factors(_added(_added(self.fixed_degrees, arrival), arrival), SOFTENING)
        said = fixed_weights * fixed_factors[fixed] * factors[:, None]
        told = SparseMatrix.of_lists(rule.labels[fixed], said, rule.n_classes)
        nothing = home.zeros((2,))
        classes = xp.concat([self.classes, xp.astype(nothing, self.classes.dtype)])
        values = xp.concat([self.values, nothing])
        begun = SparseMatrix.of_lists(classes[:, None], values[:, None], rule.n_classes)
        return Snapshot(lists, fixed, fixed_weights, both.scaled(factors, factors), told, begun)


def _added(degrees: Array, arrival: Arrival) -> Array:
    """With one more sample's links to the fixed nodes, which are all different."""
    degrees = Home.of(degrees).copy(degrees)
    degrees[arrival.fixed] += arrival.fixed_weights
    return degrees
