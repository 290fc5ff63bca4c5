"""Sparse matrices against dense ones, in both libraries, and in torch with the implementation for GPUs."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from zeroshift.arrays import Backend
from zeroshift.methods._shared.sparse import SparseMatrix

SHAPE = (6, 4)


@pytest.fixture(params=["numpy", "torch", "as on a gpu"])
def library(request, monkeypatch):
    if request.param == "as on a gpu":
        monkeypatch.setattr(Backend, "on_gpu", property(lambda backend: backend.library == "torch"))
    return np.asarray if request.param == "numpy" else torch.tensor


def entries(shape, *, dtype="float64", seed=0, count=20):
    """Random positions, some of them several times."""
    rng = np.random.default_rng(seed)
    rows, columns = (rng.integers(size, size=count) for size in shape)
    assert len(set(zip(rows.tolist(), columns.tolist(), strict=True))) < count
    values = rng.normal(size=count).astype(dtype)
    dense = np.zeros(shape, dtype)
    np.add.at(dense, (rows, columns), values)
    return (rows, columns, values), dense


def sparse(library, shape, **changes):
    given, dense = entries(shape, **changes)
    return SparseMatrix(*map(library, given), shape), dense


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_product(library, dtype):
    matrix, dense = sparse(library, SHAPE, dtype=dtype)
    other = np.random.default_rng(1).normal(size=(4, 3)).astype(dtype)
    product = matrix @ library(other)
    assert type(product) is type(library(other))
    assert product.dtype == library(other).dtype
    np.testing.assert_allclose(np.asarray(product), dense @ other, rtol=1e-5 if dtype == "float32" else 1e-13)


def test_product_with_a_sparse_matrix_is_dense(library):
    matrix, dense = sparse(library, SHAPE)
    other, dense_other = sparse(library, (4, 5), seed=1, count=30)
    product = matrix @ other
    assert type(product) is type(library(dense))
    np.testing.assert_allclose(np.asarray(product), dense @ dense_other, rtol=1e-13, atol=1e-15)


def test_transpose(library):
    matrix, dense = sparse(library, SHAPE)
    assert matrix.T.shape == (4, 6)
    np.testing.assert_allclose(np.asarray(matrix.T @ library(np.eye(6))), dense.T, rtol=1e-13)
    np.testing.assert_allclose(np.asarray(matrix.T.T.dense()), dense, rtol=1e-13)


def test_dense(library):
    matrix, dense = sparse(library, SHAPE)
    assert type(matrix.dense()) is type(library(dense))
    np.testing.assert_allclose(np.asarray(matrix.dense()), dense, rtol=1e-13)


def test_plus_transpose(library):
    matrix, dense = sparse(library, (5, 5))
    np.testing.assert_allclose(np.asarray(matrix.plus_transpose().dense()), dense + dense.T, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_row_sums(library, dtype):
    matrix, dense = sparse(library, SHAPE, dtype=dtype)
    sums = matrix.row_sums()
    assert sums.dtype == library(dense).dtype
    np.testing.assert_allclose(np.asarray(sums), dense.sum(axis=1), rtol=1e-5, atol=1e-6)


def test_scaled_does_not_modify_the_matrix(library):
    matrix, dense = sparse(library, SHAPE)
    left, right = np.arange(1.0, 7.0), np.array([2.0, 0.0, -1.0, 0.5])
    scaled = matrix.scaled(library(left), library(right))
    np.testing.assert_allclose(np.asarray(scaled.dense()), left[:, None] * dense * right, rtol=1e-13)
    np.testing.assert_allclose(np.asarray(matrix.dense()), dense, rtol=1e-13)


def test_of_lists(library):
    """Values of a column that occurs twice in a row are added."""
    columns = np.array([[2, 0], [1, 1], [3, 2]])
    values = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    matrix = SparseMatrix.of_lists(library(columns), library(values), 4)
    expected = np.array([[2.0, 0.0, 1.0, 0.0], [0.0, 7.0, 0.0, 0.0], [0.0, 0.0, 6.0, 5.0]])
    np.testing.assert_array_equal(np.asarray(matrix.dense()), expected)
    np.testing.assert_array_equal(np.asarray(matrix @ library(np.eye(4))), expected)
    np.testing.assert_array_equal(np.asarray(matrix.T @ library(np.eye(3))), expected.T)


def test_no_entries(library):
    nothing = library(np.zeros(0, dtype="int64"))
    matrix = SparseMatrix(nothing, nothing, library(np.zeros(0)), (3, 3))
    np.testing.assert_array_equal(np.asarray(matrix.plus_transpose() @ library(np.eye(3))), np.zeros((3, 3)))
