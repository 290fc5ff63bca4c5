"""Who is near to whom: the sparse affinity by which TransCLIP and StatA pull the assignments of neighbours together."""

from __future__ import annotations

from typing import NamedTuple

from zeroshift.arrays import Array, Home, namespace
from zeroshift.methods._shared.sparse import SparseMatrix
from zeroshift.methods._shared.top_k import nearest

__all__ = ["Affinity", "Edges", "few_shot_affinity", "neighbour_affinity", "neighbour_edges"]


class Edges(NamedTuple):
    """Each sample's nearest ones, as the entries of a sparse matrix W."""

    rows: Array
    columns: Array
    cosines: Array


class Affinity(NamedTuple):
    """What neighbours say of a sample's class: those it picked and those that picked it, W z + W^T z."""

    both_ways: SparseMatrix
    """W + W^T, (N, N)."""
    labelled: Array | None = None
    """What labelled samples that picked it say, (N, K); it never changes."""

    def pull(self, z: Array) -> Array:
        """(N, K), for assignments of the same shape."""
        pulled = self.both_ways @ z
        if self.labelled is not None:
            pulled += self.labelled
        return pulled


def neighbour_edges(
    features: Array, others: Array, neighbours: int, *, leave_out_self: bool = False, drop_first: bool = False
) -> Edges:
    """The cosines of each row of `features` with its nearest rows of `others`, fewer where there are fewer.

    With `leave_out_self` both are the same samples and none is a neighbour of itself. With `drop_first` the nearest is
    passed over, whoever it is.
    """
    xp = namespace(features)
    skipped = int(drop_first)
    cosines, columns = nearest(features, others, neighbours + skipped, leave_out_self=leave_out_self)
    cosines, columns = cosines[:, skipped:], columns[:, skipped:]
    rows = xp.arange(features.shape[0], dtype=columns.dtype, device=Home.of(features).device)
    rows = xp.broadcast_to(rows[:, None], columns.shape)
    return Edges(*(xp.reshape(part, (-1,)) for part in (rows, columns, cosines)))


def neighbour_affinity(features: Array, neighbours: int) -> Affinity:
    """Of a set of samples among themselves.

    >>> import numpy as np
    >>> features = np.array([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0]])
    >>> neighbour_affinity(features, 1).pull(np.eye(3)).round(2)
    array([[0. , 1.6, 0. ],
           [1.6, 0. , 0.6],
           [0. , 0.6, 0. ]])
    """
    return _both_ways(neighbour_edges(features, features, neighbours, leave_out_self=True), features.shape[0])


def few_shot_affinity(
    features: Array, support: Array, one_hot: Array, neighbours: int, *, released: bool = False
) -> Affinity:
    """Of a set of samples among themselves, and of labelled samples (S, d) that pick neighbours in it.

    As released the rows of W begin with the labelled samples, and are used as if the set's own came first; and a
    labelled sample passes over its nearest neighbour, as if that were itself.
    """
    xp = namespace(features)
    n_samples, n_labelled = features.shape[0], support.shape[0]
    own = neighbour_edges(features, features, neighbours, leave_out_self=True)
    labelled = neighbour_edges(support, features, neighbours, drop_first=released)
    first, second = (labelled, own) if released else (own, labelled)
    after = n_labelled if released else n_samples
    edges = Edges(
        xp.concat([first.rows, second.rows + after]),
        xp.concat([first.columns, second.columns]),
        xp.concat([first.cosines, second.cosines]),
    )
    head = edges.rows < n_samples
    rest = Edges(*(part[~head] for part in edges))
    told = SparseMatrix(rest.columns, rest.rows - n_samples, rest.cosines, (n_samples, n_labelled))
    return _both_ways(Edges(*(part[head] for part in edges)), n_samples)._replace(labelled=told @ one_hot)


def _both_ways(edges: Edges, n_samples: int) -> Affinity:
    return Affinity(SparseMatrix(*edges, (n_samples, n_samples)).plus_transpose())
