"""FreeTTA against its reconstruction (no official code was found), a plain version, and its rules."""

import numpy as np
import pytest
import torch

from goldens import golden, problem
from plain import freetta as plain
from zeroshift import ZeroShot
from zeroshift.arrays import to_numpy
from zeroshift.methods import FreeTTA
from zeroshift.testing import check_method, make_problem

SETTINGS = {
    "logits": {},
    "literal_logits": {"covariance": "literal"},
    "fused_logits": {"responsibilities": "fused"},
}


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-4), ("float64", 1e-9)])
@pytest.mark.parametrize("convert", [np.asarray, torch.tensor], ids=["numpy", "torch"])
@pytest.mark.parametrize("array", SETTINGS)
def test_the_reconstructed_logits(array, convert, dtype, tolerance):
    given, want = problem(dtype), golden("freetta")
    method = FreeTTA(convert(given["prototypes"]), **SETTINGS[array])
    scores = to_numpy(method.adapt_scores(convert(given["features"])))
    np.testing.assert_allclose(scores, want[array], rtol=0, atol=tolerance)
    np.testing.assert_array_equal(scores.argmax(axis=1), want[array].argmax(axis=1))
    if array == "logits":
        for name, value in (("mu", method.means), ("counts", method.counts), ("sigma", method.covariance_matrix)):
            np.testing.assert_allclose(to_numpy(value), want[f"final_{name}"], rtol=0, atol=tolerance)
        zero_shot = ZeroShot(given["prototypes"]).predict_scores(given["features"])
        gaussian = (scores - zero_shot) / method.alpha
        np.testing.assert_allclose(gaussian, want["gda_scores"], rtol=0, atol=10 * tolerance)


def test_a_large_weight_is_the_reading_without_a_temperature():
    given = problem("float64")
    scores = FreeTTA(given["prototypes"], alpha=20.0).adapt_scores(given["features"]) / 100
    np.testing.assert_allclose(scores, golden("freetta")["raw_logits"], rtol=0, atol=1e-9)


@pytest.mark.parametrize("covariance", ["mean", "literal"])
@pytest.mark.parametrize("responsibilities", ["gaussian", "fused"])
def test_the_plain_version_agrees(covariance, responsibilities):
    given = make_problem(classes=9, dimension=24, samples=200, seed=3)
    setting = {"logit_scale": 20.0, "covariance": covariance, "responsibilities": responsibilities, "beta": 2.0}
    expected = plain.scores(torch.tensor(given.features), torch.tensor(given.prototypes), **setting)
    ours = FreeTTA(given.prototypes, **setting).adapt_scores(given.features)
    np.testing.assert_allclose(ours, expected.numpy(), rtol=0, atol=1e-9)


def test_without_weight_it_is_zero_shot():
    given = problem("float64")
    scores = FreeTTA(given["prototypes"], alpha=0.0).adapt_scores(given["features"])
    expected = ZeroShot(given["prototypes"]).predict_scores(given["features"])
    np.testing.assert_allclose(scores, expected, rtol=0, atol=1e-10)


def test_counts_add_up_and_the_covariance_is_symmetric():
    given = problem("float64")
    method = FreeTTA(given["prototypes"])
    method.adapt(given["features"])
    assert method.counts.sum() == pytest.approx(1 + method._weight)
    covariance = method.covariance_matrix
    np.testing.assert_allclose(covariance, covariance.T, rtol=0, atol=1e-14)
    assert np.linalg.eigvalsh(covariance).min() > -1e-12


def test_a_weight_of_zero_learns_nothing():
    method = FreeTTA(np.eye(3), logit_scale=1e-3, beta=1e4)  # exp(-1e4 ln 3) is 0
    method.adapt(np.array([[0.8, 0.6, 0.0]]))
    np.testing.assert_array_equal(method.means, np.eye(3))
    np.testing.assert_array_equal(method.covariance_matrix, np.eye(3))


def test_it_is_marked_as_reconstructed():
    assert "no official code" in FreeTTA.reconstructed


@pytest.mark.slow  # tests/common runs the same checks one by one
def test_common_checks():
    assert not check_method(FreeTTA, parameters={"covariance": "literal", "responsibilities": "fused"}).failed
