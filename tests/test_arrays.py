"""Libraries, devices and precisions; checks of matrices, labels and labelled pairs."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

import zeroshift
from zeroshift import FeatureSet, ZeroShot, normalize
from zeroshift.arrays import Backend, Rows, UnitLengthError, check_labels, check_matrix, checked_labelled, to_numpy

torch = pytest.importorskip("torch", reason="torch is not installed")


def test_home_has_its_library_and_can_be_pickled():
    for array in (np.zeros(2), torch.zeros(2)):
        backend = Backend.of(array)
        assert pickle.loads(pickle.dumps(backend)) == backend
    assert Backend.of(np.zeros(1)).library == "numpy"
    assert Backend.of(torch.zeros(1)).library == "torch"


@pytest.mark.parametrize("source", [np.ones((2, 3), np.float16), torch.ones((2, 3), dtype=torch.bfloat16)], ids=str)
@pytest.mark.parametrize("target", [np.zeros(1), torch.zeros(1)], ids=["to numpy", "to torch"])
def test_half_precision_is_converted_to_float32(source, target):
    backend = Backend.of(target)
    converted = backend.asarray(source)
    assert converted.dtype == backend.xp.float32
    assert Backend.of(converted) == backend
    assert backend.asarray(source, backend.xp.float64).dtype == backend.xp.float64


def test_a_numpy_array_converted_to_torch_shares_no_memory():
    source = np.ones((2, 2))
    converted = Backend.of(torch.zeros(1)).asarray(source, torch.float64)
    converted[0, 0] = 5
    assert source[0, 0] == 1


def test_to_numpy_accepts_gradients_and_bfloat16():
    assert to_numpy(torch.ones(2, requires_grad=True)).tolist() == [1, 1]
    assert to_numpy(torch.ones(2, dtype=torch.bfloat16)).dtype == np.float32


def test_rows_are_converted_in_blocks():
    rows = Rows(np.arange(10, dtype=np.float16).reshape(5, 2), Backend.of(np.zeros(1)), np.float64)
    blocks = [(block, x) for block, x in rows.blocks(2)]
    assert [block for block, _ in blocks] == [slice(0, 2), slice(2, 4), slice(4, 5)]
    assert all(x.dtype == np.float64 for _, x in blocks)
    np.testing.assert_array_equal(np.concatenate([x for _, x in blocks]), np.arange(10).reshape(5, 2))


def test_the_error_names_an_invalid_row_at_the_end():
    features = np.zeros((20_000, 2), dtype=np.float32)
    features[:, 0] = 1
    features[19_999, 1] = np.nan
    with pytest.raises(ValueError, match="row 19999 holds NaN"):
        check_matrix("features", features)


def test_the_error_names_a_row_that_overflows():
    with pytest.raises(ValueError, match="row 1 holds an infinite or overflowing value"):
        check_matrix("features", np.array([[1, 0], [3e300, 3e300]]))


@pytest.mark.parametrize("dtype", [">f8", "longdouble"])
def test_all_64_bit_floats_give_float64(dtype):
    x = np.eye(2, 4).astype(dtype)
    answer = zeroshift.OnlineADAPT(x, logit_scale=3.0).adapt(x)
    assert answer.dtype == np.float64


def test_tiny_rows_are_not_zero_vectors():
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
def test_invalid_labels_are_rejected(labels, message):
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


PROTOTYPES = np.eye(3, 4)
FEATURES = np.eye(4)[[0, 1, 2, 3, 0]]
LABELS = np.array([0, 1, 2, 2, 0])


@pytest.mark.parametrize("pair", [None, FEATURES, (FEATURES,), {"features": FEATURES, "labels": LABELS}, "ab"])
def test_anything_but_a_pair_is_rejected(pair):
    with pytest.raises(
        TypeError, match=rf"shots must be a pair \(features, labels\); got .*{type(pair).__name__}.*Fix: shots=\("
    ):
        checked_labelled("shots", pair, PROTOTYPES)


@pytest.mark.parametrize(
    ("features", "labels", "error", "message"),
    [
        (FEATURES.tolist(), LABELS, TypeError, "shots features must be a NumPy array or a torch tensor; got list"),
        (FEATURES[0], LABELS, ValueError, "shots features must have two dimensions"),
        (FEATURES[:, :3], LABELS, ValueError, "shots features has d = 3 columns"),
        (FEATURES * 3, LABELS, ValueError, "shots features row 0 has length 3"),
        (FEATURES, LABELS[:4], ValueError, r"shots labels must have one entry per row, shape \(5,\)"),
        (FEATURES, LABELS + 1, ValueError, "shots labels row 2 is 3; class indices go from 0 to 2 for 3 prototypes"),
        (FEATURES, LABELS * 1.0, TypeError, "shots labels must hold integers"),
        (FEATURES, ["cat"] * 5, TypeError, "shots labels must hold integers"),
        (FEATURES, None, TypeError, "shots labels must be a vector of class indices; got NoneType"),
    ],
)
def test_errors_name_the_argument(features, labels, error, message):
    with pytest.raises(error, match=message):
        checked_labelled("shots", (features, labels), PROTOTYPES)


@pytest.mark.parametrize("labels", [LABELS, LABELS.tolist(), torch.tensor(LABELS), LABELS.astype(np.uint8)])
def test_labels_become_numpy_integers(labels):
    _, copied = checked_labelled("shots", [FEATURES, labels], PROTOTYPES)
    assert type(copied) is np.ndarray
    assert copied.dtype == np.int64
    np.testing.assert_array_equal(copied, LABELS)


def test_features_are_copied():
    features, labels = FEATURES.copy(), LABELS.copy()
    copied = checked_labelled("shots", (features, labels), PROTOTYPES)
    features[:], labels[:] = 0, 0
    np.testing.assert_array_equal(copied[0], FEATURES)
    np.testing.assert_array_equal(copied[1], LABELS)


def test_features_keep_their_precision_in_the_library_of_the_prototypes():
    copied, _ = checked_labelled("shots", (FEATURES.astype(np.float16), LABELS), torch.tensor(PROTOTYPES))
    assert isinstance(copied, torch.Tensor)
    assert copied.dtype == torch.float32
    copied, _ = checked_labelled("shots", (torch.tensor(FEATURES), LABELS), PROTOTYPES)
    assert type(copied) is np.ndarray
    assert copied.dtype == np.float64


def test_the_error_for_a_feature_set_names_the_fix():
    pets = FeatureSet(FEATURES, prototypes=PROTOTYPES, labels=LABELS)
    with pytest.raises(TypeError, match=r"got FeatureSet\. Fix: shots=\(shots\.features, shots\.labels\)"):
        checked_labelled("shots", pets, PROTOTYPES)


def test_masked_labels_are_rejected():
    masked = np.ma.masked_array(LABELS, mask=LABELS == 1)
    with pytest.raises(TypeError, match=r"shots labels must be a plain vector.*Fix: drop the rows"):
        checked_labelled("shots", (FEATURES, masked), PROTOTYPES)


@pytest.mark.parametrize(("labels", "fix"), [(LABELS * 1.0, r"astype\(int\)"), (LABELS + 0.7, "not class indices")])
def test_a_conversion_is_suggested_for_whole_numbers_only(labels, fix):
    with pytest.raises(TypeError, match=f"must hold integers.*float64.*{fix}"):
        checked_labelled("shots", (FEATURES, labels), PROTOTYPES)


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_transposed_arrays_are_recognised(library):
    rng = np.random.default_rng(0)
    prototypes, features = normalize(rng.normal(size=(5, 32))), normalize(rng.normal(size=(40, 32)))
    if library == "torch":
        torch = pytest.importorskip("torch")
        prototypes, features = torch.tensor(prototypes), torch.tensor(features)
    transposed = r"prototypes has shape \(32, 5\) and columns of unit length.* looks transposed\. Fix: prototypes\.T"
    with pytest.raises(ValueError, match=transposed) as caught:
        ZeroShot(prototypes.T)
    assert not isinstance(caught.value, UnitLengthError)  # it must not be normalised
    with pytest.raises(ValueError, match=r"prototypes\['default'\] has shape|prototypes has shape"):
        FeatureSet(features, prototypes=prototypes.T)
    method = ZeroShot(prototypes)
    with pytest.raises(ValueError, match=r"d = 40 columns .* They look transposed\. Fix: features\.T, \(N, d\)"):
        method.adapt(features.T)
    # Scaled row by row after they were transposed: only the features tell.
    wrong = ZeroShot(normalize(prototypes.T))
    message = r"d = 32 columns .* the prototypes have d = 5\. The prototypes, of shape \(32, 5\), look transposed"
    for call in (wrong.adapt, wrong.predict):
        with pytest.raises(ValueError, match=message):
            call(features)
    with pytest.raises(ValueError, match=message):
        FeatureSet(features, prototypes=wrong.prototypes)


def test_features_of_another_encoder_are_not_called_transposed():
    rng = np.random.default_rng(0)
    method = ZeroShot(normalize(rng.normal(size=(5, 32))))
    with pytest.raises(ValueError, match="must come from the same encoder"):
        method.adapt(normalize(rng.normal(size=(40, 16))))
    raw = rng.normal(size=(40, 32))
    with pytest.raises(UnitLengthError, match=r"Fix: zeroshift\.normalize"):
        method.adapt(raw)
