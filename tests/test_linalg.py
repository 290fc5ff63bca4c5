"""The ridge precision of residuals: by hand, against the pseudo-inverse that defines it, and without spread."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from goldens import first_shots, golden
from zeroshift import linalg
from zeroshift.arrays import Backend
from zeroshift.linalg import (
    ZERO_TRACE,
    Float32Factor,
    newton_inverse,
    residual_precision,
    ridge_precision,
    thin_product,
)


def by_definition(residuals):
    """d pinv((n - 1) M + tr(M) I), as written."""
    n, d = residuals.shape
    covariance = np.cov(residuals.T)
    return d * np.linalg.pinv((n - 1) * covariance + np.trace(covariance) * np.eye(d))


@pytest.mark.parametrize("shape", [(30, 4), (3, 8), (2, 5)], ids=["n > d", "n < d", "two rows"])
@pytest.mark.parametrize("convert", [np.asarray, torch.tensor], ids=["numpy", "torch"])
def test_definition(shape, convert):
    residuals = np.random.default_rng(0).normal(size=shape) + 3.0
    np.testing.assert_allclose(residual_precision(convert(residuals)), by_definition(residuals), rtol=1e-9, atol=1e-9)


def test_authors_precision():
    features, labels = first_shots(16, "float64")
    residuals = np.concatenate([features[labels == k] - features[labels == k].mean(axis=0) for k in range(12)])
    np.testing.assert_allclose(residual_precision(residuals), golden("gda_clip")["precision16"], rtol=0, atol=6e-4)


def test_the_mean_does_not_matter():
    residuals = np.random.default_rng(1).normal(size=(20, 3))
    np.testing.assert_allclose(residual_precision(residuals + 5.0), residual_precision(residuals), rtol=1e-9)


@pytest.mark.parametrize("residuals", [np.zeros((5, 3)), np.ones((5, 3)), np.full((4, 3), 1e-14), np.ones((1, 3))])
def test_no_spread_gives_precision_zero(residuals):
    np.testing.assert_array_equal(residual_precision(residuals), np.zeros((3, 3)))


def test_rounding_does_not_count_as_spread():
    noise = np.random.default_rng(2).normal(size=(50, 3))
    noise /= np.sqrt(np.trace(np.cov(noise.T)))
    assert not residual_precision(noise * 0.5 * ZERO_TRACE**0.5).any()
    assert residual_precision(noise * 2 * ZERO_TRACE**0.5).any()


def test_many_samples_leave_the_inverse_covariance_up_to_a_factor():
    """The factor is d / (n - 1), which GDA-CLIP's alpha compensates."""
    rng = np.random.default_rng(3)
    residuals = rng.normal(size=(100_000, 3)) @ np.diag([1.0, 2.0, 0.5])
    expected = 3 / (len(residuals) - 1) * np.linalg.inv(np.cov(residuals.T))
    np.testing.assert_allclose(residual_precision(residuals), expected, rtol=1e-2, atol=1e-9)


@pytest.mark.parametrize("convert", [np.asarray, torch.tensor], ids=["numpy", "torch"])
def test_ridge_alone(convert):
    scatter = np.array([[2.0, 1.0], [1.0, 2.0]])
    expected = 2 * np.linalg.inv(scatter + 0.5 * np.eye(2))
    np.testing.assert_allclose(ridge_precision(convert(scatter), 0.5), expected, rtol=1e-12)
    stacked = ridge_precision(convert(np.stack([scatter, 2 * scatter])), 0.5)
    np.testing.assert_allclose(stacked[0], expected, rtol=1e-12)


@pytest.mark.parametrize("convert", [np.asarray, torch.tensor], ids=["numpy", "torch"])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize(
    ("rows", "count", "d"), [(1, 7, 5), (1, 1000, 512), (3, 1, 512), (5, 1003, 512), (17, 48, 512), (2, 3, 220_000)]
)
def test_thin_products_equal_plain_ones(rows, count, d, dtype, convert):
    """In one block, in several with a rest, and with rows too long for any block."""
    rng = np.random.default_rng(rows)
    left, right = rng.normal(size=(rows, d)).astype(dtype), rng.normal(size=(count, d)).astype(dtype)
    expected = left.astype(np.float64) @ right.T.astype(np.float64)
    found = thin_product(convert(left), convert(right))
    assert tuple(found.shape) == (rows, count)
    assert str(found.dtype).endswith(np.dtype(dtype).name)
    np.testing.assert_allclose(np.asarray(found), expected, rtol=0, atol=d * np.finfo(dtype).eps)


@pytest.mark.parametrize("size", [1e-6, 1.0, 3e4], ids=lambda size: f"entries of {size:g}")
@pytest.mark.parametrize("offsets", [False, True], ids=["without offsets", "with offsets"])
def test_products_of_halves_are_as_good_as_float32_products(monkeypatch, size, offsets):
    """The products of a GPU, with its float16 products replaced by float32 products of the same halves."""
    monkeypatch.setattr(Backend, "on_gpu", property(lambda backend: backend.library == "torch"))
    monkeypatch.setattr(linalg, "_multiplies_halves", lambda device: True)
    used = []

    def product(a, b, out_dtype):
        assert a.dtype == b.dtype == torch.float16
        used.append(out_dtype)
        return a.to(out_dtype) @ b.to(out_dtype)

    monkeypatch.setattr(torch, "mm", product)

    def add(c, a, b, out_dtype, alpha, beta, out=None):
        return torch.add(beta * c if beta else torch.zeros(1), product(a, b, out_dtype), alpha=alpha, out=out)

    monkeypatch.setattr(torch, "addmm", add)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(40, 512, generator=generator, dtype=torch.float64)
    x = (x / x.norm(dim=1, keepdim=True)).float()
    matrix = size * torch.randn(30, 512, generator=generator, dtype=torch.float64)
    added = size * torch.randn(30, generator=generator) if offsets else None
    factor = Float32Factor(matrix)
    found = factor.product(factor.rows(x), added)
    assert used == [torch.float32]
    assert found.dtype == torch.float32
    exact = x.double() @ matrix.T
    if added is not None:
        exact += added
    single = (x @ matrix.float().T + (0 if added is None else added)).double()
    assert (found - exact).abs().max() <= 4 * (single - exact).abs().max()
    largest = 3 * float(matrix.abs().max())
    bounded, out = Float32Factor(matrix, largest), (exact / 2).float()
    bounded.add_product(bounded.rows(x), out, share=2.0)
    assert (out - 2 * (exact / 2).float() - x.double() @ matrix.T).abs().max() <= 4 * (single - exact).abs().max()


@pytest.mark.parametrize("condition", [2.0, 30.0, 1000.0])
@pytest.mark.parametrize("bound", [1.0, 1.7])
def test_newton_inverse(condition, bound):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    vectors = np.linalg.qr(np.random.default_rng(0).normal(size=(40, 40)))[0]
    values = np.geomspace(1.0, condition, 40)
    found = newton_inverse(torch.tensor((vectors * values) @ vectors.T), bound * condition).numpy()
    np.testing.assert_allclose(found, (vectors / values) @ vectors.T, rtol=0, atol=1e-13)
