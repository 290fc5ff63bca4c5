"""Sparse matrices times dense ones: SciPy on the CPU, for tensors too, and an implementation of our own on a GPU."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from zeroshift.arrays import Array, Backend, namespace, to_numpy

__all__ = ["GpuSparseMatrix", "SparseMatrix", "degree_factors"]

WORK_NUMBERS = 1 << 26
"""Numbers of a product computed together: 512 MB in float64."""


class GpuSparseMatrix(NamedTuple):
    """A sparse matrix on a GPU whose products are always the same to the last bit; torch's own depend on the order in
    which threads run.

    Rows, columns and values (e,) of the entries, sorted by row; entries at the same position are added.
    """

    rows: Array
    columns: Array
    values: Array
    lengths: Array
    """Number of entries in each row."""
    shape: tuple[int, int]

    @classmethod
    def of(cls, rows: Array, columns: Array, values: Array, shape: tuple[int, int]) -> GpuSparseMatrix:
        """From entries in any order."""
        backend = Backend.of(values)
        rows, columns = (backend.xp.asarray(numbers, device=backend.device) for numbers in (rows, columns))
        order = backend.xp.argsort(rows, stable=True)
        lengths = backend.xp.bincount(rows, minlength=shape[0])
        return cls(rows[order], columns[order], values[order], lengths, shape)

    @property
    def T(self) -> GpuSparseMatrix:  # noqa: N802 (as arrays call it)
        return GpuSparseMatrix.of(self.columns, self.rows, self.values, (self.shape[1], self.shape[0]))

    def plus_transpose(self) -> GpuSparseMatrix:
        """The matrix plus its transpose."""
        xp = Backend.of(self.values).xp
        rows, columns = xp.concat([self.rows, self.columns]), xp.concat([self.columns, self.rows])
        return GpuSparseMatrix.of(rows, columns, xp.concat([self.values, self.values]), self.shape)

    def scaled(self, left: Array, right: Array) -> GpuSparseMatrix:
        """Entry (i, j) times left[i] right[j]."""
        return self._replace(values=self.values * left[self.rows] * right[self.columns])

    def dense(self) -> Array:
        """All entries, as an array."""
        backend = Backend.of(self.values)
        return self.times(backend.xp.eye(self.shape[1], dtype=self.values.dtype, device=backend.device))

    def times(self, dense: Array) -> Array:
        """The product with a dense matrix; the entries of each row are summed in order."""
        backend = Backend.of(dense)
        product = backend.zeros((self.shape[0], dense.shape[1]), dense.dtype)
        size = max(1, WORK_NUMBERS // max(1, self.values.shape[0]))
        for start in range(0, dense.shape[1], size):
            terms = self.values[:, None] * dense[:, start : start + size][self.columns]
            product[:, start : start + size] = backend.xp.segment_reduce(terms, "sum", lengths=self.lengths, axis=0)
        return product


class SparseMatrix:
    """A matrix given by the rows, columns and values of its entries; entries at the same position are added.

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
        self.backend = Backend.of(values)
        self._matrix: Any
        if self.backend.on_gpu:
            self._matrix = GpuSparseMatrix.of(rows, columns, values, shape)
        else:
            from scipy.sparse import csr_array

            positions = (to_numpy(rows), to_numpy(columns))
            self._matrix = csr_array((to_numpy(values), positions), shape=shape)

    @classmethod
    def of_lists(cls, columns: Array, values: Array, width: int) -> SparseMatrix:
        """The matrix whose row i has the entries values[i] in the columns columns[i], both (n, k). No sorting needed.

        >>> import numpy as np
        >>> SparseMatrix.of_lists(np.array([[2, 0]]), np.array([[7.0, 8.0]]), 3) @ np.eye(3)
        array([[8., 0., 7.]])
        """
        n, k = columns.shape
        backend = Backend.of(values)
        if backend.on_gpu:
            rows = backend.xp.arange(n, device=backend.device)[:, None] + backend.xp.zeros_like(columns)
            return cls(rows.reshape(-1), columns.reshape(-1), values.reshape(-1), (n, width))
        from scipy.sparse import csr_array

        # The type that SciPy would choose itself, after checking every number.
        narrow = np.int32 if max(width, n * k) < 2**31 else np.int64
        starts = np.arange(n + 1, dtype=narrow) * narrow(k)
        entries = (to_numpy(values).reshape(-1), to_numpy(columns).reshape(-1).astype(narrow), starts)
        return cls._wrap(backend, csr_array(entries, shape=(n, width)))

    @classmethod
    def _wrap(cls, backend: Backend, matrix: Any) -> SparseMatrix:
        wrapped = object.__new__(cls)
        wrapped.shape, wrapped.backend, wrapped._matrix = tuple(matrix.shape), backend, matrix
        return wrapped

    @property
    def T(self) -> SparseMatrix:  # noqa: N802 (as arrays call it)
        return self._wrap(self.backend, self._matrix.T if self.backend.on_gpu else self._matrix.T.tocsr())

    def plus_transpose(self) -> SparseMatrix:
        """The matrix plus its transpose: links in one direction become links in both directions.

        >>> import numpy as np
        >>> SparseMatrix(np.array([0, 1]), np.array([1, 1]), np.array([1.0, 2.0]), (2, 2)).plus_transpose() @ np.eye(2)
        array([[0., 1.],
               [1., 4.]])
        """
        if self.backend.on_gpu:
            return self._wrap(self.backend, self._matrix.plus_transpose())
        return self._wrap(self.backend, (self._matrix + self._matrix.T).tocsr())

    def row_sums(self) -> Array:
        """Sums over each row, (n,)."""
        return (self @ self.backend.xp.ones((self.shape[1], 1), dtype=self._dtype, device=self.backend.device))[:, 0]

    def scaled(self, left: Array, right: Array) -> SparseMatrix:
        """Entry (i, j) times left[i] right[j].

        >>> import numpy as np
        >>> matrix = SparseMatrix(np.array([0]), np.array([1]), np.array([2.0]), (2, 2))
        >>> matrix.scaled(np.array([3.0, 1.0]), np.array([1.0, 5.0])) @ np.eye(2)
        array([[ 0., 30.],
               [ 0.,  0.]])
        """
        if self.backend.on_gpu:
            return self._wrap(self.backend, self._matrix.scaled(left, right))
        from scipy.sparse import csr_array

        matrix = self._matrix
        values = matrix.data * np.repeat(to_numpy(left), np.diff(matrix.indptr))
        values *= to_numpy(right)[matrix.indices]
        return self._wrap(self.backend, csr_array((values, matrix.indices, matrix.indptr), shape=self.shape))

    @property
    def _dtype(self) -> Any:
        return self._matrix.values.dtype if self.backend.on_gpu else getattr(self.backend.xp, self._matrix.dtype.name)

    def dense(self) -> Array:
        """All entries, as an array."""
        return self._matrix.dense() if self.backend.on_gpu else self._on_backend(self._matrix.toarray())

    def __matmul__(self, other: Array | SparseMatrix) -> Array:
        """Times a dense matrix, or a sparse one; the product is dense."""
        if self.backend.on_gpu:
            return self._matrix.times(other.dense() if isinstance(other, SparseMatrix) else other)
        if isinstance(other, SparseMatrix):
            return self._on_backend((self._matrix @ other._matrix).toarray())
        # SciPy's product is several times as fast as torch's on a CPU, and converting a CPU tensor costs nothing.
        return self._on_backend(self._matrix @ to_numpy(other))

    def _on_backend(self, array: np.ndarray) -> Array:
        return array if self.backend.library == "numpy" else self.backend.xp.asarray(array)


def degree_factors(degrees: Array, softening: float = 0.0) -> Array:
    """1 / (sqrt(D) + softening), the factors by which the weight of a link is multiplied, one for each of its nodes.

    1 for a node without links.

    >>> import numpy as np
    >>> degree_factors(np.array([4.0, 0.0]))
    array([0.5, 1. ])
    """
    xp = namespace(degrees)
    roots = xp.sqrt(degrees) + softening
    return 1.0 / xp.where(roots > 0, roots, xp.ones_like(roots))
