"""Sparse matrices of links between samples, on the CPU with SciPy; their products with arrays of any library."""

from __future__ import annotations

from typing import Any

import numpy as np

from zeroshift.arrays import Array, Backend, to_numpy


def link_matrix(columns: Array, weights: Array, width: int) -> Any:
    """The matrix (n, width) whose row i has the entries weights[i] in the columns columns[i], both (n, k).

    >>> link_matrix(np.array([[2, 0]]), np.array([[7.0, 8.0]]), 3).toarray()
    array([[8., 0., 7.]])
    """
    from scipy.sparse import csr_array

    n, k = columns.shape
    parts = (to_numpy(weights).reshape(-1), to_numpy(columns).reshape(-1), np.arange(n + 1) * k)
    return csr_array(parts, shape=(n, width))


def times(matrix: Any, dense: Array) -> Array:
    """A sparse matrix times a dense one, in the library and on the device of the latter."""
    backend = Backend.of(dense)
    return backend.asarray(matrix @ to_numpy(dense), dense.dtype)


def scaled_by_degrees(links: Any) -> Any:
    """Symmetric links, each divided by the square roots of the degrees of its two nodes."""
    factors = degree_factors(links.sum(axis=1))
    links.data *= np.repeat(factors, np.diff(links.indptr)) * factors[links.indices]
    return links


def degree_factors(degrees: np.ndarray, softening: float = 0.0) -> np.ndarray:
    """1 / (sqrt(D) + softening), the factors by which the weight of a link is multiplied, one for each of its nodes.

    1 for a node without links.

    >>> degree_factors(np.array([4.0, 0.0]))
    array([0.5, 1. ])
    """
    roots = np.sqrt(degrees) + softening
    return 1.0 / np.where(roots > 0, roots, 1.0)
