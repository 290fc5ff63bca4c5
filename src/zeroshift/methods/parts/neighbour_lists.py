"""Lists of nearest neighbours that are kept exact while samples come in one by one."""

from __future__ import annotations

from typing import NamedTuple

from zeroshift.arrays import Array, Home, namespace

__all__ = ["NeighbourLists", "largest_first"]

NOBODY = -2.0
"""The cosine of an empty place: below every other."""


class NeighbourLists(NamedTuple):
    """The k nodes most similar to each of n nodes, itself among them; of equally similar ones the earlier.

    >>> import numpy as np
    >>> lists = NeighbourLists.empty(Home.of(np.eye(2)), 2)
    >>> for cosines in ([0.9], [0.5, 0.9], [0.7, 0.2, 0.9]):
    ...     lists = lists.joined(np.array(cosines), np.array(cosines))
    >>> lists.nodes
    array([[0, 2],
           [1, 0],
           [2, 0]])
    """

    nodes: Array
    """(n, k), the most similar first."""
    cosines: Array
    """(n, k); `NOBODY` in empty places."""
    weights: Array
    """(n, k), of the links; 0 in empty places."""

    @classmethod
    def empty(cls, home: Home, k: int) -> NeighbourLists:
        return cls(home.zeros((0, k), home.xp.int64), home.zeros((0, k)), home.zeros((0, k)))

    def joined(self, cosines: Array, weights: Array) -> NeighbourLists:
        """With one more node, whose cosines (n + 1,) are those with all before it and with itself."""
        xp = namespace(cosines)
        n, k = self.nodes.shape
        own = largest_first(cosines, k)
        new = (own, cosines[own], weights[own])
        if n + 1 < k:
            empty = Home.of(cosines).zeros((k - n - 1,))
            new = (
                xp.concat([own, xp.astype(empty, own.dtype)]),
                xp.concat([new[1], empty + NOBODY]),
                xp.concat([new[2], empty]),
            )
        nodes, near, linked = (xp.concat([old, row[None, :]], axis=0) for old, row in zip(self, new, strict=True))
        # An equally similar newcomer stays outside: those before it come first.
        (moved,) = xp.nonzero(cosines[:n] > self.cosines[:, -1])
        if moved.shape[0]:
            candidates = xp.concat([near[moved, :], cosines[moved, None]], axis=1)
            order = xp.argsort(-candidates, axis=1, stable=True)[:, :k]
            newcomer = xp.full_like(nodes[moved, :1], n)
            near[moved, :] = xp.take_along_axis(candidates, order, axis=1)
            nodes[moved, :] = xp.take_along_axis(xp.concat([nodes[moved, :], newcomer], axis=1), order, axis=1)
            linked[moved, :] = xp.take_along_axis(
                xp.concat([linked[moved, :], weights[moved, None]], axis=1), order, axis=1
            )
        return NeighbourLists(nodes, near, linked)

    def twinned(self, cosines: Array, weights: Array) -> tuple[Array, Array]:
        """Nodes and weights (n + 1, k) once the last node, whose `cosines` (n,) these are, has an equal behind it.

        The twin is as similar to everyone as the last node is. In a list with room for one of them only, it takes that
        one's place: so do the neighbours the authors' code finds.
        """
        xp = namespace(cosines)
        n = cosines.shape[0]
        fits = cosines > self.cosines[:, -1]
        fits[:-1] |= self.nodes[:-1, -1] == n - 1
        last = xp.where(fits, xp.full_like(self.nodes[:, -1], n), self.nodes[:, -1])
        nodes = xp.concat([self.nodes[:, :-1], last[:, None]], axis=1)
        last = xp.where(fits, weights, self.weights[:, -1])
        linked = xp.concat([self.weights[:, :-1], last[:, None]], axis=1)
        return xp.concat([nodes, nodes[-1:, :]], axis=0), xp.concat([linked, linked[-1:, :]], axis=0)


def largest_first(values: Array, k: int) -> Array:
    """Numbers of the k largest entries of a vector, fewer where it is shorter; among equals the first.

    >>> import numpy as np
    >>> largest_first(np.array([0.5, 0.9, 0.5, 0.5]), 3)
    array([1, 0, 2])
    """
    xp = namespace(values)
    k = min(k, values.shape[0])
    edge = xp.sort(values)[-k]
    (above,) = xp.nonzero(values > edge)
    (level,) = xp.nonzero(values == edge)
    chosen = xp.concat([above, level[: k - above.shape[0]]])
    return chosen[xp.argsort(-values[chosen], stable=True)]
