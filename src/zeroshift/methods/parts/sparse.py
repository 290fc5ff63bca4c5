"""Sparse matrices times dense ones: SciPy on the CPU, for tensors too, and our own entries on a GPU."""

from __future__ import annotations

from typing import Any

import numpy as np

from zeroshift.arrays import Array, Home, to_numpy
from zeroshift.methods.parts.entries import Entries

__all__ = ["SparseMatrix"]


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
