"""A sparse matrix on a GPU whose products always give the same bits: torch's own add in whatever order threads come."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from zeroshift.arrays import Array, Home, namespace, to_numpy

__all__ = ["Entries", "SparseMatrix", "degree_factors", "settled", "without_self"]

ENTRIES_WORK_NUMBERS = 1 << 26
"""Numbers worked on at once: 512 MB in float64."""


class Entries(NamedTuple):
    """Rows, columns and values (e,) of the entries, row after row; entries at the same place add up."""

    rows: Array
    columns: Array
    values: Array
    lengths: Array
    """Entries of each row."""
    shape: tuple[int, int]

    @classmethod
    def of(cls, rows: Array, columns: Array, values: Array, shape: tuple[int, int]) -> Entries:
        """From entries in any order."""
        home = Home.of(values)
        rows, columns = (home.xp.asarray(places, device=home.device) for places in (rows, columns))
        order = home.xp.argsort(rows, stable=True)
        lengths = home.xp.bincount(rows, minlength=shape[0])
        return cls(rows[order], columns[order], values[order], lengths, shape)

    @property
    def T(self) -> Entries:  # noqa: N802 (as arrays call it)
        return Entries.of(self.columns, self.rows, self.values, (self.shape[1], self.shape[0]))

    def plus_transpose(self) -> Entries:
        """The matrix plus its transpose."""
        xp = Home.of(self.values).xp
        rows, columns = xp.concat([self.rows, self.columns]), xp.concat([self.columns, self.rows])
        return Entries.of(rows, columns, xp.concat([self.values, self.values]), self.shape)

    def scaled(self, left: Array, right: Array) -> Entries:
        """Entry (i, j) times left[i] right[j]."""
        return self._replace(values=self.values * left[self.rows] * right[self.columns])

    def dense(self) -> Array:
        """All entries, as an array."""
        home = Home.of(self.values)
        return self.times(home.xp.eye(self.shape[1], dtype=self.values.dtype, device=home.device))

    def times(self, dense: Array) -> Array:
        """The product with a dense matrix: each row's entries summed one after the other."""
        home = Home.of(dense)
        answer = home.zeros((self.shape[0], dense.shape[1]), dense.dtype)
        size = max(1, ENTRIES_WORK_NUMBERS // max(1, self.values.shape[0]))
        for start in range(0, dense.shape[1], size):
            told = self.values[:, None] * dense[:, start : start + size][self.columns]
            answer[:, start : start + size] = home.xp.segment_reduce(told, "sum", lengths=self.lengths, axis=0)
        return answer


# Sparse matrices times dense ones: SciPy on the CPU, for tensors too, and our own entries on a GPU.


class SparseMatrix:
    """A matrix given by the rows, columns and values of its entries; entries at the same place add up.

    >>> import numpy as np
    >>> matrix = SparseMatrix(np.array([0, 0, 1]), np.array([1, 1, 0]), np.array([1.0, 2.0, 5.0]), (2, 2))
    >>> matrix @ np.eye(2)
    array([[0., 3.],
           [5., 0.]])
    >>> matrix.T @ np.eye(2)
    array([[0., 5.],
           [3., 0.]])
    """

    def __init__(self, rows: Array, columns: Array, values: Array, shape: tuple[int, int]) -> None:
        self.shape = shape
        self.home = Home.of(values)
        self._matrix: Any
        if self.home.on_gpu:
            self._matrix = Entries.of(rows, columns, values, shape)
        else:
            from scipy.sparse import csr_array

            places = (to_numpy(rows), to_numpy(columns))
            self._matrix = csr_array((to_numpy(values), places), shape=shape)

    @classmethod
    def of_lists(cls, columns: Array, values: Array, width: int) -> SparseMatrix:
        """Row i has the entries values[i] in the columns columns[i], both (n, k): nothing need be sorted.

        >>> import numpy as np
        >>> SparseMatrix.of_lists(np.array([[2, 0]]), np.array([[7.0, 8.0]]), 3) @ np.eye(3)
        array([[8., 0., 7.]])
        """
        n, k = columns.shape
        home = Home.of(values)
        if home.on_gpu:
            rows = home.xp.arange(n, device=home.device)[:, None] + home.xp.zeros_like(columns)
            return cls(rows.reshape(-1), columns.reshape(-1), values.reshape(-1), (n, width))
        from scipy.sparse import csr_array

        # In the type SciPy would settle on itself, after looking at every number.
        narrow = np.int32 if max(width, n * k) < 2**31 else np.int64
        starts = np.arange(n + 1, dtype=narrow) * narrow(k)
        entries = (to_numpy(values).reshape(-1), to_numpy(columns).reshape(-1).astype(narrow), starts)
        return cls._around(home, csr_array(entries, shape=(n, width)))

    @classmethod
    def _around(cls, home: Home, matrix: Any) -> SparseMatrix:
        made = object.__new__(cls)
        made.shape, made.home, made._matrix = tuple(matrix.shape), home, matrix
        return made

    @property
    def T(self) -> SparseMatrix:  # noqa: N802 (as arrays call it)
        return self._around(self.home, self._matrix.T if self.home.on_gpu else self._matrix.T.tocsr())

    def plus_transpose(self) -> SparseMatrix:
        """The matrix plus its transpose: links in one direction become links in both.

        >>> import numpy as np
        >>> SparseMatrix(np.array([0, 1]), np.array([1, 1]), np.array([1.0, 2.0]), (2, 2)).plus_transpose() @ np.eye(2)
        array([[0., 1.],
               [1., 4.]])
        """
        if self.home.on_gpu:
            return self._around(self.home, self._matrix.plus_transpose())
        return self._around(self.home, (self._matrix + self._matrix.T).tocsr())

    def row_sums(self) -> Array:
        """Sums over each row, (n,)."""
        return (self @ self.home.xp.ones((self.shape[1], 1), dtype=self._dtype, device=self.home.device))[:, 0]

    def scaled(self, left: Array, right: Array) -> SparseMatrix:
        """Entry (i, j) times left[i] right[j].

        >>> import numpy as np
        >>> matrix = SparseMatrix(np.array([0]), np.array([1]), np.array([2.0]), (2, 2))
        >>> matrix.scaled(np.array([3.0, 1.0]), np.array([1.0, 5.0])) @ np.eye(2)
        array([[ 0., 30.],
               [ 0.,  0.]])
        """
        if self.home.on_gpu:
            return self._around(self.home, self._matrix.scaled(left, right))
        from scipy.sparse import csr_array

        matrix = self._matrix
        values = matrix.data * np.repeat(to_numpy(left), np.diff(matrix.indptr))
        values *= to_numpy(right)[matrix.indices]
        return self._around(self.home, csr_array((values, matrix.indices, matrix.indptr), shape=self.shape))

    @property
    def _dtype(self) -> Any:
        return self._matrix.values.dtype if self.home.on_gpu else getattr(self.home.xp, self._matrix.dtype.name)

    def dense(self) -> Array:
        """All entries, as an array."""
        return self._matrix.dense() if self.home.on_gpu else self._at_home(self._matrix.toarray())

    def __matmul__(self, other: Array | SparseMatrix) -> Array:
        """Times a dense matrix, or a sparse one; the product is dense."""
        if self.home.on_gpu:
            return self._matrix.times(other.dense() if isinstance(other, SparseMatrix) else other)
        if isinstance(other, SparseMatrix):
            return self._at_home((self._matrix @ other._matrix).toarray())
        # SciPy's product is several times as fast as torch's on a CPU, and a tensor there is an array at no cost.
        return self._at_home(self._matrix @ to_numpy(other))

    def _at_home(self, array: np.ndarray) -> Array:
        return array if self.home.library == "numpy" else self.home.xp.asarray(array)


# Labels that spread over a graph: links scaled by the degrees of their ends, and where the labels come to rest.
#
# ZLaP's graph has no link from a node to itself and is solved; ECALP's keeps them and is followed for a few rounds.


TOLERANCE = 1e-10
"""Length of the residual, relative to that of the right-hand side, at which a solution is taken as found."""

MOST_ITERATIONS = 1000

WORK_NUMBERS = 8_000_000
"""Entries of a solution found together."""


def without_self(nodes: Array, weights: Array) -> Array:
    """The weights (n, k) of lists of neighbours (n, k) with none for the node whose list it is.

    >>> import numpy as np
    >>> without_self(np.array([[0, 1], [0, 1]]), np.array([[0.9, 0.5], [0.5, 0.9]]))
    array([[0. , 0.5],
           [0.5, 0. ]])
    """
    xp = namespace(weights)
    own = xp.arange(nodes.shape[0], dtype=nodes.dtype, device=Home.of(weights).device)[:, None]
    return xp.where(nodes == own, xp.zeros_like(weights), weights)


def degree_factors(degrees: Array, softening: float = 0.0) -> Array:
    """1 / (sqrt(D) + softening): a link's weight is multiplied by the factors of both its ends. 1 for a lone node.

    >>> import numpy as np
    >>> degree_factors(np.array([4.0, 0.0]))
    array([0.5, 1. ])
    """
    xp = namespace(degrees)
    roots = xp.sqrt(degrees) + softening
    return 1.0 / xp.where(roots > 0, roots, xp.ones_like(roots))


def settled(links: SparseMatrix, alpha: float, n_labelled: int) -> Array:
    """Where labels come to rest that the first nodes hold, each its own: those columns of (I - alpha W)^-1.

    `links` W (n, n) is symmetric with eigenvalues between -1 and 1. Conjugate gradients, many columns at once.

    >>> import numpy as np
    >>> pair = SparseMatrix(np.array([0, 1]), np.array([1, 0]), np.array([1.0, 1.0]), (2, 2))
    >>> settled(pair, 0.5, 1).round(6)
    array([[1.333333],
           [0.666667]])
    """
    n = links.shape[0]
    together = max(1, WORK_NUMBERS // n)
    parts = [
        _solved(links, alpha, _unit_columns(links.home, n, start, min(start + together, n_labelled)))
        for start in range(0, n_labelled, together)
    ]
    return parts[0] if len(parts) == 1 else links.home.xp.concat(parts, axis=1)


def _unit_columns(home: Home, n: int, start: int, stop: int) -> Array:
    columns = home.zeros((n, stop - start))
    numbers = home.xp.arange(stop - start, device=home.device)
    columns[numbers + start, numbers] = 1.0
    return columns


def _solved(links: SparseMatrix, alpha: float, right: Array) -> Array:
    """(I - alpha W) X = `right` (n, m), each column with its own step lengths; none of the columns is zero."""
    xp = namespace(right)
    x = xp.zeros_like(right)
    residual, direction = right, links.home.copy(right)
    squared = xp.sum(residual * residual, axis=0)
    enough = TOLERANCE**2 * squared
    for _ in range(MOST_ITERATIONS):
        image = links @ direction
        image *= -alpha
        image += direction
        curvature = xp.sum(direction * image, axis=0)
        # A column that is solved exactly has no direction left to go.
        step = squared / xp.where(curvature > 0, curvature, xp.ones_like(curvature))
        x += step * direction
        residual -= step * image
        before, squared = squared, xp.sum(residual * residual, axis=0)
        if bool(xp.all(squared <= enough)):
            break
        direction *= squared / xp.where(before > 0, before, xp.ones_like(before))
        direction += residual
    # Labels that only spread are nowhere negative; rounding leaves a trace below zero where none arrives.
    return xp.where(x > 0, x, xp.zeros_like(x))
