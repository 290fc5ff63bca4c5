"""Libraries, devices, precisions and the checks at the door."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

import zeroshift
from zeroshift.arrays import Home, Rows, check_labels, check_matrix, to_numpy

torch = pytest.importorskip("torch", reason="torch is not installed")


def test_home_knows_its_library_and_can_travel():
    for array in (np.zeros(2), torch.zeros(2)):
        home = Home.of(array)
        assert pickle.loads(pickle.dumps(home)) == home
    assert Home.of(np.zeros(1)).library == "numpy"
    assert Home.of(torch.zeros(1)).library == "torch"


@pytest.mark.parametrize("source", [np.ones((2, 3), np.float16), torch.ones((2, 3), dtype=torch.bfloat16)], ids=str)
@pytest.mark.parametrize("target", [np.zeros(1), torch.zeros(1)], ids=["to numpy", "to torch"])
def test_narrow_floats_arrive_as_float32_everywhere(source, target):
    home = Home.of(target)
    arrived = home.bring(source)
    assert arrived.dtype == home.xp.float32
    assert Home.of(arrived) == home
    assert home.bring(source, home.xp.float64).dtype == home.xp.float64


def test_bringing_a_numpy_array_to_torch_never_shares_memory():
    source = np.ones((2, 2))
    arrived = Home.of(torch.zeros(1)).bring(source, torch.float64)
    arrived[0, 0] = 5
    assert source[0, 0] == 1


def test_to_numpy_takes_gradients_and_bfloat16():
    assert to_numpy(torch.ones(2, requires_grad=True)).tolist() == [1, 1]
    assert to_numpy(torch.ones(2, dtype=torch.bfloat16)).dtype == np.float32


def test_rows_convert_block_by_block():
    rows = Rows(np.arange(10, dtype=np.float16).reshape(5, 2), Home.of(np.zeros(1)), np.float64)
    blocks = [(block, x) for block, x in rows.blocks(2)]
    assert [block for block, _ in blocks] == [slice(0, 2), slice(2, 4), slice(4, 5)]
    assert all(x.dtype == np.float64 for _, x in blocks)
    np.testing.assert_array_equal(np.concatenate([x for _, x in blocks]), np.arange(10).reshape(5, 2))


def test_a_bad_row_far_down_is_named():
    features = np.zeros((20_000, 2), dtype=np.float32)
    features[:, 0] = 1
    features[19_999, 1] = np.nan
    with pytest.raises(ValueError, match="row 19999 holds NaN"):
        check_matrix("features", features)


def test_overflowing_rows_are_named():
    with pytest.raises(ValueError, match="row 1 holds an infinite or overflowing value"):
        check_matrix("features", np.array([[1, 0], [3e300, 3e300]]))


@pytest.mark.parametrize("dtype", [">f8", "longdouble"])
def test_wide_floats_of_any_kind_stay_wide(dtype):
    x = np.eye(2, 4).astype(dtype)
    answer = zeroshift.OnlineADAPT(x, logit_scale=3.0).adapt(x)
    assert answer.dtype == np.float64


def test_tiny_rows_are_not_called_zero():
    np.testing.assert_allclose(zeroshift.normalize(np.full((1, 4), 1e-25, np.float32)), [[0.5] * 4])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_unit_rows_rounded_to_half_precision_pass(dtype):
    x = torch.nn.functional.normalize(torch.randn(200, 512, generator=torch.Generator().manual_seed(0)), dim=1)
    check_matrix("features", x.to(dtype))


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([0, 1, 5], "row 2 is 5; class indices go from 0 to 4"),
        ([0, -1, 2], "row 1 is -1"),
        ([0.0, 1.0, 2.0], "must hold integers"),
        ([0, 1], r"shape \(3,\); got shape \(2,\)"),
        ("012", "must be a vector of class indices; got str"),
    ],
)
def test_bad_labels(labels, message):
    with pytest.raises((ValueError, TypeError), match=message):
        check_labels("labels", labels, rows=3, classes=5)


def test_labels_of_any_integer_type_become_int64():
    for labels in ([0, 1], np.array([0, 1], np.uint8), torch.tensor([0, 1], dtype=torch.int16)):
        assert check_labels("labels", labels, rows=2, classes=2).dtype == np.int64


def test_normalize_keeps_library_and_widens_half_precision():
    x = np.array([[3.0, 4.0], [0.0, 2.0]])
    np.testing.assert_allclose(zeroshift.normalize(x), [[0.6, 0.8], [0.0, 1.0]])
    np.testing.assert_allclose(zeroshift.normalize(x[0]), [0.6, 0.8])
    tensor = zeroshift.normalize(torch.tensor(x, dtype=torch.float16))
    assert tensor.dtype == torch.float32
    with pytest.raises(ValueError, match="row 1 is the zero vector"):
        zeroshift.normalize(np.array([[1.0, 1.0], [0.0, 0.0]]))
    with pytest.raises(TypeError, match="list"):
        zeroshift.normalize([[1.0]])
