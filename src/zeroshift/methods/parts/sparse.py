"""Sparse matrices times dense ones, in SciPy or torch, whichever the arrays belong to."""

from __future__ import annotations

from typing import Any

from zeroshift.arrays import Array, Home, to_numpy

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
        home = Home.of(values)
        self.shape = shape
        self._matrix: Any
        if home.library == "numpy":
            from scipy.sparse import csr_array

            self._matrix = csr_array((values, (to_numpy(rows), to_numpy(columns))), shape=shape)
        else:
            places = home.xp.stack(
                [home.xp.asarray(rows, device=home.device), home.xp.asarray(columns, device=home.device)]
            )
            self._matrix = home.xp.sparse_coo_tensor(places, values, shape).coalesce()

    @property
    def T(self) -> SparseMatrix:  # noqa: N802 (as arrays call it)
        turned = object.__new__(SparseMatrix)
        turned.shape = (self.shape[1], self.shape[0])
        turned._matrix = self._matrix.T.tocsr() if hasattr(self._matrix, "tocsr") else self._matrix.t().coalesce()
        return turned

    def __matmul__(self, dense: Array) -> Array:
        return self._matrix @ dense
